"""Layouts of a graph, counted in a child and tried by some ranks -> predictions."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.config.settings import OPTIMIZERS, Settings, TrainerSettings
from gnnkit.engine.trial import Sizes
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.jobs.inputs import reads_sparse
from gnnkit.jobs.models import Widths
from gnnkit.jobs.order import Order
from gnnkit.jobs.planned_step import graph_widths, program_step, reads_sparse_rows, step_activations, step_volume
from gnnkit.jobs.rank_job import DTYPES, input_dtype
from gnnkit.jobs.rehearse import FIRST, Rehearsal, counts_cpu, import_for_steps, num_processes, rehearse
from gnnkit.kernels.sparse_rows import PLACE_BYTES
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.memory import available_memory
from gnnkit.model.program import Program, is_iterated
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.quality import Quality
from gnnkit.partition.shard import Shard, cut, cut_all
from gnnkit.plan.choose import rough_work, sizes_of, work_of
from gnnkit.plan.machine import Link, Machine
from gnnkit.plan.predict import Load, predict
from gnnkit.plan.sample import sampled
from gnnkit.prepare.cut import read
from gnnkit.prepare.inputs import load, with_kept
from gnnkit.ranges import num_cores
from gnnkit.result.folder import PREPARED
from gnnkit.storage import passing
from gnnkit.strategy import ExecutionStrategy
from gnnkit.task import NodeTask, Task

TRIED = "tried"  # folder in the run folder, of the shards that are tried
FEW = 500  # nodes that are trained before the trial
# Of a rank, in a trial: of larger graphs a part is tried. Its rows fit no cache, as
# those of the graph do not.
TRIED_EDGES = 1_500_000

_Ranks = np.ndarray[Any, Any]  # [world_size]
# Gives the name and quality of each layout to compare. The first one is the base.
Find = Callable[[Settings, Graph], Iterable[tuple[str, Quality]]]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The layouts of a graph, compared."""

    layouts: dict[str, dict[str, Any]]  # figures by name, in the order found
    machine: Machine | None  # None: nothing was tried, so no layout has seconds
    about: list[str]  # lines on the graph, for people
    num_nodes: int
    num_edges: int


def predicts(order: Order) -> bool:
    """Says whether seconds and memory are predicted: of models trained for nodes."""
    return order.source.trains and issubclass(order.settings.task.load(), NodeTask)


def foresee(order: Order, find: Find, meanwhile: Callable[[], None] = lambda: None) -> Foreseen:
    """Counts words, messages and memory of a step on each layout, and predicts seconds.

    The counts are exact. Seconds and memory are predicted from a short trial, where the
    model is trained and the task is about nodes.

    Args:
        order: What was asked, with a strategy of full graphs and the run folder.
        find: The layouts.
        meanwhile: Called a few times a second.
    """
    settings, tried = order.settings, order.run_folder / TRIED
    tries = predicts(order)
    try:
        patience = Patience.of(settings.timeout)
        beside = import_for_steps if tries else lambda: None
        work = functools.partial(survey, target=tried if tries else None)
        found = run_in_child(work, order, find, patience=patience, beside=beside, meanwhile=meanwhile)
        layouts = found["layouts"]
        loads = {name: figures.pop("load") for name, figures in layouts.items()}
        machine = None
        if tries:
            rehearsal = rehearse(order, tried, sorted({*found["tried"].values()}), meanwhile)
            machine, slowdown = machine_of(settings, rehearsal), _slowdown(settings, rehearsal)
            for name, counts in loads.items():
                measured = rehearsal.layouts[found["tried"][name]]
                layouts[name] |= predict(machine, Load.of(counts), measured, slowdown).to_dict()
        return Foreseen(layouts, machine, found["about"], found["num_nodes"], found["num_edges"])
    finally:
        shutil.rmtree(tried, ignore_errors=True)


