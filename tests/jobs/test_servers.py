"""Jobs start the servers of a synchronisation, and end the servers with the workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.launch.processes import RankError
from tests.cases import exhaustive, few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.training import test_on_nan
from tests.waiting import NEVER

SERVER = {"name": "parameter_server"}
WITHOUT_WAITING: list[dict[str, Any]] = [
    SERVER | {"mode": "async", "servers": 1},
    SERVER | {"mode": "ssp", "staleness": 1},
    {"name": "leader", "mode": "async"},
]


class Net(nn.Module):
    """A layer, one of whose workers sleeps or dies in the third step."""

    num_layers = 1

    def __init__(self, rank: int | None = None, seconds: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.rank, self.seconds, self.steps = nn.Linear(8, 3), rank, seconds, 0

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        self.steps += self.training
        if self.training and self.steps == 3 and os.environ.get("RANK") == str(self.rank):
            if self.seconds is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                time.sleep(self.seconds)
        return adjacencies[0].aggregate(self.linear(x), reduce="mean")


def train(folder: Path, **keys: Any) -> dict[str, Any]:
    given = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "partition": "1d", "model": Net(), **BARE}
    trainer = {"max_epochs": 8, "lr": 0.05, **keys.pop("trainer", {})}
    return dict(gnnkit.train(small_graph(), folder=folder, trainer=trainer, **{**given, **keys}))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_threads_and_processes_with_servers_train_as_an_all_reduce(tmp_path: Path) -> None:
    runs: dict[str, dict[str, Any]] = {
        "all_reduce": {"comm": "threads"},
        "beside": {"comm": "threads", "sync": SERVER},
        "threads": {"comm": "threads", "sync": SERVER | {"servers": 2}},
        "gloo": {"comm": "gloo", "sync": SERVER | {"servers": 1}},
    }
    trainer = {"max_epochs": 3, "precision": 64}
    results = {name: train(tmp_path / name, trainer=trainer, **keys) for name, keys in runs.items()}
    for name, result in results.items():
        assert result["train_loss"] == pytest.approx(results["all_reduce"]["train_loss"], rel=1e-12), name
        assert np.array_equal(*(np.load(tmp_path / each / "predictions.npy") for each in (name, "all_reduce")))
        assert (result["world_size"], result["exact"], result["drift"]) == (2, True, 0)
    assert [result.get("servers") for result in results.values()] == [None, 0, 2, 1]


@pytest.mark.slow
@few(
    "sync,strategy",
    [(sync, strategy) for sync in WITHOUT_WAITING for strategy in ("vertex_centric", "individual_sample")],
    default=[(WITHOUT_WAITING[0], "vertex_centric")],
)
def test_workers_that_do_not_wait_learn(tmp_path: Path, strategy: Any, sync: dict[str, Any]) -> None:
    if strategy == "individual_sample":
        strategy = {"name": strategy, "batch_size": 8}
    full = strategy == "vertex_centric"  # rows are late there, and not gradients
    sampler = {} if full else {"sampler": {"name": "neighbor", "fanouts": [5]}}
    trainer = {"max_epochs": 20, "optimizer": "sgd", "lr": 1.0}
    result = train(tmp_path / "run", comm="threads", sync=sync, strategy=strategy, trainer=trainer, **sampler)
    assert result["train_accuracy"] > 0.8
    assert result["final_drift"] == 0
    assert result["row_staleness"] > 0 if full else result["staleness"]["largest"] >= result["staleness"]["mean"] > 0
    assert not result["exact"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "keys"),
    [
        exhaustive(("threads", {})),
        ("threads", {"servers": 2}),
        ("threads", {"average": "median", "servers": 1}),
        exhaustive(("gloo", {"servers": 1})),
    ],
)
def test_verify_holds_with_servers(tmp_path: Path, comm: str, keys: dict[str, Any]) -> None:
    result = train(tmp_path / "run", job="verify", comm=comm, sync=SERVER | keys, model="gcn")
    assert result["verified"]
    assert result["reference"].startswith("2 ranks" if "average" in keys else "one rank")


@pytest.mark.slow
def test_verify_refuses_workers_that_do_not_wait(tmp_path: Path) -> None:
    keys = {"strategy": "preset_workload", "sync": SERVER | {"mode": "async"}}
    with pytest.raises(UserError, match="job=verify needs ranks that step together"):
        train(tmp_path / "run", job="verify", comm="threads", **keys)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("sync", [exhaustive(SERVER), SERVER | {"mode": "ssp", "servers": 1}], ids=str)
def test_a_worker_that_sleeps_longer_than_the_deadline_does_not_end_the_run(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    result = train(
        tmp_path / "run",
        comm={"name": "gloo", "timeout": 6.0},
        sync=sync,
        strategy={"name": "individual_sample", "batch_size": 8},
        sampler={"name": "neighbor", "fanouts": [5]},
        model=Net(rank=1, seconds=8.0),
        trainer={"max_epochs": 2},
    )
    assert result["epochs"] == 2


@pytest.mark.slow
@pytest.mark.exhaustive
@few("sync", [SERVER, SERVER | {"mode": "async", "servers": 1}], default=[SERVER | {"mode": "async", "servers": 1}])
def test_a_killed_worker_ends_the_run_and_is_named(tmp_path: Path, sync: dict[str, Any]) -> None:
    with pytest.raises(RankError, match=r"^rank 1 was ended by SIGKILL"):
        train(tmp_path / "run", comm={"name": "gloo", "timeout": NEVER}, sync=sync, model=Net(rank=1))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rollback_goes_back_at_the_servers_too(tmp_path: Path) -> None:
    found = {}
    for name, sync in {"all_reduce": {"name": "all_reduce"}, "server": SERVER | {"servers": 1}}.items():
        result = test_on_nan.run(
            tmp_path / name,
            test_on_nan.Net([3]),
            {"on_nan": "rollback", "precision": 64, "optimizer": "adam"},
            sync=sync,
        )
        assert result["rollbacks"] == 1
        found[name] = test_on_nan.parameters(tmp_path / name)
    torch.testing.assert_close(found["server"], found["all_reduce"], rtol=0, atol=1e-12)


@pytest.mark.slow
@few("strategy", ["vertex_centric", "individual_sample"], default=("vertex_centric",))
def test_where_nobody_waits_a_rank_stops_alone_at_a_gradient_that_is_not_finite(tmp_path: Path, strategy: str) -> None:
    keys: dict[str, Any] = {"sync": SERVER | {"mode": "async"}, "strategy": strategy}
    if strategy == "individual_sample":
        keys["sampler"] = {"name": "neighbor", "fanouts": [5]}
    told = test_on_nan.stop_message(tmp_path / "run", test_on_nan.Net([2]), **keys)
    assert told.startswith("trainer.on_nan=stop: loss or gradient of step 3 (epoch 2) is not finite on rank")


@pytest.mark.slow
def test_a_program_has_no_servers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^sync.servers=1: programs have no gradients"):
        train(tmp_path / "run", model="pagerank", sync=SERVER | {"servers": 1})


@pytest.mark.slow
def test_of_ranks_that_were_started_the_last_ones_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 5, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 5, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    chosen = ["strategy=vertex_centric", "sync=parameter_server"]
    settings = settle(compose([*chosen, "sync.servers=2"]))
    assert (settings.workers, settings.servers, settings.world_size) == (3, 2, 5)
    with pytest.raises(UserError, match=r"^workers=5 but 5 ranks were started, of which sync.servers=2 serve"):
        settle(compose([*chosen, "sync.servers=2", "workers=5"]))
    with pytest.raises(UserError, match=r"^workers=null but 5 ranks were started, of which sync.servers=5 serve"):
        settle(compose([*chosen, "sync.servers=5"]))
