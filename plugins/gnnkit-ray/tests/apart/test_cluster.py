"""Ranks and jobs on a Ray cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gnnkit_testing import launcher

import gnnkit
from gnnkit.__main__ import main
from gnnkit.testing import check_launcher
from tests.waiting import GUARD

gnnkit_ray = pytest.importorskip("gnnkit_ray")
ray = pytest.importorskip("ray", reason="launcher=ray needs the package ray: pip install ray")

RUN = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=200", "threads=1", "workers=3",
       "report=false", "logger=none", "cache=false", "trainer.max_epochs=6", "trainer.checkpoint_every=1"]  # fmt: skip
NODE = {"num_cpus": 3, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else other tests leave agents no processor
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "20")  # a loaded machine answers late
        made = Cluster(initialize_head=True, head_node_args=NODE)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.fixture
def second(cluster: Any) -> Any:
    """The second node, which tests share until one kills it."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(**NODE)


def left() -> list[str]:
    """Lists agents and ranks that do not end."""
    found, deadline = ["unknown"], time.monotonic() + GUARD
    while found and time.monotonic() < deadline:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                found += [path.parent.name] if words[1:3] == [b"-m", b"gnnkit_ray"] else []
        time.sleep(0.1)
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return gnnkit.load(folder).state_dict()


@pytest.mark.slow
@pytest.mark.timeout(900)  # six starts of agents that import torch
def test_the_launcher_keeps_the_promises(cluster: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "WORLD_SIZE", 2)  # each rank imports torch
    check_launcher(gnnkit_ray.Ray)


@pytest.mark.slow
def test_two_nodes_train_to_the_bits_of_one_machine(
    cluster: Any, second: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "workers=2", "output=here"]) == 0
    assert main([*RUN, "workers=2", "output=there", "launcher=ray", "launcher.num_nodes=2"]) == 0
    here, there = weights(tmp_path / "here"), weights(tmp_path / "there")
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert main([*RUN, "output=parts", "launcher=ray", "parts=3", "workers=2"]) == 0
    assert json.loads(Path("parts/result.json").read_text())["world_size"] == 3


@pytest.mark.slow
def test_a_killed_node_ends_no_run_with_restarts(
    cluster: Any, second: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [*RUN, "trainer.max_epochs=1000"]
    assert main([*keys, "output=here"]) == 0

    def kill() -> None:
        while not Path("there/checkpoints/last.json").exists():
            time.sleep(0.01)
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert main([*keys, "output=there", "launcher=ray", "restarts=1"]) == 0
    killer.join()
    (restarted,) = json.loads(Path("there/result.json").read_text())["restarted"]
    assert "Ray's node" in restarted["cause"]
    assert restarted["from_step"] > 0
    assert not left()
    here, there = weights(tmp_path / "here"), weights(tmp_path / "there")
    assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.slow
def test_jobs_of_a_sweep_run_on_the_cluster(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [*RUN, "trainer.max_epochs=1", "workers=1", "launcher=ray", "launcher.cpus=1", "seed=1,2", "-m"]
    assert main(keys) == 0
    found = sorted(tmp_path.glob("multirun/*/*/*/result.json"))
    assert len(found) == 2, sorted(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_a_function_of_ray_train_has_the_bits_of_one_machine(cluster: Any, second: Any, tmp_path: Path) -> None:
    trainers = pytest.importorskip("ray.train.torch", reason="Ray Train needs ray[train]")

    def work(config: dict[str, str]) -> None:  # is pickled by value, with its imports
        import numpy as np

        import gnnkit
        from gnnkit.graph import Graph

        src, dst = np.random.default_rng(0).integers(0, 60, (2, 200))
        graph = Graph.from_edges(
            src, dst, 60, features=np.eye(60, dtype=np.float32), labels=np.arange(60) % 3, split=np.arange(60) % 4
        )
        keys = {"strategy": "vertex_centric", "threads": 1, "workers": 2, "report": False, "logger": "none"}
        gnnkit.train(graph, folder=config["folder"], trainer={"max_epochs": 3}, **keys)

    ray.init(address=cluster.address)
    try:
        trainers.TorchTrainer(
            work,
            train_loop_config={"folder": str(tmp_path / "there")},
            torch_config=trainers.TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=str(tmp_path / "storage")),
        ).fit()
    finally:
        ray.shutdown()
    work({"folder": str(tmp_path / "here")})
    here, there = weights(tmp_path / "here"), weights(tmp_path / "there")
    assert all(torch.equal(here[name], there[name]) for name in here)