def machine_of(settings: Settings, rehearsal: Rehearsal) -> Machine:
    """Returns this machine, or the cluster whose numbers are given.

    Args:
        settings: The configuration.
        rehearsal: What this machine does.
    """
    plan = settings.plan
    crowd = 1.0 if plan.is_cluster else settings.workers_here / num_processes(settings)
    crowd, single = max(crowd, 1), rehearsal.bandwidth == 0
    within = Link(0.0, np.inf) if single else Link(rehearsal.latency * crowd, rehearsal.bandwidth / crowd)
    return Machine(
        flops=rehearsal.flops if plan.flops is None else plan.flops * 1e9,
        within=within,
        between=Link(
            within.latency if plan.latency is None else plan.latency * 1e-6,
            within.bandwidth if plan.bandwidth is None else plan.bandwidth * 1e9,
        ),
        memory=available_memory() if plan.memory is None else plan.memory * 2**30 * settings.ranks_per_host,
        ranks_per_host=settings.ranks_per_host,
        base=rehearsal.base,
        step=rehearsal.step,
    )


def _slowdown(settings: Settings, rehearsal: Rehearsal) -> float:
    """Returns seconds of a rank of the run by seconds of a rank of the trial.

    Ranks beyond the cores of this machine share these in turn. Ranks of a cluster have
    cores of their own.

    Args:
        settings: The configuration.
        rehearsal: What this machine does.
    """
    plan = settings.plan
    if plan.flops is not None:
        return rehearsal.flops / (plan.flops * 1e9)
    if plan.is_cluster:
        return 1.0
    at_once = num_cores() if counts_cpu(settings) else num_processes(settings)
    return max(settings.workers_here / at_once, 1)


def survey(order: Order, find: Find, *, target: Path | None) -> dict[str, Any]:
    """Counts the layouts, and saves parts of their busiest shards. Returns plain data.

    Args:
        order: What was asked, with a strategy of full graphs.
        find: The layouts.
        target: Folder of the shards. None: nothing is tried.
    """
    settings, source, links = order.settings, order.source, None
    graph = load(settings, order.graph)
    task: Task = settings.task.create()
    if source.trains:
        graph, links = read(settings, graph)
    strategy: ExecutionStrategy = settings.create_strategy()
    graph, kept = with_kept(
        graph, settings.input_rows, reads_sparse(settings, source, strategy), settings.features.dtype
    )
    counted_graph = graph if settings.embedding is None else _with_width(graph, settings.embedding)
    width, edge_width = graph_widths(counted_graph)
    widths = Widths(width, task.num_outputs(graph.num_classes), edge_width, graph.num_relations)
    model = source.make_model(widths, settings.seed, task) if source.trains else source.make_program()
    # Learned rows change, and where edges are predicted each epoch has other edges.
    keeps_sums = strategy.steps.keep_sums and settings.embedding is None and links is None
    adds = not source.trains or getattr(model, "adds_rows_itself", False)
    inputs = (None if adds else input_dtype(settings)) or DTYPES[settings.trainer.precision]
    if target is not None:
        _save_few(graph, num_processes(settings), target / FIRST / PREPARED)
    layouts: dict[str, Any] = {}
    tried: dict[str, str] = {}  # the first layout with the same cut, by name
    cuts: dict[int, str] = {}
    for name, quality in find(settings, graph):
        tried[name] = cuts.setdefault(id(quality), name)
        if tried[name] != name:
            if tried[name] in layouts:
                layouts[name] = layouts[tried[name]]
            continue
        try:
            figures, counted = layout(
                settings.trainer, counted_graph, model, quality, keeps_sums=keeps_sums, inputs=inputs
            )
            far_messages, far_bytes = quality.traffic.far(settings.ranks_per_host)
            counted = replace(counted, far_messages=far_messages, far_bytes=far_bytes)
        except UserError:  # the model does not go with that grid
            if not layouts:
                raise
            continue
        if target is not None:
            counted = _save_parts(settings, graph, quality, counted, target / name)
        layouts[name] = figures | {"load": counted.to_dict()}
    return {
        "layouts": layouts,
        "tried": {name: tried[name] for name in layouts},
        "about": [sizes_of(graph), *kept],
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
    }


