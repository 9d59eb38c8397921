"""A run says what ways like its own have lost, and nothing where little was lost."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gnnkit import measured
from gnnkit.config import compose
from gnnkit.measured import GRAPHS, POINTS, SCATTERED, TOLERANCE
from gnnkit.settings import settle

PARTS = {"parts of METIS": POINTS, "random or contiguous parts": SCATTERED}
BEYOND = [row for row in POINTS if any(min(table[row]) < -TOLERANCE for table in PARTS.values() if row in table)]


@pytest.fixture(scope="module")
def variants() -> dict[str, list[str]]:
    """The overrides of each row, as the benchmark that measures them has these."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # scripts of one folder import each other
        found: dict[str, list[str]] = runpy.run_path(str(folder / "variants.py"))["VARIANTS"]
    return found


@pytest.mark.parametrize("row", POINTS)
def test_each_variant_says_its_own_loss_where_this_is_over_a_point(row: str, variants: dict[str, list[str]]) -> None:
    settings = settle(compose(["workers=4", *variants[row]]))
    said = [each.costs() for each in (settings.create_strategy(), settings.sync.create()) if each.costs()]
    if row not in BEYOND:
        assert said == []
        return
    (line,) = said
    for parts, table in PARTS.items():
        if row in table:
            points = table[row]
            least, most = (max(round(-each), 0) for each in (max(points), min(points)))
            where = GRAPHS[points.index(min(points))]
            assert f"{least} to {most} points of accuracy, most on {where}, with {parts}" in line
        else:
            assert parts not in line


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        (["strategy.local_iterations=5"], "local_iterations, 8"),
        (["strategy.local_iterations=9"], "local_iterations, 16"),
        (["strategy.local_iterations=40"], "local_iterations, 16"),
        (["exchange=sampled", "exchange.keep=0.5"], "sampled, keep 0.1"),
    ],
    ids=str,
)
def test_a_way_that_was_not_measured_says_the_loss_of_the_nearest(keys: list[str], row: str) -> None:
    settings = settle(compose(["strategy=vertex_centric", *keys]))
    assert f" to {round(-min(POINTS[row]))} points of accuracy" in settings.create_strategy().costs()


def test_two_losses_are_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "POINTS", {**POINTS, "quantized, 2 bits": (0.0, 0.0, -9.0, 0.0)})
    settings = settle(compose(["strategy=vertex_centric", "exchange=quantized+sampled", "exchange.bits=2"]))
    first, second = settings.create_strategy().costs().splitlines()
    assert "0 to 9 points of accuracy" in first
    assert second.startswith("exchange=sampled: ")
