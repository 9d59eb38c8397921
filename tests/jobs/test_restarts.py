"""`restarts=N`: ranks that were killed start again. The run ends as an unbroken one."""

from __future__ import annotations

import csv
import errno
import functools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.jobs import restarts
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.restarts import restarting
from gnnkit.launch.launcher import Failure, RankError
from gnnkit.training import checkpoint
from gnnkit.training.saving import PeriodicCheckpoint
from tests.cases import exhaustive, few
from tests.forked import Forked
from tests.jobs.test_train import small_graph
from tests.processes import children
from tests.waiting import GUARD, NEVER, wait_until

KILLED = "ended by SIGKILL"
TIMES = ("seconds_per_epoch", "time_to_accuracy", "wait_share", "phases", "seconds_total", "seconds_setup", "command")
FULL: dict[str, Any] = {"strategy": "vertex_centric"}
SAMPLED: dict[str, Any] = {
    "strategy": {"name": "individual_sample", "batch_size": 3},
    "sampler": {"name": "neighbor", "fanouts": [3, 3]},
    "trainer": {"checkpoint_every_n_steps": 2, "monitor": "val_accuracy", "patience": 3, "max_epochs": 12},
}
SERVED: dict[str, Any] = {
    "strategy": "preset_workload",
    "sync": {"name": "parameter_server", "servers": 1},
}
LOCAL: dict[str, Any] = {"strategy": {"name": "vertex_centric", "local_iterations": 2}}
JOINT: dict[str, Any] = {**SAMPLED, "strategy": {"name": "joint_sample", "batch_size": 9}, "trainer": {}}


def siblings() -> list[int]:
    """Lists the ranks' process ids, in order: children that this test forked."""
    started = children(os.getppid())
    return sorted(pid for pid, command in started.items() if command == started[os.getpid()])


def kill(rank: int) -> None:
    os.kill(siblings()[rank], signal.SIGKILL)
    time.sleep(NEVER)  # no step is taken meanwhile


def stop(rank: int) -> None:
    os.kill(siblings()[rank], signal.SIGSTOP)


def crash(rank: int) -> None:
    raise ZeroDivisionError("mine")


class Faults(L.Callback):
    """Lets the leader do a fault before some steps, each once."""

    def __init__(self, folder: Path, faults: Sequence[tuple[int, Callable[[], None]]]) -> None:
        self.folder, self.faults = folder, faults
        folder.mkdir(exist_ok=True)

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        for number, (step, fault) in enumerate(self.faults):
            done = self.folder / f"fault-{number}"
            if trainer.is_global_zero and trainer.global_step == step and not done.exists():
                done.touch()
                for each in trainer.callbacks:  # type: ignore[attr-defined]
                    if isinstance(each, PeriodicCheckpoint):
                        each.checkpoints.wait()
                fault()


def run(folder: Path, faults: Sequence[tuple[int, Callable[[], None]]] = (), **keys: Any) -> Any:
    trainer = {"max_epochs": 8, "checkpoint_every": 2, "check_val_every_n_epoch": 1} | keys.pop("trainer", {})
    comm = {"name": "gloo", "timeout": GUARD}
    return gnnkit.train(
        small_graph(),
        folder=folder,
        trainer=trainer,
        callbacks=[Faults(folder.with_name("faults"), faults)],
        **{"workers": 3, "threads": 1, "report": False, "logger": "csv", "comm": comm, **keys},
    )


@functools.cache
def unbroken(folder: Path, case: str) -> tuple[Any, Path]:
    return run(folder / case, **CASES[case]), folder / case


CASES = {
    "full": FULL,
    "sampled": SAMPLED,
    "served": SERVED,
    "joint": JOINT,
    "local": LOCAL,
    "threads": {**FULL, "comm": "threads"},
    "parts": {**FULL, "comm": "threads", "parts": 5, "workers": 2},
}


@pytest.fixture(scope="module", autouse=True)
def within() -> None:
    """Takes the place of the fixture that keeps runs in the process of the test."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs without a fault, each made once."""
    return tmp_path_factory.mktemp("base")


def lines(path: Path, *fields: str) -> list[Any]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [[line.get(field) for field in fields] for line in found]


def curves(path: Path) -> list[Any]:
    with path.open(newline="") as file:
        return sorted((row["step"], row["train_loss"], row["val_accuracy"]) for row in csv.DictReader(file))


def assert_as_unbroken(result: Any, folder: Path, base: Path, case: str) -> None:
    """Compares weights to the bit, figures and curves with a run without a fault."""
    expected, other = unbroken(base, case)
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    timed = (*TIMES, "stragglers", "restarts", "restarted")
    assert {k: v for k, v in result.items() if k not in timed} == {k: v for k, v in expected.items() if k not in timed}
    assert result["phases"].keys() == expected["phases"].keys()
    for file, fields in (
        ("epochs.jsonl", ("epoch", "steps", "train_loss", "rows", "edges", "bytes_sent", "figures")),
        ("workers.jsonl", ("rank", "epoch", "step", "loss", "rows", "total")),
    ):
        found, wanted = (sorted(map(json.dumps, lines(each / file, *fields))) for each in (folder, other))
        assert found == wanted  # lines of evaluations may come before or after those of the epoch
    clocks = [clock for (clock,) in lines(folder / "epochs.jsonl", "clock")]
    assert clocks == sorted(clocks)
    assert curves(folder / "csv/metrics.csv") == curves(other / "csv/metrics.csv")