def _with_width(graph: Graph, width: int) -> Graph:
    """Returns the graph with zeros, which take no memory, in place of learned rows."""
    return replace(graph, features=np.broadcast_to(np.zeros(1, np.float32), (graph.num_nodes, width)))


def _save_few(graph: Graph, num_ranks: int, target: Path) -> None:
    """Saves shards of few nodes of the graph, half of which train and half validate.

    Args:
        graph: The whole graph.
        num_ranks: Number of shards.
        target: Folder of the shards.
    """
    owner = np.arange(graph.num_nodes) * num_ranks // max(graph.num_nodes, 1)
    partition = Partition(owner.astype(np.int32), None, Grid(num_ranks, 1, 1))
    few, partition = sampled(graph, partition, min(1.0, FEW / max(graph.num_nodes, 1)))
    split = np.where(np.arange(few.num_nodes) % 2, Split.VAL, Split.TRAIN).astype(np.int8)
    few = replace(few, split=split, labels=np.zeros_like(few.labels))
    for shard in cut_all(few, partition):
        _save(shard, graph, target / str(shard.rank))


def _save(shard: Shard, graph: Graph, target: Path) -> None:
    """Saves a shard of few nodes of the graph, which may lack the largest class."""
    with passing():
        replace(shard, num_classes=graph.num_classes).save(target)


def _save_parts(settings: Settings, graph: Graph, quality: Quality, counted: Load, target: Path) -> Load:
    """Saves a part of the shard of the busiest ranks, one for each process of a trial.

    All layouts are tried on the same share of the graph: what fits a cache on one fits
    it on the others.

    Args:
        settings: The configuration.
        graph: The whole graph.
        quality: The measured layout.
        counted: The work of a step.
        target: Folder of the shards.

    Returns:
        The work, with the ranks that are tried, and their shares.
    """
    held, owned = quality.num_held, quality.traffic.num_owned
    busy = held / max(held.max(), 1) + owned / max(owned.max(), 1)
    busiest = np.argsort(-busy, kind="stable").tolist()
    ranks = [busiest[process % len(busiest)] for process in range(num_processes(settings))]
    share = min(1.0, TRIED_EDGES * settings.workers / max(graph.num_edges, 1))
    smaller, partition = sampled(graph, quality.partition, share)
    shares: list[float] = []
    for process, rank in enumerate(ranks):
        shard = cut(smaller, partition, rank)
        _save(shard, graph, target / str(process))
        shares.append(rough_work(shard.csc.num_edges, len(shard.owned)) / max(rough_work(held[rank], owned[rank]), 1))
    return replace(counted, tried=ranks, shares=shares)


def layout(
    trainer: TrainerSettings,
    graph: Graph,
    model: nn.Module | Program,
    quality: Quality,
    *,
    keeps_sums: bool,
    inputs: torch.dtype,
) -> tuple[dict[str, Any], Load]:
    """Returns the figures of one layout, and the work of a step. Lists are by rank.

    `memory` is the largest of all ranks, in bytes. Buffers of a single operation and
    the process itself come on top.

    Args:
        trainer: Precision and optimiser.
        graph: The whole graph.
        model: A model that is trained, or a program.
        quality: The measured partition.
        keeps_sums: Whether steps keep the sums over fixed input rows.
        inputs: Type of input rows.
    """
    dtype = DTYPES[trainer.precision]
    if not is_iterated(model):
        model = model.to(dtype)
    moved, sizes = step_volume(graph, model, quality, keeps_sums=keeps_sums, inputs=inputs)
    grid = quality.partition.grid
    parts = _memory(trainer, graph, model, quality, sizes, inputs)
    memory = np.sum(list(parts.values()), axis=0)
    busiest = int(memory.argmax())
    figures = {
        "grid": [grid.rows, grid.cols, grid.slices],
        "words": _spread(moved.received)
        | {
            "gathered": moved.total("gather").tolist(),
            "reduced": moved.total("reduce").tolist(),
            "sliced": moved.total("slice").tolist(),
        },
        "messages": _spread(moved.messages),
        "bytes_sent": _spread(moved.bytes_sent),
        "memory": int(memory.max()),
        "memory_of_busiest_rank": {name: int(number[busiest]) for name, number in parts.items()},
        "balance": quality.balance(),
        "work": work_of(quality),
    }
    gradient = 0 if is_iterated(model) else sum(p.numel() for p in model.parameters()) * dtype.itemsize
    return figures, Load(moved.messages, moved.bytes_received, memory, moved.largest, gradient, (), (), (), ())


