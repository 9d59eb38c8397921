"""Compares layouts of a graph by counting in a child process and by trials on ranks."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gnnkit.config.settings import OPTIMIZERS, Settings
from gnnkit.errors import UserError
from gnnkit.exchange import RowExchange
from gnnkit.graph import Graph
from gnnkit.jobs.job import import_for_training
from gnnkit.jobs.models import Widths, reads_sparse
from gnnkit.jobs.order import Order
from gnnkit.jobs.rank_job import DTYPES, RankJob, input_dtype
from gnnkit.jobs.run import start_ranks
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.model.hetero import HeteroModel
from gnnkit.partition.quality import Quality
from gnnkit.partition.shard import cut_all
from gnnkit.prepare.facts import Prepared
from gnnkit.prepare.inputs import load, with_kept
from gnnkit.prepare.run_partition import shape, sizes_of
from gnnkit.prepare.steps import read, sampling_rule
from gnnkit.result.result import PREPARED
from gnnkit.strategy import ExecutionStrategy
from gnnkit.task import Task
from gnnkit.utils.documents import Json
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import num_cores
from gnnkit.utils.storage import passing
from gnnkit_plan.candidates import CHOSEN, Candidates, measure_candidates
from gnnkit_plan.layout import MAX_TRIALS, LayoutFigures, Room, StepCosts, Trial, count_layout, to_try, with_trials
from gnnkit_plan.step import graph_widths

FOLDER = "tried"  # subfolder of the run folder with the shards of tried layouts
TRIED_EDGES = 30_000_000  # maximum number of edges of all tried layouts. At least one is tried
CROWDED = 4  # maximum number of ranks per core for trials with all ranks


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of a graph, counted and partly tried."""

    by_name: dict[str, LayoutFigures]
    room: Room
    about: list[str]  # lines about the graph
    num_nodes: int
    num_edges: int


def can_try(order: Order) -> bool:
    """Whether time and memory can be measured: for trained models of node tasks."""
    return order.source.trains and not order.settings.task.load().pairs


def is_elsewhere(settings: Settings) -> bool:
    """Whether the ranks run on other machines, or too many of them for this one."""
    too_many = settings.workers * settings.threads > CROWDED * num_cores()
    return settings.plan.bandwidth is not None or settings.workers_here < settings.workers or too_many


