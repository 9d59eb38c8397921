"""job=plan: words and memory of a step on every layout, from the partition alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from torch import nn

from gnnkit.engine.sparse_rows import PLACE_BYTES
from gnnkit.engine.trial import Sizes
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.jobs.inputs import reads_sparse
from gnnkit.jobs.job import DTYPES
from gnnkit.jobs.models import Given, ModelSource, Widths
from gnnkit.jobs.planned_step import graph_widths, program_step, reads_sparse_rows, step_activations, step_volume
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.choose import alternatives, assign, describe
from gnnkit.leader.cut import read
from gnnkit.leader.inputs import load, with_kept
from gnnkit.leader.result import Result
from gnnkit.model.program import Program, is_iterated
from gnnkit.partition.quality import Quality, measure
from gnnkit.settings import OPTIMIZERS, Settings, TrainerSettings
from gnnkit.task import Task

_Ranks = np.ndarray[Any, Any]  # [world_size]


def plan(settings: Settings, graph: Graph | None, given: Given) -> Result:
    """Compares the layouts for the workers, node assignment and model. Names the best.

    Counts the words and messages of one training step that exchanges, forward and
    backward, or of one step of a program. The counts are exact. Raises `UserError` for
    a chosen layout that cannot be. Leaves out other layouts that cannot be.

    Args:
        settings: The configuration.
        graph: Instead of the data set.
        given: Instead of the configured model.
    """
    figures = run_in_child(_plan, settings, graph, given, patience=Patience.of(settings.timeout))
    return Result("plan", figures, figures.pop("summary"))


def _plan(settings: Settings, graph: Graph | None, given: Given) -> dict[str, Any]:
    graph, source = load(settings, graph), ModelSource(settings.model, given)
    task: Task = settings.task.create()
    if source.trains:
        graph, _ = read(settings, graph)
    if not settings.strategy.load().full_graph:
        raise UserError(
            f"job=plan: strategy={settings.strategy.name} exchanges no rows of layers, nothing is to be planned"
        )
    graph, kept = with_kept(graph, settings.input_rows, reads_sparse(settings, source, settings.strategy.load()))
    width, edge_width = graph_widths(graph)
    widths = Widths(width, task.num_outputs(graph.num_classes), edge_width)
    model = source.make_model(widths, settings.seed, task) if source.trains else source.make_program()
    quality = measure(graph, assign(graph, settings.partition, settings.workers))
    layouts = {"chosen": layout(settings.trainer, graph, model, quality)}
    for name, other in alternatives(settings, graph, quality):
        with suppress(UserError):  # the model does not go with that grid
            layouts[name] = layout(settings.trainer, graph, model, other)
    why = _why(settings, layouts)
    lines = [*describe(graph, settings, quality.partition), *kept, *_table(layouts), why]
    return {"job": "plan", "model": source.name, "why": why, "layouts": layouts, "summary": "\n".join(lines)}


def layout(trainer: TrainerSettings, graph: Graph, model: nn.Module | Program, quality: Quality) -> dict[str, Any]:
    """Returns the figures of one layout. Lists are by rank.

    `memory` is the largest of all ranks, in bytes. Buffers of a single operation and
    the process itself come on top.

    Args:
        trainer: Precision and optimiser.
        graph: The whole graph.
        model: A model that is trained, or a program.
        quality: The measured partition.
    """
    itemsize = DTYPES[trainer.precision].itemsize
    moved, sizes = step_volume(graph, model, quality)
    grid = quality.partition.grid
    parts = _memory(trainer, graph, model, quality, sizes)
    memory = np.sum(list(parts.values()), axis=0)
    busiest = int(memory.argmax())
    return {
        "grid": [grid.rows, grid.cols, grid.slices],
        "words": _spread(moved.received)
        | {
            "gathered": moved.total("gather").tolist(),
            "reduced": moved.total("reduce").tolist(),
            "sliced": moved.total("slice").tolist(),
        },
        "messages": _spread(moved.messages),
        "bytes_sent": _spread(moved.words_sent * itemsize),
        "memory": int(memory.max()),
        "memory_of_busiest_rank": {name: int(number[busiest]) for name, number in parts.items()},
        "balance": quality.balance(),
    }


def _memory(
    trainer: TrainerSettings, graph: Graph, model: nn.Module | Program, quality: Quality, sizes: list[Sizes]
) -> dict[str, _Ranks]:
    """Returns the bytes of each rank, by purpose.

    Args:
        trainer: Precision and optimiser.
        graph: The whole graph.
        model: A model that is trained, or a program.
        quality: The measured partition.
        sizes: The sizes of each rank.
    """
    itemsize = DTYPES[trainer.precision].itemsize
    parts = {
        "features": _features(graph, model, quality, itemsize),
        "edges": np.array([16 * own.edges for own in sizes]),  # a source and an id each
    }
    if is_iterated(model):
        _, width = program_step(model, graph, quality.traffic, 0)
        return parts | {"values": quality.traffic.num_owned * width * itemsize * 2}  # before and after the step
    numbers = 2 + OPTIMIZERS[trainer.optimizer].moments  # a parameter and a gradient
    state = sum(parameter.numel() for parameter in model.parameters()) * itemsize * numbers
    activations = step_activations(graph, model.to(DTYPES[trainer.precision]), quality.traffic, sizes)
    return parts | {"parameters": np.full(len(sizes), state), "activations": activations}


def _features(graph: Graph, model: nn.Module | Program, quality: Quality, itemsize: int) -> _Ranks:
    """Returns the bytes of each rank's input rows, and of sparse ones after dropout."""
    features, owned = graph.features, quality.traffic.num_owned
    if not reads_sparse_rows(graph, model):
        return np.asarray(owned * features.shape[1] * itemsize)
    assert isinstance(features, SparseFeatures)
    stored = np.bincount(quality.partition.node_rank, np.diff(features.csr.indptr), len(owned)).astype(np.int64)
    return stored * (PLACE_BYTES + 2 * itemsize) + 8 * (owned + features.shape[1])


def _why(settings: Settings, layouts: dict[str, Any]) -> str:
    """Says whether another layout moves fewer words than the chosen one."""
    best = min(layouts, key=lambda name: (layouts[name]["words"]["max"], layouts[name]["memory"]))
    chosen, least = layouts["chosen"]["words"]["max"], layouts[best]["words"]["max"]
    if chosen == least:
        return f"partition.grid={settings.partition.grid}: no layout moves fewer words to its busiest rank"
    return f"{best} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {chosen:,}"


def _spread(values: np.ndarray) -> dict[str, Any]:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def _table(layouts: dict[str, Any]) -> list[str]:
    header = f"{'layout':<17}{'grid':>12}{'words, busiest':>16}{'words, all':>16}{'messages':>10}{'MiB a rank':>12}{'edges max/mean':>16}"
    return [header] + [
        f"{name:<17}{'x'.join(map(str, figures['grid'])):>12}{figures['words']['max']:>16,}{figures['words']['total']:>16,}"
        f"{figures['messages']['max']:>10,}{figures['memory'] / 2**20:>12.1f}{figures['balance']['edges']:>16.3f}"
        for name, figures in layouts.items()
    ]