def _memory(
    trainer: TrainerSettings,
    graph: Graph,
    model: nn.Module | Program,
    quality: Quality,
    sizes: list[Sizes],
    inputs: torch.dtype,
) -> dict[str, _Ranks]:
    """Returns the bytes of each rank, by purpose.

    Args:
        trainer: Precision and optimiser.
        graph: The whole graph.
        model: A model that is trained, or a program.
        quality: The measured partition.
        sizes: The sizes of each rank.
        inputs: Type of input rows.
    """
    dtype = DTYPES[trainer.precision]
    parts = {
        "features": _features(graph, model, quality, dtype, inputs),
        "edges": np.array([16 * own.edges for own in sizes]),  # a source and an id each
    }
    if is_iterated(model):
        _, width = program_step(model, graph, quality.traffic, 0)
        return parts | {"values": quality.traffic.num_owned * width * dtype.itemsize * 2}  # before and after the step
    numbers = 2 + OPTIMIZERS[trainer.optimizer].moments  # a parameter and a gradient
    state = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize * numbers
    activations = step_activations(graph, model, quality.traffic, sizes, inputs)
    return parts | {"parameters": np.full(len(sizes), state), "activations": activations}


def _features(
    graph: Graph, model: nn.Module | Program, quality: Quality, dtype: torch.dtype, inputs: torch.dtype
) -> _Ranks:
    """Returns the bytes of each rank's input rows, and of sparse ones after dropout.

    Numbers of sparse rows are of `dtype`, those of dense rows of type `inputs`.
    """
    features, owned = graph.features, quality.traffic.num_owned
    if not reads_sparse_rows(graph, model):
        return np.asarray(owned * features.shape[1] * inputs.itemsize)
    assert isinstance(features, SparseFeatures)
    stored = np.bincount(quality.partition.node_rank, np.diff(features.csr.indptr), len(owned)).astype(np.int64)
    return stored * (PLACE_BYTES + 2 * dtype.itemsize) + 8 * (owned + features.shape[1])


def _spread(values: _Ranks) -> dict[str, Any]:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def table(layouts: dict[str, Any]) -> list[str]:
    """Returns the figures of all layouts, a line for each."""
    header = (
        f"{'layout':<22}{'grid':>12}{'s an epoch':>12}{'MiB a rank':>12}{'words, busiest':>16}{'words, all':>16}"
        f"{'messages':>10}{'edges max/mean':>16}"
    )
    return [header] + [
        f"{name:<22}{'x'.join(map(str, figures['grid'])):>12}{_seconds(figures):>12}{figures['memory'] / 2**20:>12.1f}"
        f"{figures['words']['max']:>16,}{figures['words']['total']:>16,}{figures['messages']['max']:>10,}"
        f"{figures['balance']['edges']:>16.3f}"
        for name, figures in layouts.items()
    ]


def _seconds(figures: dict[str, Any]) -> str:
    return f"{figures['seconds']:.4g}" if "seconds" in figures else "-"


def pays(foreseen: Foreseen, name: str) -> list[str]:
    """Says in a line what decides the seconds of a layout: words or compute.

    Args:
        foreseen: The layouts.
        name: Of the layout.
    """
    figures = foreseen.layouts[name]
    if "seconds" not in figures or not figures["words"]["max"]:
        return []
    share = figures["seconds_of"]["exchange"] / figures["seconds"]
    what = (
        "fewer words pay: try partition=auto, partition.border=min_words, and grids of several columns"
        if share > 0.2
        else "compute decides: even out edges before words"
    )
    degree = foreseen.num_edges / max(foreseen.num_nodes, 1)
    return [f"mean degree {degree:.1f}: exchange is {share:.0%} of the step, {what}"]
