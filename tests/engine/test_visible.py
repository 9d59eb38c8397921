"""Degrees, loops and means at a time count the edges that are visible then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnnkit.engine.visible import TimedEdges, TimedRows
from gnnkit.graph import CSC, Graph, Ids, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS, NEVER

LOW, HIGH = ALWAYS + 1, NEVER - 1
SCALES = ([0, 1, 2, 3, 4], [LOW, LOW + 1, -1, 0, HIGH - 1, HIGH])


def visible(times: Ids, bound: int, window: int | None) -> list[int]:
    """Returns the positions of visible edges, by comparing integers of any size."""
    since = None if window is None else bound - window
    times = times.tolist()
    return [at for at, time in enumerate(times) if time <= bound and (time == ALWAYS or since is None or time > since)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("window", [None, 1, 2, NEVER])
def test_rows_count_what_a_loop_counts(scale: list[int], window: int | None) -> None:
    rng, n, m = np.random.default_rng(0), 6, 60
    columns: dict[str, Any] = {"weight": rng.random(m), "edge_types": rng.integers(0, 2, m)}
    times = np.array([ALWAYS, *scale, NEVER])[rng.integers(0, len(scale) + 2, m)]
    graph = in_time_order(Graph.from_edges(rng.integers(0, n, m), rng.integers(0, n, m), n, edge_time=times, **columns))
    types, weight, time = (np.asarray(values) for values in (graph.edge_types, graph.csc.weight, graph.edge_time))
    csc = CSC(graph.csc.indptr, graph.csc.indices, weight, time=time)
    time_edges = TimedEdges(csc, lambda: RelationGroups.of(csc, types, ("a", "b")), window=window)
    dst, features = np.repeat(np.arange(n), np.diff(csc.indptr)), rng.random((m, 2))
    rows = np.repeat(np.arange(n), len(scale))
    bounds = np.array(scale * n)
    seen = [visible(time, bound, window) for bound in bounds.tolist()]
    into = [[edge for edge in edges if dst[edge] == row] for row, edges in zip(rows, seen, strict=True)]
    places, indptr = time_edges.incoming.edges(rows, bounds)
    assert [part.tolist() for part in np.split(places, indptr[1:-1])] == into
    np.testing.assert_array_equal(time_edges.incoming.counts(rows, bounds), list(map(len, into)))
    np.testing.assert_allclose(time_edges.incoming.degrees(rows, bounds), [weight[edges].sum() for edges in into])
    out = [
        sum(weight[edge] for edge in edges if csc.indices[edge] == row) for row, edges in zip(rows, seen, strict=True)
    ]
    np.testing.assert_allclose(time_edges.outgoing.degrees(rows, bounds), out)
    loops = [sum(int(csc.indices[edge] == row) for edge in edges) for row, edges in zip(rows, into, strict=True)]
    np.testing.assert_array_equal(time_edges.loops.counts(rows, bounds), loops)
    means = [features[edges].mean(0) if edges else np.zeros(2) for edges in into]
    np.testing.assert_allclose(time_edges.mean_features(features, rows, bounds), means)
    of_type = [[edge for edge in edges if types[edge] == 1] for edges in into]
    has_type = np.isin(rows, dst[types == 1])  # a group exists where any edge does
    degrees, counts = time_edges.in_relation(rows[has_type], np.ones(int(has_type.sum()), np.int64), bounds[has_type])
    np.testing.assert_allclose(
        degrees, [weight[edges].sum() for edges, has in zip(of_type, has_type, strict=True) if has]
    )
    np.testing.assert_array_equal(counts, [len(edges) for edges, has in zip(of_type, has_type, strict=True) if has])


def test_rows_without_edges_see_none() -> None:
    rows = TimedRows(np.zeros(4, np.int64), np.zeros(0, np.int64), window=3)
    assert rows.counts(np.arange(3), np.full(3, 5)).tolist() == [0, 0, 0]
    places, indptr = rows.edges(np.arange(3), np.full(3, 5))
    assert not len(places)
    assert indptr.tolist() == [0, 0, 0, 0]
