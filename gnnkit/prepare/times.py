"""Lines about the times of a run's data, and about its split by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.graph.time_split import parts_of
from gnnkit.graph.times import ALWAYS, NEVER, Times, show_time
from gnnkit.graph.types import Ids
from gnnkit.sampler.links import Links, pairs_of, unordered
from gnnkit.sampler.targets import Targets
from gnnkit.task import Task
from gnnkit.task.link_split import with_edges_before

_SEEN = {
    "strict": "before its own time",
    "inclusive": "up to its own time",
    "window": "before its own time, up to the age sampler.window",
}
_PARTS = {Split.TRAIN: "train before", Split.VAL: "val from", Split.TEST: "test from"}


def describe_times(
    complete: Graph, trained: Graph, links: Links | Targets | None, settings: Settings | None = None
) -> list[str]:
    """Describes times, a split by time, and held-out pairs that also train.

    Args:
        complete: The graph with all edges.
        trained: The graph with the edges that pass messages in training.
        links: The edges to predict or with labels, or None.
        settings: The run's settings, for a line about its sampler.
    """
    lines = [line for what in ("edge", "node") for line in _describe_range(complete, what)]
    if links is None:
        lines += _describe_node_split(trained)
    elif complete.edge_time is not None and complete.time_borders is not None:
        parts = parts_of(complete.edge_time, complete.time_borders)
        lines.append(_describe_parts(complete.edge_time, parts, complete.time_unit, "edges"))
        count = complete.num_edges - trained.num_edges
        if count > 0:
            first = show_time(complete.time_borders[0], complete.time_unit)
            lines.append(f"time: {count:,} edges from {first} on pass no messages, also in evaluation")
            lines += _hint("edge", settings)
    return [*lines, *_describe_recurring(trained, links)] if isinstance(links, Links) else lines


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
    ends = {"train": first, "val": _time_spans(graph).get(Split.TEST, (NEVER, NEVER))[0], "test": NEVER}
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


def describe_sampled(graph: Graph, links: Links | Targets | None, rule: str, *, trains: bool = True) -> list[str]:
    """Describes what seeds see. Raises `UserError` if data or seeds have no times.

    Args:
        graph: The graph.
        links: The edges to predict or with labels, or None.
        rule: `Sampler.time`.
        trains: Whether links are predicted at their times. Otherwise, they are
            recommended as of the newest edge.
    """
    if graph.edge_time is None and graph.node_time is None:
        raise UserError(
            f"sampler.time={rule}: neither edges nor nodes have times: dataset.time=COLUMN names their column, or use "
            "sampler.time=none"
        )
    if isinstance(links, Links):
        now = [f"sampler.time={rule}: recommendations are as of the newest edge"]
        return _describe_events(links, rule) if trains else now
    targets = links
    rows, times = (graph, graph.node_time) if targets is None else (targets, targets.time)
    predicted = rows.labelled & (rows.split != Split.NONE)
    times = np.full(len(predicted), ALWAYS) if times is None else times
    untimed = int(np.count_nonzero(predicted & ((times == ALWAYS) | (times == NEVER))))
    if untimed:
        what = "nodes" if targets is None else "edges"
        raise UserError(
            f"sampler.time={rule}: {untimed:,} of {np.count_nonzero(predicted):,} {what} in the split have no time: give "
            f"each one ({what[:-1]}_time), or remove it from the split"
        )
    what = "node" if targets is None else "labelled edge"
    return [f"sampler.time={rule}: each {what} sees the edges {_SEEN[rule]}, in training and evaluation"]


def _describe_events(links: Links, rule: str) -> list[str]:
    """Describes what predicted edges' ends see."""
    if not links.by_time:
        raise UserError(
            f"sampler.time={rule}: the edges that the task predicts are not split by time: set "
            "dataset.split='{by: time, shares: [0.7,0.15,0.15]}', or use sampler.time=none"
        )
    also = ", and edges of other relations at that time" * (rule == "inclusive" and links.relation is not None)
    seen = _SEEN["strict" if rule == "inclusive" else rule] + also
    return [f"sampler.time={rule}: each edge is predicted from the edges {seen}, in training and evaluation"]


