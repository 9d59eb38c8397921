"""Supersteps whose length follows drift and time."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.strategy import supersteps
from gnnkit.strategy.base import Measured
from gnnkit.strategy.supersteps import Rule, Supersteps
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.training import checkpoint
from tests.cases import few
from tests.jobs.test_train import small_graph

RULE = Rule(max_drift=0.1, max_iterations=16)
SLOW, FAST = Measured(1.0, 1.0, 1.0, 0), Measured(1.0, 0.01, 0.01, 0)  # exchanges


@pytest.mark.parametrize(
    ("length", "drift", "exchange", "wait", "expected"),
    [
        (1, 0.0, 0.5, 0, 2),
        (4, 0.05, 0.5, 0, 8),
        (4, 0.06, 0.5, 0, 4),  # twice as long would drift too far
        (4, 0.0, 0.05, 0, 4),  # nothing to save
        (4, 0.0, 0.5, 1, 4),  # too soon after a shorter one
        (16, 0.0, 0.5, 0, 16),
        (12, 0.0, 0.5, 0, 16),
        (4, 0.11, 0.0, 3, 2),
        (1, 9.0, 0.5, 0, 1),
    ],
)
def test_the_rule(length: int, drift: float, exchange: float, wait: int, expected: int) -> None:
    assert RULE.next(length, drift, exchange, wait) == expected


def lengths(drift_of: Any, measured: Measured, epochs: int, max_iterations: int | None = 16) -> list[list[int]]:
    """The changes of the length where a superstep drifts as `drift_of(length)` says."""
    steps = Supersteps("auto", 0.1, max_iterations)

    def work(comm: Communicator) -> list[list[int]]:
        for epoch in range(epochs):
            steps.end_epoch(epoch, replace(measured, drift=drift_of(steps.length)), comm)
        return steps.lengths

    return Threads.run(work, 1)[0]


def test_lengths_follow_the_drift(capfd: pytest.CaptureFixture[str]) -> None:
    assert lengths(lambda _: 0.0, SLOW, 40) == [[0, 1], [1, 2], [3, 4], [7, 8], [15, 16]]
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 4
    assert told[1] == (
        "strategy.local_iterations=auto: 4 instead of 2 from epoch 4 on, drift 0, exchange and synchronisation 67% "
        "of the time"
    )
    assert lengths(lambda _: 0.0, FAST, 40) == [[0, 1]]
    assert lengths(lambda _: 0.0, SLOW, 40, None) == [[0, 1], [1, 2], [3, 4]], "late rows are no drift"


def test_a_length_that_drifts_too_far_is_tried_again_less_and_less_often() -> None:
    found = lengths(lambda length: 0.04 * (length - 1), SLOW, 120)
    assert found == [
        [0, 1],
        [1, 2],
        [3, 4],
        [7, 2],
        [13, 4],
        [17, 2],
        [27, 4],
        [31, 2],
        [49, 4],
        [53, 2],
        [87, 4],
        [91, 2],
    ]


def test_the_drift_is_of_the_worker_that_drifted_most_in_the_superstep() -> None:
    def work(comm: Communicator) -> list[list[int]]:
        steps = Supersteps("auto", 0.1, 16)
        for epoch in range(8):
            drift = 0.2 * comm.rank if epoch == 4 else 0.0  # before the last epoch of the superstep of four
            steps.end_epoch(epoch, replace(SLOW, drift=drift), comm)
        return steps.lengths

    assert Threads.run(work, 2) == [[[0, 1], [1, 2], [3, 4], [7, 2]]] * 2


@pytest.mark.parametrize("share", [supersteps.MAX_REMOTE, 0.26])
def test_supersteps_stay_at_one_epoch_where_many_edges_lead_from_other_workers(
    share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = Supersteps("auto", None, None)

    def work(comm: Communicator) -> list[list[int]]:
        steps.begin(share, tells=True)
        for epoch in range(12):
            steps.end_epoch(epoch, SLOW, comm)
        return steps.lengths

    stays = share > supersteps.MAX_REMOTE
    assert Threads.run(work, 1)[0] == ([[0, 1]] if stays else [[0, 1], [1, 2], [3, 4]])
    assert ("stays at 1: the sources of 26% of the edges" in capfd.readouterr().err) == stays


def test_an_epoch_ends_with_a_mean_before_the_step_of_all_workers() -> None:
    updates = {k: [Supersteps(k, None, None).update(epoch) for epoch in range(4)] for k in (1, 2, 4)}
    assert updates[1] == ["synchronise"] * 4
    assert updates[2] == ["average", "conclude"] * 2
    assert updates[4] == ["own", "own", "average", "conclude"]


def test_a_fixed_length_reads_no_bounds() -> None:
    for name in ("max_drift", "max_iterations"):
        with pytest.raises(UserError, match=f"strategy.{name}=2 must be null: only strategy.local_iterations=auto"):
            VertexCentric(4, **{name: 2})
    with pytest.raises(UserError, match=r"strategy.local_iterations=all must be auto or a whole number"):
        VertexCentric("all")  # type: ignore[arg-type]
    steps = Supersteps(3, None, None)
    assert [epoch for epoch in range(9) if steps.exchanges(epoch)] == [2, 5, 8]


@pytest.mark.slow
def test_a_state_goes_on_within_a_superstep() -> None:
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0)

    def go_on(steps: Supersteps, first: int, last: int) -> Supersteps:
        for epoch in range(first, last):
            steps.end_epoch(epoch, replace(SLOW if epoch < 3 else FAST, drift=0.04), comm)
        return steps

    whole = go_on(Supersteps("auto", None, None), 0, 30)
    for cut in range(1, 12):
        rest = Supersteps("auto", None, None)
        rest.load_state_dict(copy.deepcopy(go_on(Supersteps("auto", None, None), 0, cut).state_dict()))
        found, expected = go_on(rest, cut, 30).state_dict(), whole.state_dict()
        assert torch.equal(found.pop("seconds"), expected.pop("seconds"))
        assert found == expected


def run(folder: Path, **keys: Any) -> dict[str, Any]:
    strategy = {"name": "vertex_centric", "local_iterations": "auto", "max_drift": 10.0, "max_iterations": 4}
    trainer = {"max_epochs": 8, "precision": 64, **keys.pop("trainer", {})}
    chosen = {
        "workers": 3,
        "threads": 1,
        "comm": "threads",
        "strategy": strategy,
        "report": False,
        "logger": "none",
        **keys,
    }
    return gnnkit.train(small_graph(), folder=folder, trainer=trainer, **chosen)  # type: ignore[return-value]


@pytest.mark.slow
@few("comm", ["threads", "gloo"], default=1)
def test_a_run_lengthens_and_all_workers_agree(tmp_path: Path, comm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supersteps, "WORTH", -1.0)
    monkeypatch.setattr(supersteps, "MAX_REMOTE", 1.0)
    result = run(tmp_path / "run", comm=comm, sync="leader")
    assert result["supersteps"] == [[0, 1], [1, 2], [3, 4]]
    assert not result["exact"]
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    assert {line["epoch"] for line in lines if line["synchronised"]} == {0, 2, 6}
    assert len([line for line in lines if line["synchronised"]]) == 3 * 3


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_superstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is left out of the decision here, so that the runs are alike to the bit."""
    monkeypatch.setattr(supersteps, "WORTH", -1.0)
    monkeypatch.setattr(supersteps, "MAX_REMOTE", 1.0)
    whole = run(tmp_path / "whole")
    run(tmp_path / "half", trainer={"max_epochs": 5})
    rest = run(tmp_path / "rest", trainer={"resume": str(tmp_path / "half")})
    assert rest["supersteps"] == whole["supersteps"]
    assert rest["drift"] == whole["drift"] > 0
    states = [checkpoint.load(tmp_path / name / "checkpoints/last.json")["state_dict"] for name in ("whole", "rest")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
def test_what_depends_on_time_is_not_verified(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job=verify needs steps that do not depend on timing"):
        run(tmp_path / "run", job="verify")


def test_a_fixed_length_is_a_figure_of_the_run() -> None:
    assert VertexCentric(3).figures() == {"supersteps": [[0, 3]], "exchange_bits": []}
