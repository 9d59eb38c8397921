"""Ranks that somebody else has started meet, compare, and wait for the leader."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit.comm.agreement import difference
from gnnkit.errors import UserError
from gnnkit.jobs import run
from gnnkit.launch.launcher.builtin import Outside as StartedOutside
from gnnkit.result.result import PREPARED
from gnnkit.utils.storage import write_atomically
from tests.cases import few
from tests.conftest import Install
from tests.launch.outside import Outside, by_hand
from tests.launch.test_processes import wait_gone
from tests.waiting import NEVER, wait_until

RUN = ("+strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=200", "trainer.max_epochs=2", "threads=1",
       "report=false", "logger=none")  # fmt: skip
SLOW_DATA = """
import time
from gnnkit.dataset.base import Dataset
from gnnkit_formats.synthetic import Synthetic

class Slow(Dataset):
    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds

    def load(self):
        open("loading", "w").close()
        time.sleep(self.seconds)
        return Synthetic(num_nodes=200).load()
"""


def step_of_slurm(rank: int, world_size: int, job: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_NTASKS": str(world_size),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(world_size),
        "SLURM_STEP_TASKS_PER_NODE": str(world_size),
        "SLURM_STEP_NODELIST": "node[07]",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
    }


def pod_of_kubeflow(rank: int, world_size: int) -> dict[str, str]:
    """Returns the variables that a PyTorchJob gives to a pod."""
    pet = {"PET_NNODES": str(world_size), "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "auto"}
    return {**pet, "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def local(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose ranks gnnkit has started."""
    folder = tmp_path_factory.mktemp("local")
    (exits,) = outside.run(folder, [[*RUN, "workers=2", "output=run"]], [{}])
    assert exits.code == 0, exits
    return folder / "run"


