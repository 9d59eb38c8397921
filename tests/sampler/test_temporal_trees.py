"""Temporal trees equal brute force over all edges of drawn graphs."""

from __future__ import annotations

import pytest

from tests.cases import few
from tests.temporal import compare_sampler, count_draws, large

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("typed", [False, True])
@few("numbers", [range(30), range(30, 100)], default=1)
def test_trees_are_what_a_loop_over_all_edges_sees(numbers: range, typed: bool) -> None:
    assert sum(compare_sampler(number, typed) for number in numbers) > 6 * len(numbers)


def test_no_draw_is_of_the_future() -> None:
    counts = count_draws(large(4000, 60_000), 100_000)
    assert len(counts) == 15
    assert all(drawn >= 100_000 and future == 0 for drawn, future in counts.values()), counts
