"""The leader watches: states of workers, stragglers, and what a terminal shows."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import Tensor

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.model.gcn import GCN
from gnnkit.training import run as running
from gnnkit.training.display import Display, worker_table
from gnnkit.training.leader import WorkerState
from gnnkit.training.stragglers import Straggler, Stragglers
from tests.training.test_run import small_graph

SLOW, FIRST_SLOW, SECONDS = 1, 10, 0.03  # rank, step, seconds it sleeps in each


class Sleeps(GCN):
    """One rank sleeps from some step on."""

    steps = 0

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        self.steps += self.training
        if int(os.environ["RANK"]) == SLOW and self.steps >= FIRST_SLOW:
            time.sleep(SECONDS)
        return super().forward(x, adjacencies)


def train(folder: Path, model: Any = GCN, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 30, "precision": 64, "checkpoint": False, **keys.pop("trainer", {})}
    chosen = {"workers": 3, "threads": 1, "comm": "gloo", "trainer": trainer, **keys}
    return gnnkit.train(small_graph(), strategy="vertex_centric", model=model, folder=folder, **chosen)


@pytest.mark.parametrize("sync", ["all_reduce", "leader"])
def test_a_slow_rank_is_named_within_ten_steps_and_changes_nothing(
    tmp_path: Path, sync: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train(tmp_path / "slow", Sleeps, sync=sync)
    named = re.findall(r"step (\d+): rank (\d) is slow in compute, .* times the others'", capfd.readouterr().err)
    found = [int(step) for step, rank in named if int(rank) == SLOW]
    assert found, "it is named"
    assert FIRST_SLOW < found[0] <= FIRST_SLOW + 10
    assert result["stragglers"][f"rank {SLOW}"] > 2
    assert result["train_loss"] == train(tmp_path / "even", sync=sync)["train_loss"]
    check_states(tmp_path / "slow/workers.jsonl")


def check_states(path: Path) -> None:
    """They say where the time went: the slow rank computes, the others wait for it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    late = [line for line in lines if line["step"] > FIRST_SLOW]
    slow, waiting = ([line for line in late if (line["rank"] == SLOW) == own] for own in (True, False))
    assert all(line["seconds_compute"] >= SECONDS for line in slow)
    assert np.median([line["phase"] == "compute" for line in slow]) == 1
    assert np.median([line["phase"] != "compute" for line in waiting]) == 1


def observed(steps: np.ndarray) -> list[Straggler]:
    """`steps` [num_steps, num_workers] seconds."""
    watch = Stragglers(steps.shape[1])
    return [straggler for step, row in enumerate(steps) for straggler in watch.observe(step, row.tolist())]


def test_noise_and_single_slow_steps_are_no_stragglers() -> None:
    rng = np.random.default_rng(0)
    steps = 0.02 * rng.lognormal(0, 0.3, (500, 4))
    steps[::5] *= rng.choice([1, 20], (100, 4))
    assert observed(steps) == []
    assert observed(np.full((50, 1), 1.0)) == []
    assert observed(np.tile([0.0001, 0.004], (50, 1))) == [], "too short to tell from noise"


def test_a_slow_worker_is_named_once_until_it_recovers() -> None:
    steps = np.full((90, 4), 0.02)
    steps[20:40, 2] = steps[60:80, 2] = 0.1
    assert [(s.rank, s.step, round(s.factor)) for s in observed(steps)] == [(2, 23, 5), (2, 63, 5)]


def test_two_slow_workers_of_five_are_both_named() -> None:
    steps = np.full((30, 5), 0.02)
    steps[:, [0, 3]] = 0.09
    assert [(s.rank, s.step) for s in observed(steps)] == [(0, 6), (3, 6)]


STATE = WorkerState(7, 0.5, 1.25, 0.003, 0.02, 0.001, 1234.0, 2**30)


def test_the_table_holds_every_workers_state() -> None:
    text = io.StringIO()
    Console(file=text, width=120).print(worker_table([STATE, STATE]))
    rows = [line.split() for line in text.getvalue().splitlines()[1:]]
    assert rows == [[r, "7", "exchange", "0.5000", "1.25", "1,234", "3.0", "20.0", "1.0", "1024"] for r in "01"]


def test_a_terminal_shows_workers_live_and_a_pipe_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen = tmp_path / "screen"

    class OnScreen(Display):
        def __init__(self, leader: Any) -> None:
            super().__init__(leader, Console(file=screen.open("w"), force_terminal=True, width=120))

    monkeypatch.setattr(running, "Display", OnScreen)
    train(tmp_path / "terminal", Sleeps, trainer={"progress_bar": True, "max_epochs": 20})
    drawn = screen.read_text()
    for expected in ("20/20", "train_loss", "gradient norm", "exchange ms"):
        assert expected in drawn
    assert "\x1b[?25h" in drawn[-200:], "the cursor is back"
    screen.unlink()
    train(tmp_path / "pipe", comm="threads", trainer={"progress_bar": "auto", "max_epochs": 2})
    assert not screen.exists()
    assert "\x1b" not in capfd.readouterr().out
