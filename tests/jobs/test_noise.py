"""No strategy, reader or door learns labels that only the future explains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import noise
from tests.cases import exhaustive

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_core")]
COUNT, SEEDS = 1_200, 3
NEVER_BEYOND = 4  # standard deviations: 1 of 16,000 models that know nothing is


@pytest.mark.parametrize("base", ["nodes", "loader", *map(exhaustive, ("typed", "edges", "links", "database"))])
def test_what_only_the_future_explains_is_not_learned(base: str, tmp_path: Path) -> None:
    areas = []
    for seed in range(SEEDS):
        (folder := tmp_path / str(seed)).mkdir()
        areas.append(noise.area(base, seed, COUNT, folder))
    mean, deviation = sum(areas) / SEEDS, noise.deviation(COUNT) / SEEDS**0.5
    assert abs(mean - 0.5) < NEVER_BEYOND * deviation, areas


@pytest.mark.parametrize("base", ["nodes", exhaustive("typed"), "database", "loader"])
def test_without_times_the_future_is_learned(base: str, tmp_path: Path) -> None:
    # Tasks on edges show it in training only, as held-out edges pass no messages.
    sampler = {**noise.SAMPLER, "time": "none"}
    assert noise.area(base, 0, COUNT, tmp_path, sampler=sampler) > 0.65


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], float]:
    """Measures each case once."""
    return functools.cache(lambda name: noise.area(name, 1, 300, tmp_path_factory.mktemp("noise")))


OFTEN = ("tables", "nodes joint")


@pytest.mark.parametrize("case", [case if case in OFTEN else exhaustive(case) for case in noise.SAME])
def test_strategies_and_readers_have_the_area_of_one_process(case: str, area: Callable[[str], float]) -> None:
    assert area(case) == pytest.approx(area(noise.SAME[case]), abs=1e-3)  # rounding orders equal outputs
