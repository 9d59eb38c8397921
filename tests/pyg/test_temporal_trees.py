"""Temporal trees of the loader equal brute force over all edges of drawn graphs."""

from __future__ import annotations

import pytest

from tests.cases import few
from tests.temporal import compare_loader

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("typed", [False, True])
@few("numbers", [range(30), range(30, 100)], default=1)
def test_trees_are_what_a_loop_over_all_edges_sees(numbers: range, typed: bool) -> None:
    assert sum(compare_loader(number, typed) for number in numbers) > 6 * len(numbers)
