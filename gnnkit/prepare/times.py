"""Lines about the times of a run's data, and about its split by time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gnnkit.graph import Graph, Split
from gnnkit.graph.time_split import parts_of
from gnnkit.graph.times import ALWAYS, NEVER, Times, show_time
from gnnkit.graph.types import Ids
from gnnkit.sampler.links import Links, pairs_of, unordered
from gnnkit.sampler.targets import Targets

_PARTS = {Split.TRAIN: "train before", Split.VAL: "val from", Split.TEST: "test from"}


def describe_times(complete: Graph, trained: Graph, links: Links | Targets | None) -> list[str]:
    """Describes times, a split by time, and held-out pairs that also train.

    Args:
        complete: The graph with all edges.
        trained: The graph whose edges pass messages in training.
        links: The edges to predict or with labels, or None.
    """
    lines = [line for what in ("edge", "node") for line in _describe_range(complete, what)]
    if links is None:
        lines += _describe_node_split(trained)
    elif complete.edge_time is not None and complete.time_borders is not None:
        parts = parts_of(complete.edge_time, complete.time_borders)
        lines.append(_describe_parts(complete.edge_time, parts, complete.time_unit, "edges"))
        count = complete.num_edges - trained.num_edges
        lines.append(
            f"time: {count:,} edges from {show_time(complete.time_borders[0], complete.time_unit)} on pass no messages, also "
            "in evaluation"
        )
    return [*lines, *_describe_recurring(trained, links)] if isinstance(links, Links) else lines


def _describe_range(graph: Graph, what: str) -> Iterator[str]:
    """Yields a line on the times of edges or nodes, if there are any."""
    times = getattr(graph, f"{what}_time")
    if times is None:
        return
    known = times[(times != ALWAYS) & (times != NEVER)]
    counts = {"always": np.count_nonzero(times == ALWAYS), "never": np.count_nonzero(times == NEVER)}
    others = "".join(f"; {count:,} without a time are {when} visible" for when, count in counts.items() if count)
    span = (
        " to ".join(show_time(int(end), graph.time_unit) for end in (known.min(), known.max()))
        if len(known)
        else "none"
    )
    yield f"time: {len(known):,} {what}s, {span}{others}"


def _describe_node_split(graph: Graph) -> list[str]:
    """Describes the split if it is one by time."""
    times, split = graph.node_time, graph.split
    if times is None:
        return []
    ends = [times[split == part] for part in (Split.TRAIN, Split.VAL, Split.TEST)]
    spans = [part for part in ends if len(part)]
    if len(spans) < 2 or any(one.max() >= other.min() for one, other in pairwise(spans)):
        return []
    return [_describe_parts(times, split, graph.time_unit, "labelled nodes")]


def _describe_parts(times: Times, parts: Ids, unit: str | None, what: str) -> str:
    """Returns each part's true share, and the time where it begins."""
    sizes = {part: int(np.count_nonzero(parts == part)) for part in _PARTS}
    begins = {part: int(times[parts == part].min()) for part, size in sizes.items() if size}
    later = [begin for part, begin in begins.items() if part != Split.TRAIN]
    begins[Split.TRAIN] = min(later, default=NEVER)
    total = max(sum(sizes.values()), 1)
    texts = [
        f"{_PARTS[part]} {show_time(begins[part], unit)} ({100 * size / total:.1f} %)"
        for part, size in sizes.items()
        if size
    ]
    return f"split by time: {', '.join(texts)} of {total:,} {what}"


def _describe_recurring(graph: Graph, links: Links) -> list[str]:
    """Counts the held-out edges whose ends an edge joins in training."""
    held = unordered(np.concatenate([links.val, links.test]), graph.num_nodes)
    count = int(np.isin(held, unordered(pairs_of(graph.csc), graph.num_nodes)).sum())
    share = 100 * count / max(len(held), 1)
    return (
        [f"held-out edges: {count:,} of {len(held):,} ({share:.0f} %) join nodes that also an edge in training joins"]
        if count
        else []
    )
