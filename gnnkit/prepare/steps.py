"""The steps from a graph as read to the graph that is partitioned.

Runs, stores and imports share them. A step returns a new draft, and adds the lines that
describe what it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph, Split, labelled
from gnnkit.graph.edge_order import in_listed_order, with_inverse_edges
from gnnkit.graph.split import time_spans
from gnnkit.graph.times import ALWAYS, NEVER, has_time, show_time
from gnnkit.launch.progress import warnings_in_lines
from gnnkit.prepare.facts import Needs
from gnnkit.prepare.inputs import (
    check_implied_task,
    check_relation,
    describe_repeated,
    first_later,
    load,
    save_ids,
    with_inputs,
    with_kept,
)
from gnnkit.prepare.trained import as_read
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.task import Task
from gnnkit.task.link_split import with_edges_before

_SPLIT_NAMES = {"train": "training", "val": "validation"}  # names of splits in messages


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph between two steps of its preparation."""

    graph: Graph
    rows: TaskRows = NODES  # the rows to predict
    notes: tuple[str, ...] = ()  # lines on the steps so far
    rounding: str = ""  # the line on rounded features, if they are rounded

    def then(self, graph: Graph, notes: Sequence[str] = (), rows: TaskRows | None = None) -> Draft:
        """Returns the draft after a step."""
        return replace(self, graph=graph, rows=self.rows if rows is None else rows, notes=(*self.notes, *notes))


def prepare_graph(settings: Settings, needs: Needs, graph: Graph, folder: Path) -> Draft:
    """Returns the graph to partition, the rows to predict, and lines of description.

    Saves the users' ids and the facts about columns in `folder`.

    Args:
        settings: The settings.
        needs: The data that ranks read.
        graph: The graph as loaded.
        folder: The folder of the run or the store.
    """
    graph, notes = as_read(settings, graph, folder)
    draft = Draft(save_ids(load(settings, graph), folder), notes=tuple(notes))
    draft = _hold_out_rows(draft, settings, needs)
    draft = _choose_form(draft, settings, needs)
    draft = _add_inverse_edges(draft, settings, needs)
    return _order_edges(draft, settings, needs)


