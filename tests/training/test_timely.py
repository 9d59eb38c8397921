"""Checkpoints by the clock, and at a signal: steps that all ranks agree on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

import gnnkit
from gnnkit.launch import processes, progress
from gnnkit.training import checkpoint, saving
from gnnkit.training.saving import BETWEEN, Checkpoints, TimelyCheckpoint
from tests.cases import exhaustive
from tests.forked import Forked
from tests.jobs.test_train import small_graph
from tests.runs import BARE, within_process
from tests.waiting import GUARD

SAMPLED = {
    "strategy": {"name": "individual_sample", "batch_size": 3},
    "sampler": {"name": "neighbor", "fanouts": [3, 3]},
}
NEVER = 10**6


@pytest.fixture(scope="module", autouse=True)
def within() -> None:
    """Takes the place of the fixture that keeps runs in the process of the test."""


class Place:
    """Stands for the trainer and the module of the only rank."""

    def __init__(self, steps: int, accumulate: int = 1) -> None:
        self.resumed, self.loader, self.accumulate = (0, 0), range(steps), accumulate
        self.current_epoch, self.worker, self.comm, self.device = 0, self, self, "cpu"
        self.looks = self.rank = 0

    def broadcast(self, x: torch.Tensor, src: int) -> torch.Tensor:
        self.looks += 1
        return x


class Saves(Checkpoints):
    """Notes the places where a run would save."""

    def __init__(self, note: Callable[[Any], object]) -> None:
        self.note, self.waits = note, 0

    def save(self, trainer: Any, module: Any, position: tuple[int, int]) -> None:
        self.note(position)

    def wait(self) -> None:
        self.waits += 1


def walk(place: Place, rule: Any, epochs: int, clock: list[float], seconds: float) -> None:
    """Takes all steps of some epochs, each of which takes so many seconds."""
    rule.on_train_start(place, place)
    for place.current_epoch in range(epochs):
        rule.on_train_epoch_start(place, place)
        for step in place.loader:
            clock[0] += seconds
            rule.on_train_batch_end(place, place, None, None, step)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(saving, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    return now


@pytest.mark.parametrize(("steps", "accumulate"), [(1, 1), (40, 1), (40, 4)])
def test_a_checkpoint_comes_every_so_many_minutes_and_looks_are_rare(
    clock: list[float], steps: int, accumulate: int
) -> None:
    saved: list[tuple[float, tuple[int, int]]] = []
    rule = TimelyCheckpoint(Saves(lambda position: saved.append((clock[0], position))), 0.1)
    place = Place(steps, accumulate)
    walk(place, rule, 4000 // steps, clock, 0.01)  # 40 seconds
    times = [at for at, _ in saved]
    assert len(times) == 6
    assert all(6 <= after - before < 6 + 2 * BETWEEN for before, after in zip([0.0, *times], times, strict=False))
    assert all(step % accumulate == 0 and step < steps for _, (_, step) in saved)
    assert place.looks < 120


def test_steps_that_slow_down_bring_the_looks_back(clock: list[float]) -> None:
    place, rule = Place(1), TimelyCheckpoint(Saves(lambda _: None), None)
    walk(place, rule, 1000, clock, 0.001)
    before = place.looks
    walk(place, rule, 1000, clock, 2.0)
    assert place.looks - before > 400


def test_no_checkpoint_is_due_where_nobody_asks(clock: list[float]) -> None:
    saved: list[Any] = []
    walk(Place(10), TimelyCheckpoint(Saves(saved.append), None), 100, clock, 1.0)
    assert saved == []


def test_the_launcher_asks_and_hears(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    board, saved = progress.Board(), list[Any]()
    monkeypatch.setattr(progress, "_own_board", board)
    places = Saves(saved.append)
    rule = TimelyCheckpoint(places, None)
    walk(Place(10), rule, 1, clock, 1.0)
    assert board.saves
    assert not board.saved
    board.asked = True
    walk(Place(10), rule, 1, clock, 1.0)
    assert board.saved
    assert saved[0] == (0, 1)
    assert places.waits == len(saved) > 0
    rule.on_train_end(None, None)
    assert not board.saves


class Wait(L.Callback):
    """Makes each step take so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(self.seconds)


def train(folder: Path, max_epochs: int, seconds: float = 0.0, **keys: Any) -> Any:
    trainer = {"max_epochs": max_epochs, "checkpoint_every": NEVER, "warmup_epochs": 0, **keys.pop("trainer", {})}
    given = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "comm": "gloo", **BARE, **keys}
    return gnnkit.train(small_graph(), folder=folder, trainer=trainer, callbacks=[Wait(seconds)], **given)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "keys"),
    [
        exhaustive((signal.SIGINT, {})),
        exhaustive((signal.SIGTERM, SAMPLED)),
        (signal.SIGTERM, {"comm": "threads"}),
        exhaustive((signal.SIGINT, {"sync": {"name": "parameter_server", "servers": 1}})),
    ],
)
def test_a_signal_leaves_a_checkpoint_of_the_step_at_hand(
    tmp_path: Path, number: signal.Signals, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SAVING", GUARD)
    steps = tmp_path / "run/workers.jsonl"

    def send() -> None:
        while not steps.is_file() or '"epoch": 2' not in steps.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    def work() -> None:
        threading.Thread(target=send, daemon=True).start()
        code = 0
        try:
            train(tmp_path / "run", NEVER, seconds=0.02, **keys)
        except KeyboardInterrupt:
            code = 130
        except SystemExit as error:
            code = int(str(error.code))
        (tmp_path / "ended").write_text(str(code))

    forked = Forked(work, tmp_path)
    forked.process.join(GUARD)
    assert int((tmp_path / "ended").read_text()) == 128 + number
    saved = checkpoint.load(tmp_path / "run/checkpoints/last.json")
    assert saved["global_step"] > 0
    told = re.search(r"interrupted: .* keeps the last checkpoint, of step (\d+) \(epoch (\d+) done\): ", forked.text())
    assert told is not None, forked.text()
    assert [int(each) for each in told.groups()] == [saved["global_step"], saved["epoch"]]
    more = saved["epoch"] + 2
    with within_process():
        resumed = train(tmp_path / "more", more, trainer={"resume": str(tmp_path / "run")}, **keys)
        whole = train(tmp_path / "whole", more, **keys)
    assert resumed["epochs"] < whole["epochs"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("more", "whole")]
    assert weights[0] == weights[1]
