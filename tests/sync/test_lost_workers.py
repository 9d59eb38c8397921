"""Runs end, or go on without the workers that die, as `sync.on_lost` says."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.jobs import figures, rank_run
from gnnkit.launch.processes import RankError
from gnnkit.sync.server import Server
from gnnkit.sync.server_client import ServerClient, ServerGroup
from gnnkit.task.evaluation import ChunkEvaluation
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.waiting import GUARD

LAST, SERVER = 2, 3
Fate = Callable[[int], None]  # called with the rank


def kill(rank: int, victim: int = LAST) -> None:
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)


_DIES = multiprocessing.get_context("fork").Event()  # of the process that a test forks


def kill_while_waiting(rank: int) -> None:
    """Kills the last worker while the worker waits for a slow one."""
    if rank == LAST:
        threading.Timer(0.2, lambda: (_DIES.set(), kill(rank))).start()
    elif rank == 1:
        assert _DIES.wait(GUARD)
        time.sleep(0.2)


def kill_or_fail(rank: int) -> None:
    """Leaves the leader alone."""
    kill(rank)
    if rank == 1:
        raise ZeroDivisionError("mine")


# The fate comes before a call: owner and name of the function, number of the call.
PHASES: dict[str, tuple[Any, str, int]] = {
    "the set-up": (rank_run, "make_module", 1),
    "the first push": (ServerClient, "step", 1),
    "a read": (ServerGroup, "_reply", 5),
    "a settlement": (ServerClient, "settle", 1),
    "an evaluation": (ChunkEvaluation, "_after", 3),
    "the last figures": (figures, "words_between", 1),
    "an answer of a server": (Server, "_take_in", 9),
}


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fate], None]:
    """Lets a fate come over each rank in one phase: `strike("a read", kill)`."""

    def strike(phase: str, fate: Fate) -> None:
        owner, name, number = PHASES[phase]
        call, calls = getattr(owner, name), 0

        def wrapped(*arguments: Any, **keys: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number and "RANK" in os.environ:
                fate(int(os.environ["RANK"]))
            return call(*arguments, **keys)

        monkeypatch.setattr(owner, name, wrapped)

    return strike


def train(folder: Path, **sync: Any) -> dict[str, Any]:
    return dict(
        gnnkit.train(
            small_graph(),
            strategy={"name": "individual_sample", "batch_size": 4},
            model="sage",
            sampler={"name": "neighbor", "fanouts": [5, 5]},
            sync={"name": "parameter_server", **sync},
            comm={"name": "gloo", "timeout": GUARD},
            trainer={"max_epochs": 2},
            workers=3,
            threads=1,
            report=False,
            logger="none",
            folder=folder,
        )
    )


def check_whole(result: dict[str, Any], folder: Path) -> None:
    """The figures are about all nodes."""
    graph, predictions = small_graph(), np.load(folder / "predictions.npy")
    right = predictions == graph.labels
    assert predictions.shape == (graph.num_nodes,)
    assert result["epochs"] == 2
    for name in ("train", "val", "test"):
        members = graph.split == Split[name.upper()]
        assert result[f"{name}_accuracy"] == pytest.approx(right[members].mean())


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    "phase,fate,sync",
    [
        pytest.param("the set-up", kill, {"mode": "ssp"}, id="the set-up"),
        pytest.param("the first push", kill, {"mode": "async"}, id="the first push"),
        pytest.param("a read", kill_while_waiting, {"mode": "sync", "servers": 1}, id="a read"),
        pytest.param("an evaluation", kill, {"name": "leader", "mode": "ssp", "staleness": 1}, id="an evaluation"),
        pytest.param("the last figures", kill, {"name": "leader", "mode": "sync"}, id="the last figures"),
    ],
    default=["an evaluation"],
)
def test_a_run_goes_on_without_a_lost_worker(
    tmp_path: Path,
    strike: Callable[[str, Fate], None],
    capfd: pytest.CaptureFixture[str],
    phase: str,
    fate: Fate,
    sync: dict[str, Any],
) -> None:
    strike(phase, fate)
    result = train(tmp_path / "run", on_lost="continue", **sync)
    assert result["lost_workers"] == ["rank 2"]
    assert "rank 2 was ended by SIGKILL" in capfd.readouterr().err
    check_whole(result, tmp_path / "run")


@pytest.mark.slow
def test_the_leader_goes_on_alone(
    tmp_path: Path, strike: Callable[[str, Fate], None], capfd: pytest.CaptureFixture[str]
) -> None:
    strike("a read", kill_or_fail)
    result = train(tmp_path / "run", on_lost="continue", mode="async")
    assert result["lost_workers"] == ["rank 1", "rank 2"]
    output = capfd.readouterr().err
    assert "rank 1 failed: ZeroDivisionError: mine; the run continues without rank 1\n" in output
    assert "in kill_or_fail" in output
    check_whole(result, tmp_path / "run")


@pytest.mark.slow
@few(
    "phase,sync",
    [
        pytest.param("a read", {"mode": "ssp", "servers": 1}, id="a read"),
        pytest.param("a settlement", {"name": "leader", "mode": "async"}, id="a settlement"),
    ],
    default=["a settlement"],
)
def test_a_lost_worker_ends_the_run_by_default(
    tmp_path: Path, strike: Callable[[str, Fate], None], phase: str, sync: dict[str, Any]
) -> None:
    strike(phase, kill)
    with pytest.raises(RankError, match=r"^rank 2 was ended by SIGKILL"):
        train(tmp_path / "run", **sync)


@pytest.mark.slow
def test_a_run_never_goes_on_without_a_server(tmp_path: Path, strike: Callable[[str, Fate], None]) -> None:
    strike("an answer of a server", lambda rank: kill(rank, SERVER))
    with pytest.raises(RankError, match=r"^rank 3 was ended by SIGKILL"):
        train(tmp_path / "run", on_lost="continue", servers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"strategy": "vertex_centric"}, "strategy=vertex_centric exchanges rows between workers"),
        ({"strategy": "joint_sample"}, "strategy=joint_sample exchanges rows between workers"),
        (
            {"strategy": {"name": "individual_sample", "features": "partitioned"}},
            "workers fetch rows from each other, so each step needs every worker",
        ),
        ({"strategy": "individual_sample", "comm": "threads"}, "with comm=threads all workers are one process"),
        (
            {"strategy": "individual_sample", "task": "link_prediction"},
            "task=link_prediction measures with rows of all workers",
        ),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_before_its_start(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"^sync.on_lost=continue: .*{told}"):
        gnnkit.train(
            small_graph(), sync={"name": "parameter_server", "on_lost": "continue"}, folder=tmp_path / "run", **keys
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_under_torchrun_is_not_promised_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
    }
    for name, value in outside.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"^sync\.on_lost=continue: torchrun ends all workers"):
        gnnkit.train(
            small_graph(),
            strategy="individual_sample",
            sync={"name": "leader", "on_lost": "continue"},
            folder=tmp_path / "run",
        )
