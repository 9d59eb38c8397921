"""job=plan: what a step of training or of a program moves and holds on every layout, from the partition alone; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine.tally import Exchange
from gnnkit.engine.trial import Sizes, Trial, activations, exchanges
from gnnkit.engine.volume import Volume, volume
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Split
from gnnkit.jobs.models import Given, ModelSource, Widths
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.choose import alternatives, assign, describe
from gnnkit.leader.cut import load
from gnnkit.leader.result import Result
from gnnkit.model.program import Nodes, Program, is_iterated
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.partition.traffic import Traffic
from gnnkit.settings import Settings, TrainerSettings

if TYPE_CHECKING:
    pass

_DTYPES = {4: torch.float32, 8: torch.float64}
_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 0}  # of each parameter, held by the optimiser


def plan(settings: Settings, graph: Graph | None, given: Given) -> Result:
    """Compares the layouts for the configured workers, node assignment and model, and says which to prefer.

    Words and messages are those of one training step that exchanges, forward and backward,
    or of one step of a program, to the word. Raises `UserError` for a chosen layout that
    cannot be. Other layouts that cannot be are left out.

    Args:
        settings: The configuration.
        graph: Instead of the data set.
        given: Instead of the configured model.
    """
    figures = run_in_child(_plan, settings, graph, given, patience=Patience.of(settings.timeout))
    return Result("plan", figures, figures.pop("summary"))


def _plan(settings: Settings, graph: Graph | None, given: Given) -> dict[str, Any]:
    graph, source = load(settings, graph), ModelSource(settings.model, given)
    if not settings.strategy.load().full_graph:
        raise UserError(
            f"job=plan: strategy={settings.strategy.name} exchanges no rows of layers, nothing is to be planned"
        )
    edge_width = _widths(graph)[1]
    widths = Widths(graph.features.shape[1], graph.num_classes, edge_width)
    model = source.make_model(widths, settings.seed) if source.trains else source.make_program()
    quality = measure(graph, assign(graph, settings.partition, settings.workers))
    layouts = {"chosen": layout(settings.trainer, graph, model, quality)}
    for name, other in alternatives(settings, graph, quality):
        with suppress(UserError):  # the model does not go with that grid
            layouts[name] = layout(settings.trainer, graph, model, other)
    best = min((name for name in layouts), key=lambda name: (layouts[name]["words"]["max"], layouts[name]["memory"]))
    chosen, least = layouts["chosen"]["words"]["max"], layouts[best]["words"]["max"]
    why = (
        f"partition.grid={settings.partition.grid}: no layout moves fewer words to its busiest rank"
        if chosen == least
        else f"{best} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {chosen:,}"
    )
    lines = [*describe(graph, settings, quality.partition.grid), *_table(layouts), why]
    return {"job": "plan", "model": source.name, "why": why, "layouts": layouts, "summary": "\n".join(lines)}


def layout(trainer: TrainerSettings, graph: Graph, model: nn.Module | Program, quality: Quality) -> dict[str, Any]:
    """The figures of one layout; lists are by rank."""
    itemsize = trainer.precision // 8
    moved, sizes = step_volume(graph, model, quality)
    grid = quality.partition.grid
    parts = {
        "features": quality.traffic.num_owned * graph.features.shape[1] * itemsize,
        "edges": np.array([16 * own.edges for own in sizes]),  # a source and an id each
    }
    if is_iterated(model):
        _, width = program_step(model, graph, quality.traffic, 0)
        parts["values"] = quality.traffic.num_owned * width * itemsize * 2  # before and after the step
    else:
        state = sum(p.numel() for p in model.parameters()) * itemsize * (2 + _MOMENTS[trainer.optimizer])
        parts["parameters"] = np.full(len(sizes), state)  # with gradients and what the optimiser keeps
        parts["activations"] = step_activations(graph, model.to(_DTYPES[itemsize]), quality.traffic, sizes)
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
        "memory": int(memory.max()),  # bytes; buffers that live for one operation, and the process itself, come on top
        "memory_of_busiest_rank": {name: int(number[busiest]) for name, number in parts.items()},
        "balance": quality.balance(),
    }


def step_volume(graph: Graph, model: nn.Module | Program, quality: Quality) -> tuple[Volume, list[Sizes]]:
    """What one step exchanges, and how many rows of each kind a rank has, added self-loops included."""
    grid = quality.partition.grid
    plain = replace(graph, features=np.empty((graph.num_nodes, 0), np.float32), edge_features=None)
    sizes: list[Sizes] = []

    def shards() -> Iterator[Shard]:
        for shard in cut_all(plain, quality.partition):
            looped = shard.with_self_loops() if getattr(model, "self_loops", False) else shard
            sizes.append(_sizes(looped))
            yield looped

    traffic = Traffic.of(shards())
    by_slice = [
        program_step(model, graph, traffic, s)[0]
        if is_iterated(model)
        else exchanges(model, *_widths(graph), traffic, s)
        for s in range(grid.slices)
    ]
    return volume(traffic, [own.edges for own in sizes], by_slice), sizes


def step_activations(
    graph: Graph, model: nn.Module, traffic: Traffic, sizes: Sequence[Sizes]
) -> Ids:  # [world_size] bytes
    """Counts the bytes that each rank keeps between the forward and the backward pass of a step.

    Args:
        graph: The graph, for the widths of features.
        model: The model.
        traffic: Rows exchanged between the shards.
        sizes: [world_size] rows of each rank.
    """
    slices = traffic.grid.slices
    by_slice = [activations(model, *_widths(graph), traffic, s) for s in range(slices)]
    return np.array([by_slice[rank % slices] @ [*astuple(own), 1] for rank, own in enumerate(sizes)], np.int64)


@torch.no_grad()
def program_step(program: Program, graph: Graph, traffic: Traffic, slice_: int) -> tuple[list[Exchange], int]:
    """Lists what a step exchanges, in order, on a rank of a slice. Also returns the width of values.

    Args:
        program: The program, tried on a single node.
        graph: The graph, for the widths of features.
        traffic: Rows exchanged between the shards.
        slice_: Slice of the rank.
    """
    width, edge_width = _widths(graph)
    trial = Trial(traffic, slice_, edge_width, torch.float64)
    nodes = Nodes(
        trial.adjacencies(1)[0],
        trial.comm,
        graph.num_nodes,
        graph.num_classes,
        features=torch.zeros(1, width, dtype=torch.float64),
        labels=torch.zeros(1, dtype=torch.int64),
        split=torch.tensor([Split.TRAIN], dtype=torch.int8),
    )
    x = program.start(nodes)
    trial.take_exchanges()  # the start's, which a run does not count either
    values = program.step(x, nodes)
    return trial.take_exchanges(), values.shape[1]


def _sizes(shard: Shard) -> Sizes:
    """Counts the rows of a shard."""
    own_sources = int(np.count_nonzero(np.asarray(shard.source_cell) == shard.cell))
    return Sizes(
        owned=len(shard.owned),
        cell_nodes=len(shard.cell_nodes),
        sources=len(shard.sources),
        targets=len(shard.targets),
        edges=shard.csc.num_edges,
        halo=len(shard.sources) - own_sources,
    )


def _widths(graph: Graph) -> tuple[int, int]:
    """Of features and edge features."""
    return graph.features.shape[1], 0 if graph.edge_features is None else graph.edge_features.shape[1]


def _spread(values: np.ndarray) -> dict[str, Any]:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def _table(layouts: dict[str, Any]) -> list[str]:
    header = f"{'layout':<17}{'grid':>12}{'words, busiest':>16}{'words, all':>16}{'messages':>10}{'MiB a rank':>12}{'edges max/mean':>16}"
    return [header] + [
        f"{name:<17}{'x'.join(map(str, figures['grid'])):>12}{figures['words']['max']:>16,}{figures['words']['total']:>16,}"
        f"{figures['messages']['max']:>10,}{figures['memory'] / 2**20:>12.1f}{figures['balance']['edges']:>16.3f}"
        for name, figures in layouts.items()
    ]
