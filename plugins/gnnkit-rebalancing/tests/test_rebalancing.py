"""leader.rebalance=true: complete runs whose work the leader rebalances."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_rebalancing import hook
from gnnkit_rebalancing.recut import recut
from torch import Tensor

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check
from gnnkit.model.gcn import GCN
from gnnkit.training import checkpoint, resume
from gnnkit.training.run_site import RunSite
from gnnkit.utils.storage import load_arrays
from tests.forked import Forked, forked
from tests.jobs.test_train import ranks_of, small_graph
from tests.runs import BARE
from tests.waiting import wait_until

SLOW = 1  # rank
FACTOR = 10  # times as slow, far above the noise of a busy machine
EDGE = 5e-5  # seconds that an edge takes on another rank
SEED = 5e-3  # the same of a seed


class Sleeps(GCN):
    """Sleeps in training in proportion to the edges, or to the seeds of a block."""

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        if self.training:
            engine = getattr(adjacencies[0], "engine", None)
            rank = current_rank() if engine is None else engine.shard.rank
            work = SEED * adjacencies[-1].num_dst if engine is None else EDGE * sum(a.num_edges for a in adjacencies)
            time.sleep((FACTOR if rank == SLOW else 1) * work)
        return super().forward(x, adjacencies)


def current_rank() -> int:
    name = threading.current_thread().name  # of a rank that is a thread
    return int(name.removeprefix("rank ")) if name.startswith("rank ") else int(os.environ["RANK"])


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "COST", 0.0)  # runs of a test are short
    monkeypatch.setattr(RunSite, "_queue_seconds", lambda *_: 0.0)  # threads that sleep count as busy


@pytest.fixture
def cuts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts graphs anew in the leader's thread, which spares an interpreter for each."""
    monkeypatch.setattr(hook, "run_recut", lambda run, request, beat: recut(request))


def train(folder: Path, model: Any = Sleeps, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 18, "precision": 64, "checkpoint_every": 8, **keys.pop("trainer", {})}
    rest = {"strategy": "vertex_centric", "leader": {"rebalance": True}, "workers": 3, "comm": "gloo", **BARE, **keys}
    return gnnkit.train(small_graph(), model=model, folder=folder, write=["logits"], threads=1, trainer=trainer, **rest)


def logits(folder: Path) -> Any:
    return np.load(folder / "logits.npy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "partition"),
    [("gloo", "1d"), ("threads", {"nodes": "hash", "grid": [2, 2, 1]}), ("threads", {"nodes": "hdrf"})],
)
@pytest.mark.exhaustive
def test_a_rebalanced_run_learns_what_an_undisturbed_run_learns(
    tmp_path: Path, comm: str, partition: Any, request: pytest.FixtureRequest
) -> None:
    if comm == "threads":
        request.getfixturevalue("cuts_here")
    keys = {"comm": comm, "partition": partition, "workers": 4 if isinstance(partition, dict) else 3}
    found = train(tmp_path / "rebalanced", report=True, **keys)
    plain = train(tmp_path / "plain", GCN, leader={"rebalance": False}, **keys)
    first = found["rebalanced"][0]
    assert SLOW in first["slow"]
    assert first["epoch"] in (8, 16)
    assert first["step_predicted"] < first["step_before"]
    assert plain["rebalanced"] == []
    assert np.abs(logits(tmp_path / "rebalanced") - logits(tmp_path / "plain")).max() < 1e-10
    told = json.loads((tmp_path / "rebalanced/coordination.json").read_text())
    assert told["rebalanced"] == found["rebalanced"]
    edges = [region["edges"] for region in told["regions"]]
    assert edges[SLOW] < sum(edges) / len(edges)  # on a busy machine, another rank may be slow, too
    arrays, meta = load_arrays(tmp_path / "rebalanced/partition")
    assert meta["rebalanced"]
    assert np.bincount(arrays["node_rank"]).tolist() == [region["nodes"] for region in told["regions"]]
    drawn = json.loads((tmp_path / "rebalanced/partition.json").read_text())
    assert drawn["nodes"] == np.bincount(arrays["node_rank"]).tolist()
    assert "Changes by leader.rebalance" in (tmp_path / "rebalanced/report.html").read_text()
    assert not (tmp_path / "rebalanced/prepared").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("cuts_here")
