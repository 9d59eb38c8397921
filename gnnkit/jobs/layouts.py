"""Compares layouts of a graph by counting in a child process and by trials on ranks."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from gnnkit.config.settings import OPTIMIZERS, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.dispatch import import_for_training
from gnnkit.jobs.models import Widths, reads_sparse
from gnnkit.jobs.order import Order
from gnnkit.jobs.rank_job import DTYPES, RankJob, input_dtype
from gnnkit.jobs.run import start_ranks
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.plan.choose import CHOSEN, UNTRIED_MEMORY_SHARE, shape, sizes_of
from gnnkit.leader.plan.layout import LayoutFigures, StepCosts, StepLoad, Timing, count_layout
from gnnkit.leader.plan.machine import Machine, MachineLink, Tried
from gnnkit.leader.plan.step import graph_widths
from gnnkit.model.program import Program
from gnnkit.partition.quality import Quality
from gnnkit.partition.shard import cut, cut_all
from gnnkit.prepare.cut import Prepared, read
from gnnkit.prepare.inputs import load, with_kept
from gnnkit.result.folder import PREPARED
from gnnkit.strategy import ExecutionStrategy
from gnnkit.task import NodeTask, Task
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import num_cores
from gnnkit.utils.storage import passing

if TYPE_CHECKING:
    from gnnkit.jobs.trial_steps import MachineFigures

FOLDER = "tried"  # subfolder of the run folder with the shards of tried layouts
TRIED_EDGES = 30_000_000  # maximum number of edges of all tried layouts. At least one is tried
CROWDED = 4  # maximum number of ranks per core for trials with all ranks

# Yields the name and quality of each layout to compare. The first one is the base.
Find = Callable[[Settings, Graph], Iterable[tuple[str, Quality]]]


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of a graph, counted and timed."""

    by_name: dict[str, LayoutFigures]
    machine: Machine | None  # None: no trials
    about: list[str]  # lines about the graph
    num_nodes: int
    num_edges: int
    by_formula: bool = False  # whether seconds are predicted for another machine


def can_try(order: Order) -> bool:
    """Whether time and memory can be measured: for trained models of node tasks."""
    return order.source.trains and issubclass(order.settings.task.load(), NodeTask)


def needs_formula(settings: Settings) -> bool:
    """Whether this machine cannot run the ranks as configured."""
    too_many = settings.workers * settings.threads > CROWDED * num_cores()
    return settings.plan.is_cluster or settings.workers_here < settings.workers or too_many


def compare_layouts(order: Order, find: Find, meanwhile: Callable[[], None] = lambda: None) -> Layouts:
    """Counts words, messages and tensors of a step on each layout, and times an epoch.

    The counts are exact. Seconds and memory are those of a few epochs with all ranks on
    this machine. For other machines a formula computes them, see `Machine.timing`.

    Args:
        order: The request, with a strategy of full graphs and the run folder.
        find: The layouts.
        meanwhile: Called a few times a second.
    """
    settings, folder = order.settings, order.run_folder / FOLDER
    tries = can_try(order)
    try:
        patience = Patience.of(settings.timeout)
        beside = import_for_training if tries else lambda: None
        work = functools.partial(count_layouts, folder=folder if tries else None)
        counted = run_in_child(work, order, find, patience=patience, beside=beside, meanwhile=meanwhile)
        layouts = {name: LayoutFigures(**figures) for name, figures in counted["layouts"].items()}
        machine, timings = _try(order, folder, counted, meanwhile) if tries else (None, {})
        same = counted["same"]  # layouts whose cut is that of another one, by name
        layouts = {name: replace(layouts[same[name]], timing=timings.get(same[name])) for name in same}
        sizes = {name: counted[name] for name in ("about", "num_nodes", "num_edges")}
        return Layouts(layouts, machine, **sizes, by_formula=tries and needs_formula(settings))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try(
    order: Order, folder: Path, counted: dict[str, Any], meanwhile: Callable[[], None]
) -> tuple[Machine, dict[str, Timing]]:
    """Runs the trials on ranks. Returns the machine, and timings by layout."""
    from gnnkit.jobs import trial_steps

    settings = order.settings
    job = RankJob(settings, folder, Prepared([], {}, "", "", "", None, []), order.model)
    if needs_formula(settings):
        work, num_ranks = functools.partial(trial_steps.try_ranks, job, counted["ranks"]), num_processes(settings)
    else:
        prepared = {name: Prepared(**facts) for name, facts in counted["prepared"].items()}
        work, num_ranks = functools.partial(trial_steps.try_layouts, job, prepared), settings.world_size
    launcher = settings.create_launcher(additional=True)
    figures = start_ranks(work, settings, num_ranks, launcher, meanwhile)
    measured = trial_steps.MachineFigures(**figures["machine"])
    machine = machine_of(settings, measured)
    if not needs_formula(settings):
        return machine, {name: Timing(**timing) for name, timing in figures["timings"].items()}
    slowdown = measured.flops / machine.flops
    loads = {name: StepLoad(**load) for name, load in counted["loads"].items()}
    tried = {name: [Tried(**one) for one in ranks] for name, ranks in figures["tried"].items()}
    return machine, {name: machine.timing(loads[name], ranks, slowdown) for name, ranks in tried.items()}


