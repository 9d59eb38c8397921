"""Checkpoints that are written beside the next steps."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gnnkit
from gnnkit.errors import UserError
from gnnkit.training import checkpoint, resume, saving
from gnnkit.training.saving import Checkpoints
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.waiting import GUARD, NEVER, wait_until

KILLS = int(os.environ.get("GNNKIT_KILLS", "10"))


class Alone:
    """Stands for the trainer and the module of the only rank."""

    def __init__(self) -> None:
        self.x, self.global_step, self.embedding, self.sync = torch.zeros(4), 0, None, None
        self.worker = SimpleNamespace(comm=SimpleNamespace(rank=0, device=torch.device("cpu")))
        self.strategy, self.drifts = SimpleNamespace(steps=SimpleNamespace(keep_state=False)), False

    def settle(self) -> None:
        """Does nothing."""

    def step(self) -> None:
        self.global_step += 1
        self.x += 1


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    def state(trainer: Any, module: Any) -> dict[str, Any]:
        return {"state_dict": {"x": module.x}, "optimizer_states": [], "sync": {}, "embedding": {}}

    monkeypatch.setattr(saving, "state", state)
    return Alone()


class Disk:
    """A disk that writes when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes, self.begun, self.write = threading.Semaphore(0), 0, checkpoint.save
        monkeypatch.setattr(checkpoint, "save", self.save)

    def save(self, *arguments: Any) -> None:
        self.begun += 1
        assert self.goes.acquire(timeout=NEVER)
        self.write(*arguments)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


IDENTITY = resume.Identity({}, {})


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_change_it(tmp_path: Path, alone: Any, disk: Disk) -> None:
    with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        checkpoints.save(alone, alone, (1, 0))
        alone.step()
        assert not checkpoints.path.exists()
        disk.goes.release()
    assert checkpoint.load(checkpoints.path)["state_dict"]["x"].tolist() == [0.0] * 4
    assert alone.x.tolist() == [1.0] * 4


def test_a_save_waits_for_the_one_before(tmp_path: Path, alone: Any, disk: Disk) -> None:
    with Checkpoints(tmp_path / "last.json", IDENTITY, keep=2) as checkpoints:
        checkpoints.save(alone, alone, (1, 0))
        alone.step()
        threading.Timer(0.1, disk.goes.release).start()
        checkpoints.save(alone, alone, (2, 0))
        assert checkpoint.load(checkpoints.path)["epoch"] == 1
        disk.goes.release()
        checkpoints.wait()
        assert disk.begun == 2
    assert [checkpoint.load(file)["epoch"] for file in checkpoint.list_checkpoints(checkpoints.path)] == [2, 1]