def describe_store(graph: Graph) -> list[str]:
    """Returns a line if runs from a store would train on later edges."""
    line = "time: runs from the store pass messages over all edges, also over those later than their training nodes"
    return [] if _first_later(graph) is None else [line]


def before_split(graph: Graph) -> Graph:
    """Returns the graph with the edges before a split's first held-out time."""
    first = _first_later(graph)
    if first is None and graph.time_borders is not None:
        first = graph.time_borders[0]
    return graph if first is None else with_edges_before(graph, first)


def rows_to_fit(graph: Graph) -> npt.NDArray[np.int8]:  # [num_nodes] values of `Split`
    """Returns the split, where statistics of columns are those of the training rows.

    If edges are split by time, the nodes before the first held-out time train.
    """
    if graph.time_borders is None or graph.node_time is None or (graph.split == Split.TRAIN).any():
        return graph.split
    return np.where(graph.node_time < graph.time_borders[0], Split.TRAIN, Split.NONE).astype(np.int8)


def _time_spans(graph: Graph) -> dict[Split, tuple[int, int]]:
    """Returns the first and last time of each part, or nothing if these overlap."""
    if graph.node_time is None:
        return {}
    times = {part: graph.node_time[graph.split == part] for part in _PARTS}
    spans = {part: (int(rows.min()), int(rows.max())) for part, rows in times.items() if len(rows)}
    overlap = any(one[1] >= other[0] for one, other in pairwise(spans.values()))
    return {} if overlap or len(spans) < 2 or Split.TRAIN not in spans else spans


def _first_later(graph: Graph) -> int | None:
    """Returns the first held-out node's time if an edge is as late or later."""
    first = min((first for part, (first, _) in _time_spans(graph).items() if part != Split.TRAIN), default=NEVER)
    return None if graph.edge_time is None or not (graph.edge_time >= first).any() or first == NEVER else first


def _describe_range(graph: Graph, what: str) -> Iterator[str]:
    """Yields a line on the times of edges or nodes, if there are any."""
    times = getattr(graph, f"{what}_time")
    if times is None:
        return
    known = times[(times != ALWAYS) & (times != NEVER)]
    ends = [show_time(int(end), graph.time_unit) for end in (known.min(), known.max())] if len(known) else []
    texts = [f"{len(known):,} {what}s, {' to '.join(ends)}"]
    texts += [f"{count:,} are always visible"] if (count := np.count_nonzero(times == ALWAYS)) else []
    texts += (
        [f"{count:,} without a time leave in a split by time"] if (count := np.count_nonzero(times == NEVER)) else []
    )
    yield f"time: {'; '.join(texts)}"


def _describe_node_split(graph: Graph) -> list[str]:
    """Describes the split if it is one by time."""
    if not _time_spans(graph):
        return []
    assert graph.node_time is not None
    return [_describe_parts(graph.node_time, graph.split, graph.time_unit, "labelled nodes")]


def _describe_parts(times: Times, parts: Ids, unit: str | None, what: str) -> str:
    """Returns each part's true share, and the time where it begins."""
    sizes = {part: int(np.count_nonzero(parts == part)) for part in _PARTS}
    later = {part: int(times[parts == part].min()) for part, size in sizes.items() if size and part != Split.TRAIN}
    begins, total = later | {Split.TRAIN: min(later.values(), default=NEVER)}, max(sum(sizes.values()), 1)
    shares = {part: f"{100 * size / total:.1f} %" for part, size in sizes.items() if size}
    texts = [f"{_PARTS[part]} {show_time(begins[part], unit)} ({share})" for part, share in shares.items()]
    return f"split by time: {', '.join(texts)} of {total:,} {what}"


def _describe_recurring(graph: Graph, links: Links) -> list[str]:
    """Counts held-out edges between nodes that an edge joins in training."""
    held, pairs = unordered(np.concatenate([links.val, links.test]), graph.num_nodes), pairs_of(graph.csc)
    if graph.edge_time is not None and links.by_time:  # later edges may pass messages, too
        pairs = pairs[graph.edge_time < links.first_held_out]
    count = int(np.isin(held, unordered(pairs, graph.num_nodes)).sum())
    share = f"{100 * count / max(len(held), 1):.0f} %"
    line = f"held-out edges: {count:,} of {len(held):,} ({share}) join nodes that also an edge in training joins"
    return [line] if count else []