@pytest.mark.slow
@few("kind", ["kubeflow", "slurm"], default=["slurm"])
def test_ranks_of_a_scheduler_train_to_the_bits_of_ranks_of_gnnkit(
    outside: Outside, local: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "kubeflow":
        places, launcher = [{**place, **pod_of_kubeflow(rank, 2)} for rank, place in enumerate(by_hand(2))], "outside"
    else:
        places, launcher = [step_of_slurm(rank, 2, os.getpid()) for rank in range(2)], "auto"
    argv = [*RUN, f"launcher={launcher}"]
    changes_no_result = ["output=elsewhere", "threads=2", "trainer.progress_bar=true"]
    exits = outside.run(tmp_path, [[*argv, "output=run"], [*argv, *changes_no_result]], places)
    assert [each.code for each in exits] == [0, 0], exits
    assert json.loads((tmp_path / "run/result.json").read_text())["world_size"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out0", "out1", "run"]
    assert not (tmp_path / "run/prepared").exists()
    first, second = (gnnkit.load(folder).state_dict() for folder in (local, tmp_path / "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@few(
    "other,message",
    [
        ("seed=3", "seed must be the same on all ranks: rank 0 has seed=0, rank 1 has seed=3"),
        ("trainer.lr=0.5", "rank 0 has trainer.lr=null, rank 1 has trainer.lr=0.5"),
        ("model.dropout=0.9", "rank 0 has model.dropout=0.5, rank 1 has model.dropout=0.9"),
        ("trainer.optimizer=sgd", 'rank 0 has trainer.optimizer="adam", rank 1 has trainer.optimizer="sgd"'),
        ("trainer.precision=64", "rank 0 has trainer.precision=32, rank 1 has trainer.precision=64"),
    ],
    default=1,
)
def test_ranks_that_do_not_run_the_same_are_refused(outside: Outside, tmp_path: Path, other: str, message: str) -> None:
    argv = [*RUN, "output=run", f"comm.timeout={NEVER}"]
    exits = outside.run(tmp_path, [argv, [*argv, other]], by_hand(2))
    assert [process.code for process in exits] == [2, 2], exits
    for process in exits:
        assert message in process.output
        told = [line for line in process.output.splitlines() if "checking the configuration" not in line]
        assert len(told) == 1
    assert not (tmp_path / "run/prepared").exists()


def test_the_first_key_that_differs_is_named_with_all_values() -> None:
    equal_values, second = {"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}
    assert difference([equal_values, equal_values]) is None
    actual = difference([equal_values, second, equal_values, equal_values, second])
    assert actual == "b must be the same on all ranks: ranks 0, 2-3 have b=2, ranks 1, 4 have b=3"
    assert difference([equal_values, {**equal_values, "c": "4"}]) == (
        "c must be the same on all ranks: rank 0 has c=nothing, rank 1 has c=4"
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_planning_may_take_longer_than_the_deadline_of_the_ranks(
    outside: Outside, tmp_path: Path, install: Install
) -> None:
    site = install("slow", {"gnnkit.dataset": {"slow": "slow_data:Slow"}}, {"slow_data.py": SLOW_DATA})
    argv = ["+strategy=vertex_centric", "dataset=slow", "dataset.options.seconds=9.0", "comm.timeout=8", "output=run"]
    exits = outside.run(tmp_path, [[*argv, "trainer.max_epochs=2", "threads=1"]] * 2, by_hand(2), sites=[site])
    assert [process.code for process in exits] == [0, 0], exits
    assert min(process.seconds for process in exits) > 9.0


@pytest.mark.slow
def test_ranks_that_never_come_are_told_in_a_line(outside: Outside, tmp_path: Path) -> None:
    argv = ["+strategy=vertex_centric", "dataset=synthetic", "comm.timeout=1", "output=run"]
    (exits,) = outside.run(tmp_path, [argv], by_hand(2)[:1])
    assert exits.code == 2
    assert "gnnkit: error: not all of 2 ranks met at 127.0.0.1:" in exits.output
    assert "Traceback" not in exits.output


@pytest.mark.slow
@few("dead,left", [(0, 1), (1, 0)], default=1)
def test_a_rank_that_dies_while_the_leader_plans_is_noticed_at_once(
    outside: Outside, tmp_path: Path, install: Install, dead: int, left: int
) -> None:
    site = install("slow", {"gnnkit.dataset": {"slow": "slow_data:Slow"}}, {"slow_data.py": SLOW_DATA})
    argv = ["+strategy=vertex_centric", "dataset=slow", f"dataset.options.seconds={NEVER}", "output=run", "threads=1"]
    exits = outside.run(tmp_path, [argv] * 2, by_hand(2), sites=[site], kill={dead: "loading"})
    assert exits[dead].code == -signal.SIGKILL
    assert exits[left].code == 1
    assert f"lost its peer rank {dead}" in exits[left].output


MORTAL_SYNC = """
import os, signal
from gnnkit.sync.parameter_server import ParameterServer

class Mortal(ParameterServer):
    steps = 0

    def __init__(self) -> None:
        super().__init__("async", on_lost="continue")

    def step(self, *arguments) -> None:
        self.steps += 1
        if self.comm.rank == 2 and self.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(*arguments)
"""


@pytest.mark.slow
def test_tasks_of_a_slurm_step_go_on_without_a_lost_one(outside: Outside, tmp_path: Path, install: Install) -> None:
    site = install("mortal", {"gnnkit.sync": {"mortal": "mortal_sync:Mortal"}}, {"mortal_sync.py": MORTAL_SYNC})
    argv = ["+strategy=individual_sample", "strategy.batch_size=4", "sync=mortal", *RUN[1:], "output=run"]
    environments = [step_of_slurm(rank, 3, os.getpid()) for rank in range(3)]
    exits = outside.run(tmp_path, [argv] * 3, environments, sites=[site])
    assert [each.code for each in exits] == [0, 0, -signal.SIGKILL], exits
    assert "rank 2 is lost, the run continues" in exits[0].output
    assert json.loads((tmp_path / "run/result.json").read_text())["lost_workers"] == ["rank 2"]


def running(marker: str) -> list[int]:
    """Process ids of the commands that have `marker` among their arguments."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words:
            results.append(int(path.parent.name))
    return results


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_rank_ends_with_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stands for torchrun, and a child of this process for a rank."""
    file = tmp_path / "pid"

    def work(process: int) -> list[Any]:
        write_atomically(file, str(os.getpid()).encode())
        time.sleep(NEVER)
        return []

    def torchrun() -> None:
        rank = context.Process(target=StartedOutside().ranks, args=[ranks])
        rank.start()
        rank.join()

    ranks: Any = SimpleNamespace(run_several=work, by_rank=dict)
    context = multiprocessing.get_context("fork")
    for name, value in {
        **by_hand(1)[0],
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "x",
    }.items():
        monkeypatch.setenv(name, value)
    process = context.Process(target=torchrun)
    process.start()
    wait_until(file.exists, alive=process.is_alive)
    process.kill()
    process.join()
    wait_gone([int(file.read_text())])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_ranks_of_torchrun_end_with_it(tmp_path: Path) -> None:
    marker = f"output={tmp_path}/run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "gnnkit"]
    argv = [*torchrun, *RUN, "trainer.max_epochs=1000000", "comm=gloo", "workers=2", marker]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        argv, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        wait_until((tmp_path / "run/workers.jsonl").exists, alive=lambda: process.poll() is None)
        ranks = [pid for pid in running(marker) if pid != process.pid]
        assert len(ranks) == 2
        process.kill()
        process.wait()
        wait_until(lambda: not running(marker))
    finally:
        process.kill()
        for pid in running(marker):
            os.kill(pid, signal.SIGKILL)


def test_what_the_leader_refuses_and_what_a_host_cannot_see_is_told(tmp_path: Path) -> None:
    mailbox: Any = SimpleNamespace(take=lambda *_, **__: SimpleNamespace(fields={"error": "no nodes"}))
    order: Any = SimpleNamespace(settings=SimpleNamespace(timeout=1.0))
    with pytest.raises(UserError, match=r"^no nodes$"):
        run._receive(mailbox, order)
    with pytest.raises(UserError, match=rf"output={tmp_path}: host .* finds no data there that the leader prepared"):
        run._check_shared(tmp_path)
    (tmp_path / PREPARED).mkdir()
    assert run._check_shared(tmp_path) == tmp_path
