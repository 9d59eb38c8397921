"""Lines about the times of a run's data, and about its split by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Split
from gnnkit.graph.time_split import time_spans
from gnnkit.graph.times import ALWAYS, NEVER, has_time, show_time
from gnnkit.graph.types import offsets_of
from gnnkit.sampler.targets import TaskRows
from gnnkit.task import Task
from gnnkit.task.link_split import with_edges_before

_EDGES = 1 << 22  # edges counted at once


def describe_times(complete: Graph, training: Graph, rows: TaskRows, settings: Settings | None = None) -> list[str]:
    """Describes times, a split by time, and held-out pairs that also train.

    Args:
        complete: The graph with all edges.
        training: The graph with the edges that pass messages in training.
        rows: The rows to predict.
        settings: The run's settings, for a line about its sampler.
    """
    lines = [line for noun in ("edge", "node") for line in _describe_range(complete, noun)]
    return [*lines, *rows.describe_split(complete, training, _hint("edge", settings))]


def visible_graphs(graph: Graph) -> dict[str, Graph]:
    """Returns the graphs that train and evaluate nodes that are split by time.

    Training reads no edge from the first held-out time on, val none from the first test
    time on, and test reads all edges. Empty if nodes or edges have no times, if the
    split is none by time, or if no edge is later than training.

    Args:
        graph: The graph with all edges.
    """
    if (first := _first_later(graph)) is None:
        return {}
    ends = {"train": first, "val": time_spans(graph).get(Split.TEST, (NEVER, NEVER))[0], "test": NEVER}
    return {split: with_edges_before(graph, end) for split, end in ends.items()}


def describe_visible(graphs: Mapping[str, Graph], unit: str | None, settings: Settings | None = None) -> list[str]:
    """Describes which edges of `visible_graphs` pass messages, and the alternative."""
    if not graphs:
        return []
    train, val, test = (graphs[name].num_edges for name in ("train", "val", "test"))
    first = show_time(_first_later(graphs["test"]) or 0, unit)
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
    return [] if _first_later(graph) is None else [line]


def degrees_before_split(graph: Graph) -> Ids:  # [num_nodes]
    """Counts each node's in-edges before a split's first held-out time."""
    indptr, times, first = graph.csc.indptr, graph.edge_time, _first_later(graph)
    if first is None and graph.time_borders is not None:
        first = graph.time_borders[0]
    if first is None or times is None:
        return np.diff(indptr)
    degrees = np.zeros(graph.num_nodes, np.int64)
    for begin in range(0, graph.num_edges, _EDGES):
        counts = offsets_of(times[begin : begin + _EDGES] < first)
        degrees += np.diff(counts[np.clip(indptr - begin, 0, len(counts) - 1)])
    return degrees


def rows_to_fit(graph: Graph) -> npt.NDArray[np.int8]:  # [num_nodes] values of `Split`
    """Returns the split, where statistics of columns are those of the training rows.

    If edges are split by time, the nodes before the first held-out time train.
    """
    if graph.time_borders is None or graph.node_time is None or (graph.split == Split.TRAIN).any():
        return graph.split
    return np.where(graph.node_time < graph.time_borders[0], Split.TRAIN, Split.NONE).astype(np.int8)


def _first_later(graph: Graph) -> int | None:
    """Returns the first held-out node's time if an edge is as late or later."""
    first = min((first for part, (first, _) in time_spans(graph).items() if part != Split.TRAIN), default=NEVER)
    is_later = graph.edge_time is not None and graph.edge_time.max(initial=ALWAYS) >= first != NEVER
    return first if is_later else None


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