def test_a_resumed_run_takes_the_new_partition(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "first", comm="threads")
    longer = {"max_epochs": 20, "resume": str(tmp_path / "first")}
    train(tmp_path / "second", comm="threads", leader={"rebalance": False}, trainer=longer)
    assert "as rebalanced in the run of" in capfd.readouterr().out
    first, second = (load_arrays(tmp_path / name / "partition")[0]["node_rank"] for name in ("first", "second"))
    assert np.array_equal(first, second)
    plain = {"max_epochs": 20}
    train(tmp_path / "plain", GCN, comm="threads", leader={"rebalance": False}, trainer=plain)
    assert np.abs(logits(tmp_path / "second") - logits(tmp_path / "plain")).max() < 1e-10


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("cuts_here")
def test_the_work_of_a_run_from_a_store_is_dealt_out_anew(tmp_path: Path) -> None:
    gnnkit.train(small_graph(), strategy="auto", job="partition", workers=3, folder=tmp_path / "store")
    store = {"name": "store", "root": str(tmp_path / "store")}
    keys = {
        "strategy": "vertex_centric",
        "comm": "threads",
        "write": ["logits"],
        "threads": 1,
        "dataset": store,
        **BARE,
    }
    trainer = {"max_epochs": 18, "precision": 64, "checkpoint_every": 8}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    rebalanced = {**keys, "leader": {"rebalance": True}, "model": Sleeps, "trainer": trainer}
    found = gnnkit.train(folder=tmp_path / "rebalanced", **rebalanced)
    assert SLOW in found["rebalanced"][0]["slow"]
    gnnkit.train(folder=tmp_path / "plain", trainer=trainer, **keys)
    assert np.abs(logits(tmp_path / "rebalanced") - logits(tmp_path / "plain")).max() < 1e-10
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    resumed = {"trainer": {**trainer, "max_epochs": 20, "resume": str(tmp_path / "rebalanced")}, "model": Sleeps}
    with pytest.raises(UserError, match=r"trainer\.resume=.*: this run was rebalanced, but the parts of .* were not"):
        gnnkit.train(folder=tmp_path / "resumed", **keys, **resumed)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_slow_worker_gets_fewer_seeds_of_the_same_step(tmp_path: Path) -> None:
    keys = {
        "comm": "threads",
        "strategy": {"name": "individual_sample", "batch_size": 4},
        "sampler": "full",
        "trainer": {"checkpoint_every": 4, "max_epochs": 10},
    }
    found = train(tmp_path / "rebalanced", **keys)
    plain = train(tmp_path / "plain", GCN, leader={"rebalance": False}, **keys)
    assert SLOW in found["rebalanced"][0]["slow"]
    assert abs(found["train_loss"] - plain["train_loss"]) < 1e-10
    assert np.abs(logits(tmp_path / "rebalanced") - logits(tmp_path / "plain")).max() < 1e-10
    lines = [json.loads(line) for line in (tmp_path / "rebalanced/workers.jsonl").read_text().splitlines()]
    rows = {
        rank: sum(line["rows"] for line in lines if line["rank"] == rank and line["epoch"] == 9) for rank in range(3)
    }
    assert rows[SLOW] < min(rows[0], rows[2])
    longer = keys["trainer"] | {"max_epochs": 11, "resume": str(tmp_path / "rebalanced")}
    train(tmp_path / "resumed", **keys | {"leader": {"rebalance": False}, "trainer": longer})
    lines = [json.loads(line) for line in (tmp_path / "resumed/workers.jsonl").read_text().splitlines()]
    assert sum(line["rows"] for line in lines if line["rank"] == SLOW) == rows[SLOW]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"trainer": {"checkpoint": False}}, "trainer.checkpoint=false"),
        ({"workers": 1}, "workers=1"),
        ({"model": "pagerank"}, "iterated"),
        ({"strategy": "preset_workload"}, "strategy=preset_workload"),
        ({"strategy": {"name": "vertex_centric", "local_iterations": 2}}, "local_iterations"),
        ({"strategy": "vertex_centric", "exchange": "pipelined"}, "exchange=exact"),
        ({"strategy": {"name": "individual_sample", "options": {"batching": "balanced"}}}, "strategy.options.batching"),
        ({"strategy": {"name": "individual_sample", "features": "partitioned"}}, "strategy.features"),
        ({"sync": {"name": "parameter_server", "mode": "async"}}, "sync.mode=sync"),
        ({"sync": "neighbour"}, "sync=neighbour"),
        ({"inputs": "learned"}, "inputs=features"),
        ({"strategy": "individual_sample", "task": "link_prediction"}, "task=link_prediction"),
    ],
)
def test_runs_that_cannot_be_rebalanced_are_refused(tmp_path: Path, keys: Any, reason: str) -> None:
    with pytest.raises(gnnkit.UserError, match=rf"leader\.rebalance=true: .*{reason}"):
        train(tmp_path / "run", keys.pop("model", "gcn"), **keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            ["strategy=individual_sample", "sync=leader", "sync.on_lost=continue"],
            "a lost worker keeps its nodes",
        ),
        (["strategy=vertex_centric", "restarts=1"], "have their initial shares"),
    ],
)
def test_runs_that_lose_or_restart_workers_are_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(gnnkit.UserError, match=reason):
        check(Order(settle(compose([*overrides, "leader.rebalance=true"]))))