def num_processes(settings: Settings) -> int:
    """Returns how many processes time single-rank shards concurrently.

    One process per available core, and at least two, to measure an exchange.
    """
    return min(settings.workers, max(num_cores() // settings.threads, 2))


def machine_of(settings: Settings, measured: MachineFigures) -> Machine:
    """Returns this machine, or the cluster in the section `plan`."""
    plan, within = settings.plan, MachineLink(measured.latency, measured.bandwidth)
    between = MachineLink(
        within.latency if plan.latency is None else plan.latency * 1e-6,
        within.bandwidth if plan.bandwidth is None else plan.bandwidth * 1e9,
    )
    return Machine(
        flops=measured.flops if plan.flops is None else plan.flops * 1e9,
        within=within,
        between=between,
        memory=available_memory() if plan.memory is None else plan.memory * 2**30 * settings.ranks_per_host,
        ranks_per_host=settings.ranks_per_host,
        base=measured.base,
    )


@dataclass(slots=True)
class _Counter:
    """Counts the layouts of one graph, and saves the shards to try."""

    settings: Settings
    graph: Graph
    counted_graph: Graph  # with zeros in place of learned rows
    model: nn.Module | Program
    costs: StepCosts
    layouts: dict[str, LayoutFigures] = field(default_factory=dict)
    loads: dict[str, StepLoad] = field(default_factory=dict)
    qualities: dict[str, Quality] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)  # layout -> first layout with the same partition

    @classmethod
    def of(cls, order: Order) -> tuple[_Counter, list[str]]:
        """Reads the graph. Also returns lines about it."""
        settings, source, links = order.settings, order.source, None
        graph = load(settings, order.graph)
        task: Task = settings.task.create()
        if source.trains:
            graph, links = read(settings, graph, relational=source.reads_relations)
        strategy: ExecutionStrategy = settings.create_strategy()
        sparse = reads_sparse(settings, source, strategy)
        graph, lines = with_kept(graph, settings.input_rows, sparse, settings.features.dtype)
        counted_graph = graph if settings.embedding is None else _with_width(graph, settings.embedding)
        width, edge_width = graph_widths(counted_graph)
        types = graph.num_relations, len(graph.schema.node_types)
        widths = Widths(width, task.num_outputs(graph.num_classes), edge_width, *types, graph.schema)
        model = source.make_model(widths, settings.seed, task) if source.trains else source.make_program()
        dtype = DTYPES[settings.trainer.precision]
        adds = not source.trains or getattr(model, "adds_rows_itself", False)
        costs = StepCosts(
            dtype,
            inputs=(None if adds else input_dtype(settings)) or dtype,
            moments=OPTIMIZERS[settings.trainer.optimizer].moments,
            # Learned rows change, and link prediction draws new edges each epoch.
            keeps_sums=strategy.steps.keep_sums and settings.embedding is None and links is None,
        )
        return cls(settings, graph, counted_graph, model, costs), [sizes_of(graph), *lines]

    def count(self, find: Find) -> None:
        """Counts the supported layouts. Raises `UserError` if the first is not."""
        cuts: dict[int, str] = {}
        for name, quality in find(self.settings, self.graph):
            first = cuts.setdefault(id(quality), name)
            if first == name:
                try:
                    hosts = self.settings.ranks_per_host
                    layout, load = count_layout(self.costs, self.counted_graph, self.model, quality, hosts)
                except UserError:
                    if not self.layouts:
                        raise
                    continue
                self.layouts[name], self.loads[name], self.qualities[name] = layout, load, quality
            if first in self.layouts:
                self.same[name] = first

    def save_all(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Saves all shards of the layouts to try. Returns the `Prepared` by name."""
        prepared: dict[str, dict[str, Any]] = {}
        for name in self._to_try(self.graph.num_edges, self.settings.workers_here):
            quality = self.qualities[name]
            for shard in cut_all(self.graph, quality.partition):
                shard.save(folder / name / PREPARED / str(shard.rank))
            grid = shape(quality.partition.grid)
            facts = Prepared(
                *(grid, quality.balance(), "", "", "", None, quality.neighbours),
                num_nodes=self.graph.num_nodes,
                num_edges=self.graph.num_edges,
                edge_cut=quality.edge_cut,
                schema=self.graph.schema.as_plain(),
            )
            prepared[name] = facts.to_dict()
        return prepared

    def save_busiest(self, folder: Path) -> dict[str, list[int]]:
        """Saves the shards of the busiest ranks of the layouts to try.

        Returns the rank of each process, by layout.
        """
        processes, ranks = num_processes(self.settings), dict[str, list[int]]()
        for name in self._to_try(-(-self.graph.num_edges * processes // self.settings.workers), processes):
            quality = self.qualities[name]
            held, owned = quality.num_held, quality.traffic.num_owned
            busy = held / max(held.max(), 1) + owned / max(owned.max(), 1)
            busiest = np.argsort(-busy, kind="stable").tolist()
            ranks[name] = [busiest[process % len(busiest)] for process in range(processes)]
            for process, rank in enumerate(ranks[name]):
                cut(self.graph, quality.partition, rank).save(folder / name / str(process))
        return ranks

    def _to_try(self, num_edges: int, processes: int) -> list[str]:
        """Selects the layouts with the least counted work that fit this machine.

        Args:
            num_edges: Number of edges in a layout's shards.
            processes: Number of processes that try a layout concurrently.
        """
        room = UNTRIED_MEMORY_SHARE * available_memory()
        fitting = [name for name, load in self.loads.items() if load.host_tensors(processes) <= room]
        fitting.sort(key=lambda name: (name != CHOSEN, self.layouts[name].work))
        return fitting[: max(TRIED_EDGES // max(num_edges, 1), 1)]


def count_layouts(order: Order, find: Find, *, folder: Path | None) -> dict[str, Any]:
    """Counts the layouts, and saves the shards to try. Returns plain data.

    Args:
        order: The request, with a full-graph strategy.
        find: The layouts.
        folder: Destination of the shards. None: no trials.
    """
    counter, about = _Counter.of(order)
    counter.count(find)
    prepared, ranks = dict[str, dict[str, Any]](), dict[str, list[int]]()
    if folder is not None:
        with passing():
            if needs_formula(order.settings):
                ranks = counter.save_busiest(folder)
            else:
                prepared = counter.save_all(folder)
    return {
        "layouts": {name: asdict(layout) for name, layout in counter.layouts.items()},
        "loads": {name: asdict(load) for name, load in counter.loads.items()},
        "same": counter.same,
        "prepared": prepared,
        "ranks": ranks,
        "about": about,
        "num_nodes": counter.graph.num_nodes,
        "num_edges": counter.graph.num_edges,
    }


def _with_width(graph: Graph, width: int) -> Graph:
    """Returns the graph with a broadcast zero in place of learned rows."""
    return replace(graph, features=np.broadcast_to(np.zeros(1, np.float32), (graph.num_nodes, width)))