def places(result: Any) -> list[tuple[str, int]]:
    """Returns rank and checkpoint of each restart. The step may be the one before."""
    assert all(each["step"] == each["epoch"] > each["from_step"] for each in result["restarted"])
    return [(each["rank"], each["from_step"]) for each in result["restarted"]]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.long("starts three ranks four times, as processes")
def test_a_run_whose_ranks_are_killed_ends_as_an_unbroken_one(
    tmp_path: Path, base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The leader before a checkpoint, and rank 2 with a damaged checkpoint."""
    folder = tmp_path / "run"
    before = children(os.getpid())

    def damage_and_kill() -> None:
        (folder / "checkpoints/last.json").write_text("{}")
        kill(2)

    faults = [(1, lambda: kill(0)), (5, damage_and_kill)]
    result = run(folder, faults, restarts=2, **FULL, report=True)
    assert result["restarts"] == 2
    assert places(result) == [("rank 0", 0), ("rank 2", 2)]
    assert all(each["seconds_lost"] > 0 for each in result["restarted"])
    assert_as_unbroken(result, folder, base, "full")
    told = capfd.readouterr().err
    assert re.search(
        r"(?m)^gnnkit: restart 1 of 2: rank 0 was ended by .*, in step \d \(epoch \d\): training starts from", told
    )
    assert re.search(
        r"\ngnnkit: restart 2 of 2: rank 2 was ended .*: training resumes after step 2 \(epoch 3\)\n", told
    )
    assert "last.json is not whole" in told
    assert told.count("gnnkit: restart") == 2
    assert KILLED in (folder / "failure-2.txt").read_text()
    page = (folder / "report.html").read_text()
    assert "Restarts" in page
    assert page.count(KILLED) >= 2
    assert not (folder / "prepared").exists()
    assert not (folder / ".lock").exists()
    assert children(os.getpid()).keys() <= before.keys()


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    "case,victim,step",
    [("sampled", 1, 9), ("served", 3, 5), ("joint", 2, 3), ("local", 1, 5), ("threads", 0, 5), ("parts", 1, 5)],
    default=(("threads", 0, 5),),
)
def test_each_way_of_training_goes_on_to_the_bit(tmp_path: Path, base: Path, case: str, victim: int, step: int) -> None:
    """In mid-epoch with early stopping, without a server, and with ranks as threads."""
    result = run(tmp_path / "run", [(step, lambda: kill(victim))], restarts=1, **CASES[case])
    assert result["restarts"] == 1
    assert_as_unbroken(result, tmp_path / "run", base, case)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_workers_that_do_not_wait_for_each_other_start_again_too(tmp_path: Path) -> None:
    keys = {**SERVED, "sync": {"name": "parameter_server", "mode": "async", "servers": 1}, "workers": 2}
    result = run(tmp_path / "run", [(2, lambda: kill(1))], restarts=1, trainer={"max_epochs": 4}, **keys)
    assert (result["restarts"], result["epochs"]) == (1, 4)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_launcher_that_is_killed_leaves_no_rank_and_its_folder_goes_on(tmp_path: Path, base: Path) -> None:
    """After a restart of its own."""
    folder, pids = tmp_path / "run", tmp_path / "pids"

    def kill_launcher() -> None:
        pids.write_text(" ".join(map(str, siblings())))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(NEVER)

    faults = [(3, lambda: kill(1)), (5, kill_launcher)]
    Forked(lambda: run(folder, faults, restarts=2, **FULL), tmp_path).process.join(GUARD)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()))
    resumed = run(folder, faults, restarts=2, on_exists="resume", **FULL)
    assert (resumed["restarts"], resumed["epochs"]) == (0, 4)
    other = unbroken(base, "full")[1]
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert {epoch for (epoch,) in lines(folder / "epochs.jsonl", "epoch")} == {4, 5, 6, 7}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rank_that_hangs_beyond_its_deadline_is_started_again(tmp_path: Path, base: Path) -> None:
    keys = {**FULL, "comm": {"name": "gloo", "timeout": 8.0}}
    result = run(tmp_path / "run", [(5, lambda: stop(1))], restarts=1, **keys)
    assert re.search(r"rank 1 in (step 5|an evaluation) \(stopped by SIGSTOP\)", result["restarted"][0]["cause"])
    assert_as_unbroken(result, tmp_path / "run", base, "full")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_same_failure_twice_at_one_step_ends_the_run(tmp_path: Path) -> None:
    crashes = [(5, lambda: crash(0))] * 5
    with pytest.raises(RankError) as error:
        run(tmp_path / "run", crashes, restarts=4, **FULL)
    message = str(error.value)
    assert message.startswith("rank 0 failed: ZeroDivisionError: mine\n")
    assert "\nrestarts=4: the same failure occurred twice at the same step (rank 0 failed" in message
    assert message.count("\n  restart ") == 1
    assert "Traceback" in (tmp_path / "run/failure-1.txt").read_text()


class Ranks:
    """Stands for the ranks, which fail at given steps and save checkpoints."""

    def __init__(self, folder: Path, *failures: BaseException, saves: bool = False) -> None:
        self.folder, self.failures, self.saves = folder, list(failures), saves
        self.jobs: list[RankJob] = []

    def __call__(self, job: RankJob) -> dict[str, Any]:
        self.jobs.append(job)
        if self.saves:
            state = {"epoch": len(self.jobs), "step": 0, "global_step": 3 * len(self.jobs)}
            checkpoint.save(state, self.folder / "checkpoints/last.json")
        if self.failures:
            raise self.failures.pop(0)
        return {"epochs": 1}


def died(step: int | None, name: str = "rank 1", cause: str = "rank 1 was ended by SIGKILL") -> RankError:
    return RankError(f"{cause}\nrank 0 was running", Failure(name, cause, step, step))


def job(folder: Path, most: int) -> RankJob:
    settings = gnnkit.config.settings.settle(gnnkit.config.compose(["strategy=vertex_centric", f"restarts={most}"]))
    return RankJob(settings, folder, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.slow
def test_at_most_so_many_restarts_are_made_and_all_are_listed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = Ranks(tmp_path, died(1), died(2), died(3, cause="rank 1 failed: OSError: full"))
    with pytest.raises(RankError) as error:
        restarting(ranks, job(tmp_path, 2))
    assert len(ranks.jobs) == 3
    assert str(error.value).splitlines() == [
        "rank 1 failed: OSError: full",
        "rank 0 was running",
        "restarts=2: no restart is left (rank 1 failed: OSError: full, in step 3 (epoch 3))",
        "  restart 1: rank 1 was ended by SIGKILL, in step 1 (epoch 1): training starts from the beginning",
        "  restart 2: rank 1 was ended by SIGKILL, in step 2 (epoch 2): training starts from the beginning",
    ]
    assert capfd.readouterr().err.count("\n") == 2


@pytest.mark.slow
def test_a_disk_that_takes_no_report_of_a_failure_ends_no_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    assert restarting(Ranks(tmp_path, died(1)), job(tmp_path, 1))["restarts"] == 1
    told = capfd.readouterr().err
    assert "No space left on device" in told
    assert "rank 0 was running" in told


@pytest.mark.slow
@pytest.mark.parametrize("failure", [UserError("trainer.lr=1e9"), KeyboardInterrupt(), SystemExit(143), OSError("x")])
def test_what_is_no_failure_of_a_rank_is_never_restarted(tmp_path: Path, failure: BaseException) -> None:
    ranks = Ranks(tmp_path, failure)
    with pytest.raises(type(failure)):
        restarting(ranks, job(tmp_path, 5))
    assert len(ranks.jobs) == 1


@pytest.mark.slow
def test_a_restart_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, died(4), died(4), died(None), saves=True)
    found = restarting(ranks, job(tmp_path, 3))
    assert [each.settings.trainer.resume for each in ranks.jobs] == [None, *[str(tmp_path)] * 3]
    assert [each["from_step"] for each in found["restarted"]] == [3, 6, 9]
    assert found["epochs"] == 1
    starts = [each.start for each in ranks.jobs if each.start is not None]
    assert [start.number for start in starts] == [0, 1, 2, 3]
    assert len({start.run for start in starts}) == 1


SAME = died(4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "is_same"),
    [
        (SAME, True),
        exhaustive((died(4, cause="rank 1 was ended by SIGKILL"), True)),
        (died(5), False),
        exhaustive((died(4, name="rank 2"), False)),
        (died(4, cause="rank 1 failed: OSError: full"), False),
    ],
)
def test_a_failure_is_the_same_by_rank_cause_and_step(tmp_path: Path, second: RankError, is_same: bool) -> None:
    ranks = Ranks(tmp_path, SAME, second)
    if is_same:
        with pytest.raises(RankError, match=r"the same failure occurred twice at the same step"):
            restarting(ranks, job(tmp_path, 5))
    else:
        assert restarting(ranks, job(tmp_path, 5))["restarts"] == 2


def test_addresses_ports_and_times_do_not_tell_failures_apart() -> None:
    texts = [f"rank 1 failed: <A at 0x7f{n}>: [127.0.0.1]:4321{n}, no progress for {n}1 s" for n in range(2)]
    first, second = (restarts.Restart(Failure("rank 1", text, 3, 1), (1, 0, 2)) for text in texts)
    assert second.repeats(first)
    assert not replace(second, position=(2, 0, 3)).repeats(first)