def compare_layouts(order: Order, sections: Candidates, meanwhile: Callable[[], None] = lambda: None) -> Layouts:
    """Counts words, messages and tensors of a step on each layout, and tries a few.

    The counts are exact. A trial measures an epoch with all ranks on this machine.

    Args:
        order: The request, with a strategy of full graphs and the run folder.
        sections: The layouts by name, the configured one first.
        meanwhile: Called a few times a second.
    """
    settings, folder = order.settings, order.run_folder / FOLDER
    tries = can_try(order) and not is_elsewhere(settings)
    try:
        patience = Patience.of(settings.timeout)
        beside = import_for_training if tries else lambda: None
        work = functools.partial(count_layouts, folder=folder if tries else None)
        counts = run_in_child(work, order, sections, patience=patience, beside=beside, meanwhile=meanwhile)
        layouts = {name: LayoutFigures(**figures) for name, figures in counts.pop("layouts").items()}
        if trials := counts.pop("trials"):
            layouts = _try(order, folder, layouts, trials, meanwhile)
        return Layouts(layouts, room_of(settings), **counts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try(
    order: Order,
    folder: Path,
    layouts: Mapping[str, LayoutFigures],
    trial_facts: Mapping[str, Json],
    meanwhile: Callable[[], None],
) -> dict[str, LayoutFigures]:
    """Runs the trials on ranks of this machine. Returns the layouts with their results.

    Args:
        trial_facts: The fields of a `Prepared`, by layout.
    """
    from gnnkit_plan import trial_steps

    settings = order.settings
    job = RankJob(settings, folder, Prepared([], {}, "", [], "", None, []), order.model)
    shards = {name: Prepared(**facts) for name, facts in trial_facts.items()}
    work = functools.partial(trial_steps.try_layouts, job, shards)
    launcher = settings.create_launcher(additional=True)
    figures = start_ranks(work, settings, settings.world_size, launcher, meanwhile)
    return with_trials(layouts, {name: Trial(**trial) for name, trial in figures["trials"].items()}, figures["base"])


def room_of(settings: Settings) -> Room:
    """Returns the memory of this host, or of a rank as configured."""
    if settings.plan.memory is not None:
        return Room(settings.plan.memory * 2**30, None)
    return Room(available_memory(), settings.workers_here)


def count_layouts(order: Order, sections: Candidates, *, folder: Path | None) -> Json:
    """Counts the layouts, and saves the shards to try. Returns plain data.

    Raises `UserError` if the first layout is not supported. Omits other unsupported
    ones.

    Args:
        order: The request, with a full-graph strategy.
        sections: The layouts.
        folder: Destination of the shards. If None, no trials.
    """
    settings = order.settings
    graph, about, count = _reader(order)
    qualities = measure_candidates(settings, graph, sections)
    layouts, trials = dict[str, LayoutFigures](), dict[str, Json]()
    for name, quality in qualities.items():
        try:
            layouts[name] = count(quality)
        except UserError:
            if not layouts:
                raise
    if folder is not None:
        with passing():
            for name in _names_to_try(settings, layouts, graph.num_edges):
                trials[name] = _save(graph, qualities[name], folder / name)
    counts = {name: asdict(layout) for name, layout in layouts.items()}
    sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    return {"layouts": counts, "trials": trials, "about": about, **sizes}


def _reader(order: Order) -> tuple[Graph, list[str], Callable[[Quality], LayoutFigures]]:
    """Reads the graph. Also returns lines about it, and the function that counts."""
    settings, source = order.settings, order.source
    graph = load(settings, order.graph)
    task: Task = settings.task.create()
    graph, rows = read(settings, graph, relational=source.reads_relations, rule=sampling_rule(settings))
    strategy: ExecutionStrategy = settings.create_strategy()
    sparse = reads_sparse(settings, source, strategy)
    graph, lines = with_kept(graph, settings.input_rows, sparse, settings.features.dtype)
    counted_graph = graph if settings.embedding is None else _with_width(graph, settings.embedding)
    width, edge_width = graph_widths(counted_graph)
    types = graph.num_relations, len(graph.schema.node_types)
    outputs = task.num_outputs(graph.num_classes)
    widths = Widths(width, outputs, edge_width, *types, graph.schema, num_targets=rows.num_outputs)
    model = source.make_model(widths, settings.seed, task)
    if isinstance(model, HeteroModel):
        lines = [*lines, "words are an upper bound: layers of dictionaries exchange the rows of some node types only"]
    dtype = DTYPES[settings.trainer.precision]
    costs = StepCosts(
        dtype,
        inputs=(None if getattr(model, "adds_rows_itself", False) else input_dtype(settings)) or dtype,
        moments=OPTIMIZERS[settings.trainer.optimizer].moments,
        # Learned rows change, and link prediction draws new edges each epoch.
        keeps_sums=strategy.steps.keep_sums and settings.embedding is None and not rows.drawn,
    )
    exchange: RowExchange = getattr(strategy, "exchange", RowExchange())

    def count(quality: Quality) -> LayoutFigures:
        exchange.check_layout(quality.traffic)
        return count_layout(costs, counted_graph, model, quality)

    return graph, [sizes_of(graph), *lines], count


def _names_to_try(settings: Settings, layouts: Mapping[str, LayoutFigures], num_edges: int) -> list[str]:
    """Selects the layouts to try: those that fit, and the configured one first."""
    room = Room(available_memory(), settings.workers)
    fitting = {name: layout for name, layout in layouts.items() if room.holds(layout)}
    names = dict.fromkeys([*(name for name in fitting if name == CHOSEN), *to_try(fitting)])
    return list(names)[: max(min(TRIED_EDGES // max(num_edges, 1), MAX_TRIALS), 1)]


def _save(graph: Graph, quality: Quality, folder: Path) -> Json:
    """Saves a layout's shards for its trial. Returns the facts about them."""
    for shard in cut_all(graph, quality.partition):
        shard.save(folder / PREPARED / str(shard.rank))
    return Prepared(
        *(shape(quality.partition.grid), quality.balance(), "", [], "", None, quality.neighbours),
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        edge_cut=quality.edge_cut,
        schema=graph.schema.as_plain(),
    ).to_dict()


def _with_width(graph: Graph, width: int) -> Graph:
    """Returns the graph with a broadcast zero in place of learned rows."""
    return graph.evolve(features=np.broadcast_to(np.zeros(1, np.float32), (graph.num_nodes, width)))
