"""Labels of earlier edges, beside a loop over all edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.task.labelled_edges import EarlierLabels, label_columns

TIMES = st.sampled_from([ALWAYS, NEVER, -1, 0, 1, 2, 3])
LABELS = st.lists(st.sampled_from([np.nan, 0.1, 0.7, 5.0]), min_size=2, max_size=2)


@given(st.lists(st.tuples(st.integers(0, 2), TIMES, LABELS), max_size=14), st.one_of(st.none(), st.integers(1, 4)))
def test_means_equal_a_loop_over_earlier_edges(edges: list[tuple[int, int, list[float]]], last: int | None) -> None:
    nodes, times = (np.array([edge[part] for edge in edges], np.int64) for part in (0, 1))
    labels = np.array([edge[2] for edge in edges]).reshape(-1, 2)
    means = EarlierLabels(nodes, times, labels).means(nodes, times, last)
    timed = [row for row in np.argsort(times, kind="stable") if times[row] not in (ALWAYS, NEVER)]
    for row in range(len(edges)):
        visible = [other for other in timed if nodes[other] == nodes[row] and times[other] < times[row]]
        visible = (
            [other for other in visible if not np.isnan(labels[other]).all()][-(last or 0) :] if row in timed else []
        )
        for column in range(2):
            values = labels[visible, column]
            reference = np.mean(values[~np.isnan(values)]) if (~np.isnan(values)).any() else np.nan
            np.testing.assert_allclose(means[row, column], reference, rtol=1e-15)


@pytest.mark.parametrize("last", [3, None])
def test_the_future_and_other_nodes_change_no_bit(last: int | None) -> None:
    rng = np.random.default_rng(0)
    ends, times = rng.integers(0, 9, 400), rng.integers(0, 50, 400)
    labels = rng.normal(size=(400, 1))
    rows = np.flatnonzero((times <= 30) & (ends > 4))
    means = EarlierLabels(ends, times, labels).means(ends[rows], times[rows], last)
    changed = np.where(((times >= 30) | (ends <= 4))[:, None], 1e12 * labels, labels)
    np.testing.assert_array_equal(means, EarlierLabels(ends, times, changed).means(ends[rows], times[rows], last))
    np.testing.assert_array_equal(means, EarlierLabels(ends, times, labels).means(ends, times, last)[rows])


def test_times_in_nanoseconds_are_exact() -> None:
    nodes, times = np.zeros(3, np.int64), 1_700_000_000_000_000_000 + np.arange(3)
    means = EarlierLabels(nodes, times, np.array([[1.0], [3.0], [9.0]])).means(nodes, times)
    np.testing.assert_array_equal(means[:, 0], [np.nan, 1.0, 2.0])


def test_unknown_labels_are_nan_columns() -> None:
    np.testing.assert_array_equal(label_columns(np.array([1, -1, 0]), 2), [[0, 1], [np.nan, np.nan], [1, 0]])
    np.testing.assert_array_equal(label_columns(np.array([2.5, np.nan]), 1), [[2.5], [np.nan]])