@pytest.mark.slow
def test_jobs_that_do_not_train_refuse_the_key(tmp_path: Path) -> None:
    with pytest.raises(gnnkit.UserError, match=r"leader\.rebalance=true: job=verify does not train"):
        train(tmp_path / "run", "gcn", overrides=["job=verify"])


@contextlib.contextmanager
def cutting(folder: Path) -> Iterator[tuple[Forked, int, list[int]]]:
    """Yields a run that waits for repartitioning, the process, and the ranks.

    The process is stopped, so that the cut stays under way.
    """
    trainer = {"max_epochs": 100_000, "checkpoint_every": 8}
    with forked(lambda: train(folder, trainer=trainer), folder.parent) as program:
        cutters = list[int]()

        def stop_cutter() -> list[int]:
            leader = ranks_of(program.pid)[:1]
            cutters.extend(child for rank in leader for child in ranks_of(rank) if stopped_cutter(child))
            return cutters

        wait_until(stop_cutter, alive=lambda: program.poll() is None)
        yield program, cutters[0], ranks_of(program.pid)


def stopped_cutter(pid: int) -> bool:
    """Stops a process that has begun to cut, and ends with its parent from then on."""
    with contextlib.suppress(OSError):
        if b"gnnkit_rebalancing.recut" in Path(f"/proc/{pid}/cmdline").read_bytes():
            wait_until(lambda: "prepared/source" in Path(f"/proc/{pid}/maps").read_text())
            os.kill(pid, signal.SIGSTOP)
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_gone(pids: Sequence[int]) -> None:
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_while_the_graph_is_cut_ends_the_run_by_name(tmp_path: Path, victim: int) -> None:
    with cutting(tmp_path / "run") as (program, cutter, ranks):
        os.kill(ranks[victim], signal.SIGKILL)
        code, errors = program.ended()
    assert code == 1
    assert f"rank {victim} was ended by SIGKILL" in errors
    wait_gone([cutter, *ranks])
    done = checkpoint.load(tmp_path / "run" / resume.FILE)["epoch"]
    assert done in (8, 16)
    longer = {"max_epochs": done + 2, "resume": str(tmp_path / "run")}
    assert train(tmp_path / "resumed", leader={"rebalance": False}, trainer=longer)["epochs"] == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_cut_that_dies_costs_no_run(tmp_path: Path) -> None:
    with cutting(tmp_path / "run") as (program, cutter, ranks):
        os.kill(cutter, signal.SIGKILL)
        before = (tmp_path / "run/workers.jsonl").stat().st_size
        wait_until(lambda: (tmp_path / "run/workers.jsonl").stat().st_size >= before + 3_000)
        program.process.terminate()
        code, errors = program.ended()
    assert "no change, because repartitioning failed" in errors
    assert "was killed by SIGKILL" in errors
    assert code == 143
    wait_gone(ranks)
