"""Tables drawn at random become the graph that plain Python expects."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.table_oracle import ADAPTERS, Case, Column, check, compare, draw, expected

SIMPLE = {end: Column(pa.array([0, 1]), [0, 1]) for end in ("src", "dst")}


@pytest.mark.parametrize("seed", range(24))
def test_tables_mean_the_same_graph_in_all_adapters(seed: int) -> None:
    assert check(seed, 2) == []


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(24, 84))
def test_many_tables_mean_the_same_graph_in_all_adapters(seed: int) -> None:
    assert check(seed, len(ADAPTERS)) == []


def test_the_oracle_sees_another_graph_and_another_message() -> None:
    number = Column(pa.array([1.0, 2.0]), [1.0, 3.0])
    assert "edges: " in compare(Case({**SIMPLE, "weight": number}), "arrow")
    assert compare(Case(SIMPLE, refused="never"), "arrow") == "read, expected 'never'"
    infinite = Column(pa.array([1.0, float("inf")]), [])
    assert "row 1: inf is not finite" in compare(Case({**SIMPLE, "e": infinite}), "arrow")
    assert compare(Case(SIMPLE), "arrow") == ""


def test_the_oracle_draws_what_it_says() -> None:
    cases = [draw(random.Random(seed)) for seed in range(300)]
    assert {case.duplicates for case in cases} == {"keep", "first", "refuse"}
    assert 20 < sum(bool(case.refused) for case in cases) < 150
    assert any(None in expected(case)["features"][0] for case in cases if not case.refused)