def _hold_out_rows(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Leaves out held-out edges of runs that train and of stores, and selects inputs.

    For predictions, all edges pass messages.
    """
    task, rule, graph, rows = create_task(settings), sampling_rule(settings), draft.graph, draft.rows
    if needs.for_store:
        graph, rows = divide(settings, graph, rule)
        graph = graph if settings.inputs == "features" else with_inputs(graph, settings.inputs)
    elif needs.trains:
        graph, rows = read(settings, graph, relational=needs.model.relational, rule=rule)
    elif needs.model.inputs:
        if "predictions" in settings.write or not task.hides_edges:
            graph, rows = task.prepare_known(graph)
        graph = with_inputs(graph, settings.inputs)
    complete = draft.graph
    times = describe_times(complete, graph, rows, settings) if needs.trains else describe_ranges(complete)
    labels = [f"labels: {task.reads_labels}"] if task.reads_labels else []
    return draft.then(graph, [*times, *rows.describe(), *labels], rows)


def _choose_form(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Stores features as dense, sparse or rounded rows."""
    dtype = settings.features.dtype
    graph, notes = with_kept(draft.graph, settings.input_rows, needs.model.sparse, dtype)
    return replace(draft.then(graph, notes), rounding="" if dtype == "as_is" else "".join(notes))


def _add_inverse_edges(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Adds the reverse of each edge if batches contain it."""
    graph = draft.graph
    if needs.model.relational and settings.model.arguments.get("inverse"):
        draft = draft.then(graph, describe_repeated(graph))
    if not needs.model.inverse_edges:
        return draft
    note = f"edges: {graph.num_edges:,} inverse edges were added (model.inverse=true)"
    return draft.then(with_inverse_edges(graph), [note], draft.rows.with_inverse_edges(graph.num_relations))


def _order_edges(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Sorts in-edges as the sampler or the model reads them."""
    graph, rows, rule = draft.graph, draft.rows, sampling_rule(settings)
    notes = [] if rule == "none" else describe_sampled(graph, rows, rule, trains=needs.trains)
    graph = in_listed_order(graph) if needs.model.edge_order or rule != "none" else graph
    graph, rows = rows.arrange(graph, rule)
    return draft.then(graph, notes, rows)


def divide(settings: Settings, graph: Graph, rule: str) -> tuple[Graph, TaskRows]:
    """Returns the training graph and the rows to predict, of any split.

    Args:
        settings: The run's settings.
        graph: The graph with all edges.
        rule: `Sampler.time`. Unless "none", no edge is left out: each passes messages
            to rows with later times.
    """
    task = create_task(settings)
    check_implied_task(settings, graph)
    return task.prepare(graph) if rule == "none" else task.prepare_by_time(graph)


def read(settings: Settings, graph: Graph, *, relational: bool, rule: str = "none") -> tuple[Graph, TaskRows]:
    """Returns the training graph and the rows to predict, as the task defines them.

    Raises `UserError` if no row is in the splits that the job reads.

    Args:
        settings: The run's settings.
        graph: The graph with all edges.
        relational: Whether the model reads edge types.
        rule: As for `divide`.
    """
    task = create_task(settings)
    try:
        with warnings_in_lines(settings.dataset.name):
            training_graph, rows = divide(settings, graph, rule)
    except UserError:
        if settings.job.needs_labels and task.labels_nodes and not graph.labelled.any():
            raise UserError(no_split(settings, has_labels=False, edges=graph.edge_labels is not None)) from None
        raise
    if relational:
        check_relation(graph.schema, rows)
    label, split, _ = rows.values(training_graph)
    if not (rows.drawn or np.isin(split, [SPLITS[name] for name in settings.job.splits]).any()):
        has_labels, edges = bool(labelled(label).any()), graph.edge_labels is not None
        has_times = getattr(graph, f"{task.noun}_time", None) is not None
        raise UserError(no_split(settings, has_labels=has_labels, noun=task.noun, edges=edges, has_times=has_times))
    return with_inputs(training_graph, settings.inputs), rows


def no_split(
    settings: Settings, *, has_labels: bool, noun: str = "node", edges: bool = False, has_times: bool = True
) -> str:
    """Returns a message that names the missing split and a remedy.

    Args:
        settings: The run's settings.
        has_labels: Whether what the task predicts has labels.
        noun: What the task predicts.
        edges: Whether edges have labels.
        has_times: Whether what the task predicts has times.
    """
    splits = " or ".join(_SPLIT_NAMES.get(name, name) for name in settings.job.splits)
    if has_labels:
        draws = "draw_edge_split" if noun == "edge" else "draw_split"
        way = f"dataset.split=[0.6,0.2,0.2] or Graph.{draws} draws a split"
        if isinstance(settings.dataset.arguments.get("split"), Mapping) and not has_times:
            way = f"{noun}s have no times, and dataset.split is by time: {way}, or dataset.time=COLUMN names the times"
    elif edges:
        way = "only edges have labels, which task=edge_classification or edge_regression predicts"
    else:
        way = "no node has a label (a column label, data.y or labels=), and task=link_prediction needs none"
    return f"dataset: no {noun} is in the {splits} split: {way}"


def describe_times(complete: Graph, training: Graph, rows: TaskRows, settings: Settings | None = None) -> list[str]:
    """Describes times, a split by time, and held-out pairs that also train.

    Args:
        complete: The graph with all edges.
        training: The graph with the edges that pass messages in training.
        rows: The rows to predict.
        settings: The run's settings, for a line about its sampler.
    """
    return [*describe_ranges(complete), *rows.describe_split(complete, training, _hint("edge", settings))]


def describe_ranges(graph: Graph) -> list[str]:
    """Describes the times of edges and nodes, if they have any."""
    return [line for noun in ("edge", "node") for line in _describe_range(graph, noun)]


def visible_graphs(graph: Graph) -> dict[str, Graph]:
    """Returns the graphs that train and evaluate nodes that are split by time.

    Training reads no edge from the first held-out time on, val none from the first test
    time on, and test reads all edges. Empty if nodes or edges have no times, if the
    split is none by time, or if no edge is later than training.

    Args:
        graph: The graph with all edges.
    """
    if (first := first_later(graph)) is None:
        return {}
    ends = {"train": first, "val": time_spans(graph).get(Split.TEST, (NEVER, NEVER))[0], "test": NEVER}
    return {split: with_edges_before(graph, end) for split, end in ends.items()}


def describe_visible(graphs: Mapping[str, Graph], unit: str | None, settings: Settings | None = None) -> list[str]:
    """Describes which edges of `visible_graphs` pass messages, and the alternative."""
    if not graphs:
        return []
    train, val, test = (graphs[name].num_edges for name in ("train", "val", "test"))
    first = show_time(first_later(graphs["test"]) or 0, unit)
    line = f"time: {test - train:,} edges from {first} on pass no messages in training, which reads {train:,}"
    return [f"{line}; val is evaluated on {val:,} edges, test on {test:,}", *_hint("node", settings)]


def _hint(noun: str, settings: Settings | None) -> list[str]:
    """Returns a line about `sampler.time` if the sampler has it."""
    if settings is None or settings.sampler is None or "time" not in settings.sampler.arguments:
        return []
    return [f"time: sampler.time=strict trains and evaluates each {noun} on the edges before its own time instead"]


def sampling_rule(settings: Settings) -> str:
    """Returns `Sampler.time` of a run, or none without a sampler."""
    return "none" if settings.sampler is None else settings.sampler.create().time


def create_task(settings: Settings) -> Task:
    """Returns the task, which then counts edges in the sampler's window."""
    task: Task = settings.task.create()
    task.window = None if settings.sampler is None else settings.sampler.create().window
    return task


def describe_sampled(graph: Graph, rows: TaskRows, rule: str, *, trains: bool = True) -> list[str]:
    """Describes what seeds see. Raises `UserError` if data or seeds have no times.

    Args:
        graph: The graph.
        rows: The rows to predict.
        rule: `Sampler.time`.
        trains: Whether links are predicted at their times. Otherwise, they are
            recommended as of the newest edge.
    """
    if graph.edge_time is None and graph.node_time is None:
        raise UserError(
            f"sampler.time={rule}: neither edges nor nodes have times: dataset.time=COLUMN names their column, or use "
            "sampler.time=none"
        )
    return rows.describe_sampled(graph, rule, trains=trains)


def describe_store(graph: Graph) -> list[str]:
    """Returns a line if runs from a store would train on later edges."""
    line = "time: runs from the store pass messages over all edges, also over those later than their training nodes"
    return [] if first_later(graph) is None else [line]


def _describe_range(graph: Graph, noun: str) -> Iterator[str]:
    """Yields a line on the times of edges or nodes, if there are any."""
    times = getattr(graph, f"{noun}_time")
    if times is None:
        return
    dated = times[has_time(times)]
    ends = [show_time(int(end), graph.time_unit) for end in (dated.min(), dated.max())] if len(dated) else []
    texts = [f"{len(dated):,} {noun}s, {' to '.join(ends)}"]
    texts += [f"{count:,} are always visible"] if (count := np.count_nonzero(times == ALWAYS)) else []
    texts += (
        [f"{count:,} without a time leave in a split by time"] if (count := np.count_nonzero(times == NEVER)) else []
    )
    yield f"time: {'; '.join(texts)}"