@pytest.mark.parametrize("at", ["step", "save", "end"])
def test_an_error_of_writing_is_raised_on_the_training_thread(
    tmp_path: Path, alone: Any, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    later: dict[str, Callable[[Checkpoints], object]] = {
        "step": lambda saves: wait_until(saves.look),
        "save": lambda saves: saves.save(alone, alone, (2, 0)),
        "end": lambda saves: None,
    }

    def run() -> None:
        with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
            checkpoints.save(alone, alone, (1, 0))
            later[at](checkpoints)

    with pytest.raises(OSError, match="No space left on device"):
        run()


def test_a_run_that_is_broken_off_waits_a_moment_for_the_checkpoint_at_hand(
    tmp_path: Path, alone: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at SIGTERM. It ends in time with a disk that does not answer."""
    monkeypatch.setattr(saving, "GRACE", 0.2)

    def broken_off(name: str) -> Path:
        with contextlib.suppress(SystemExit), Checkpoints(tmp_path / name, IDENTITY) as checkpoints:
            checkpoints.save(alone, alone, (1, 0))
            raise SystemExit(143)
        return tmp_path / name

    assert not broken_off("slow.json").exists()
    monkeypatch.setattr(saving, "GRACE", GUARD)
    disk.goes.release(2)
    assert checkpoint.load(broken_off("last.json"))["epoch"] == 1


class Leader:
    """The communicator of rank 0 of three. The others' states have 40 and 100 bytes."""

    rank, world_size, device = 0, 3, torch.device("cpu")

    def __init__(self) -> None:
        self.sizes, self.gathers, self.fails = [0, 40, 100], 0, lambda: None

    def all_gather(self, values: int) -> torch.Tensor:
        self.left = [torch.full((size,), rank, dtype=torch.uint8) for rank, size in enumerate(self.sizes)]
        return torch.tensor(self.sizes)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.gathers += 1
        self.fails()
        rank = next(rank for rank, packed in enumerate(self.left) if len(packed))
        piece, self.left[rank] = self.left[rank][: saving.PIECE], self.left[rank][saving.PIECE :]
        return [piece if number == rank and self.sizes[rank] else piece[:0] for number in range(3)]

    def broadcast(self, x: torch.Tensor, *, src: int) -> torch.Tensor:
        return x


@pytest.fixture
def leader_run(alone: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The leader of ranks whose states differ, and travel in pieces of 16 bytes."""
    monkeypatch.setattr(saving, "PIECE", 16)
    alone.worker.comm, alone.drifts = Leader(), True
    return alone


def states_in(path: Path) -> list[list[int]]:
    return [packed.tolist() for packed in checkpoint.load(path)["workers"]]


def test_states_of_other_ranks_come_piece_by_piece_while_the_file_is_written(tmp_path: Path, leader_run: Any) -> None:
    with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        checkpoints.save(leader_run, leader_run, (1, 0))
    assert states_in(checkpoints.path) == [[], [1] * 40, [2] * 100]
    assert leader_run.worker.comm.gathers == 3 + 7


def test_the_leader_takes_no_more_than_one_state_before_the_disk(tmp_path: Path, leader_run: Any, disk: Disk) -> None:
    with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        leader_run.worker.comm.sizes = [0, 100, 100]
        thread = threading.Thread(target=checkpoints.save, args=(leader_run, leader_run, (1, 0)))
        thread.start()
        time.sleep(0.1)
        assert 16 * leader_run.worker.comm.gathers < 100 + 2 * 16
        disk.goes.release()
        thread.join()
    assert states_in(checkpoints.path) == [[], [1] * 100, [2] * 100]


def test_a_disk_that_fails_does_not_hold_up_the_states_of_others(
    tmp_path: Path, leader_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="No space left"), Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        checkpoints.save(leader_run, leader_run, (1, 0))
    assert leader_run.worker.comm.gathers == 10


def test_a_save_that_is_broken_off_keeps_the_checkpoint_before(tmp_path: Path, leader_run: Any) -> None:
    """As where a peer dies, or the run is told to end."""

    def fails() -> None:
        if leader_run.worker.comm.gathers == 15:
            raise SystemExit(143)

    leader_run.worker.comm.fails = fails
    checkpoints = Checkpoints(tmp_path / "last.json", IDENTITY)
    checkpoints.save(leader_run, leader_run, (1, 0))
    with pytest.raises(SystemExit), checkpoints:
        checkpoints.save(leader_run, leader_run, (2, 0))
    assert checkpoint.load(checkpoints.path)["epoch"] == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_worker_that_dies_while_its_state_travels_is_left_out(tmp_path: Path, leader_run: Any) -> None:
    """Where the others go on without it."""

    def fails() -> None:
        if leader_run.worker.comm.gathers == 2:
            leader_run.worker.comm.sizes = [0, 0, 100]

    leader_run.worker.comm.fails = fails
    with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        checkpoints.save(leader_run, leader_run, (1, 0))
    assert states_in(checkpoints.path) == [[], [], [2] * 100]


def test_tensors_that_are_left_in_the_file_are_none(tmp_path: Path, leader_run: Any) -> None:
    with Checkpoints(tmp_path / "last.json", IDENTITY) as checkpoints:
        checkpoints.save(leader_run, leader_run, (1, 0))
    state = checkpoint.load(checkpoints.path, lambda name: name == "/workers/2")
    assert state["workers"][1].tolist() == [1] * 40
    assert state["workers"][2] is None


@pytest.mark.parametrize("dtype", [t for t in checkpoint._TYPES if t not in (torch.float8_e4m3fn, torch.float8_e5m2)])
def test_tensors_of_all_types_and_shapes_are_files_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    x = (torch.arange(6) % 2).to(dtype)
    state = {"flat": x, "turned": x.view(2, 3).t(), "one": x[3], "none": x[:0], "part": x[1:3], "half": torch.ones(3)}
    checkpoint.save(state, tmp_path / "last.json")
    (file,) = tmp_path.glob("*.safetensors")
    for found in (checkpoint.load(tmp_path / "last.json"), checkpoint.unpack(checkpoint.pack(state))):
        assert all(
            torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in state.items()
        )
    assert load_file(file).keys() == {f"/{name}" for name in state}


def test_what_a_writer_that_was_killed_has_left_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".last-0123.safetensors.ab").write_bytes(b"half")
    checkpoint.save({"x": torch.ones(3)}, tmp_path / "last.json")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_full_disk_ends_the_run_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "last.json")

    monkeypatch.setattr(checkpoint, "save", full)
    keys = {"strategy": "vertex_centric", "workers": 2, "comm": "gloo", "threads": 1, **BARE}
    message = r"^last.json: No space left on device: free some, or name a folder on another disk with output=FOLDER"
    with pytest.raises(UserError, match=message) as failed:
        gnnkit.train(small_graph(), folder=tmp_path, trainer={"max_epochs": 10**6, "checkpoint_every": 1}, **keys)
    assert "Traceback" not in str(failed.value)


def save_for_ever(folder: Path, alone: Any) -> None:
    """Saves large states as steps of a run do, and notes each that is whole."""
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    alone.x = torch.zeros(1 << 20)
    with Checkpoints(folder / "last.json", IDENTITY, keep=2) as checkpoints:
        while True:
            alone.step()
            checkpoints.save(alone, alone, (alone.global_step, 0))  # the one before is whole
            (folder / "whole").write_text(str(alone.global_step - 1))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_while_it_writes_leaves_the_checkpoint_before_or_the_new_one(
    tmp_path: Path, alone: Any
) -> None:
    """GNNKIT_KILLS=200 kills as often."""
    random, reached = Random(0), 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        pid = os.fork()
        if not pid:
            try:
                save_for_ever(folder, alone)
            finally:  # of an error, after which the fork must not go on with the tests
                traceback.print_exc()
                os._exit(1)
        while not (folder / "whole").exists() or (folder / "whole").read_text() in ("", "0"):
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the fork has ended"
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        noted = int((folder / "whole").read_text() or 0)
        state, _, damaged = checkpoint.load_whole(folder / "last.json")
        assert not damaged
        assert state["epoch"] >= noted
        assert torch.equal(state["state_dict"]["x"], torch.full((1 << 20,), float(state["epoch"])))
        reached += len(list(folder.glob(".last*")))
    assert reached  # some were killed while a file was half written
