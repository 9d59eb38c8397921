"""The schedule of approximate training follows from the number of epochs alone."""

from __future__ import annotations

import itertools
import sys

import pytest

from gnnkit.errors import UserError
from gnnkit.exchange.quantized import Quantized
from gnnkit.strategy.base import Phases
from gnnkit.strategy.vertex_centric import MAX_REMOTE, Supersteps, VertexCentric


@pytest.mark.parametrize(
    ("epochs", "counts"),
    [
        (1, (0, 1, 0)),
        (3, (0, 3, 0)),
        (4, (1, 2, 1)),
        (6, (1, 4, 1)),
        (7, (1, 5, 1)),
        (10, (1, 7, 2)),
        (40, (4, 28, 8)),
        (100, (10, 70, 20)),
    ],
)
def test_by_default_a_tenth_a_fifth_and_at_least_one_epoch_are_exact(epochs: int, counts: tuple[int, int, int]) -> None:
    assert split(Phases.of(epochs), epochs) == counts


def split(phases: Phases, epochs: int) -> tuple[int, int, int]:
    """Returns the number of exact, approximate and exact epochs."""
    exact = [phases.is_exact(epoch) for epoch in range(epochs)]
    start, approximate = exact.index(False), exact.count(False)
    assert exact == [*[True] * start, *[False] * approximate, *[True] * (epochs - start - approximate)]
    return start, approximate, epochs - start - approximate


@pytest.mark.parametrize("epochs", [*range(1, 4), *range(7, 300)])
def test_at_least_seven_tenths_are_approximate(epochs: int) -> None:
    assert split(Phases.of(epochs), epochs)[1] >= 0.7 * epochs


@pytest.mark.parametrize("epochs", range(4, 300))
def test_a_run_of_four_epochs_or_more_has_an_exact_finish(epochs: int) -> None:
    assert split(Phases.of(epochs), epochs)[2] >= 1


@pytest.mark.parametrize(
    ("start", "finish", "expected"),
    [
        (0.0, 0.0, (0, 10, 0)),
        (0.0, 0.5, (0, 5, 5)),
        (0.3, 0.0, (3, 7, 0)),
        (0.25, 0.25, (2, 5, 3)),
        (0.3, 0.05, (3, 6, 1)),
    ],
)
def test_shares_may_be_chosen(start: float, finish: float, expected: tuple[int, int, int]) -> None:
    assert split(Phases.of(10, start, finish), 10) == expected


def test_a_schedule_is_described_from_epoch_one() -> None:
    assert Phases.of(40).describe(40) == "1 to 4 exact, 5 to 32 approximate, 33 to 40 exact"
    assert Phases().describe(7) == "1 to 7 approximate"
    assert Phases.of(40).describe(40, begin=7) == "8 to 32 approximate, 33 to 40 exact"
    assert Phases.of(40).describe(40, begin=35, exact="synchronous") == "36 to 40 synchronous"
    assert Phases().last == sys.maxsize


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_local_steps_end_with_a_mean_before_the_exact_finish(length: int) -> None:
    steps, phases = Supersteps(length), Phases.of(20)
    updates = [steps.update(epoch, phases) for epoch in range(20)]
    if length == 1:
        assert set(updates) == {"synchronise"}
        return
    assert updates[:2] == ["conclude"] * 2
    assert updates[16:] == ["conclude"] * 4
    assert all(after == "conclude" for before, after in itertools.pairwise(updates) if before == "average")
    assert updates[2 : 2 + length] == [*["own"] * (length - 2), "average", "conclude"]
    assert steps.lengths(phases) == [[0, 1], [2, length], [16, 1]]


@pytest.mark.parametrize("share", [MAX_REMOTE, 0.61])
def test_a_high_cut_keeps_supersteps_at_one_epoch(share: float, capfd: pytest.CaptureFixture[str]) -> None:
    steps = Supersteps("auto")
    assert steps.costs().startswith("strategy.local_iterations=4: training is approximate")
    steps.begin(share, prints=True)
    high = share > MAX_REMOTE
    assert [steps.exchanges(epoch, Phases()) for epoch in range(4)] == ([True] * 4 if high else [*[False] * 3, True])
    assert (steps.costs() == "") == high
    assert ("local_iterations=4 stays at 1: 61% of the edges" in capfd.readouterr().err) == high


def test_only_stale_rows_and_local_steps_have_exact_epochs_by_default() -> None:
    assert VertexCentric(exchange=Quantized(4)).finishes == "asked"
    assert VertexCentric(2).finishes == "always"
    with pytest.raises(UserError, match=r"strategy.local_iterations=all must be auto or a whole number"):
        VertexCentric("all")  # type: ignore[arg-type]


def test_bits_that_a_run_chose_are_refused_with_a_number() -> None:
    with pytest.raises(UserError, match=r"exchange\.bits=auto must be 32 or 16 or 8"):
        Quantized("auto")  # type: ignore[arg-type]
