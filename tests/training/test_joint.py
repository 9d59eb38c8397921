"""Workers that step apart are told where their joint model loses what they learned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.strategy import Steps
from gnnkit.training.joint import JointLoss
from tests.cases import exhaustive
from tests.runs import BARE

PRESET = {"name": "preset_workload", "average": "parameters", "sync_every": 4}


def told(losses: list[tuple[float, float]], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What is said of losses by epoch: of the own models, and of the joint one."""

    def work(comm: Communicator) -> None:
        joint = JointLoss()
        strategy = SimpleNamespace(steps=Steps(drift=True), cure=lambda: "fewer steps")
        rows = comm.rank + 1
        for epoch, (own, together) in enumerate(losses):
            module: Any = SimpleNamespace(
                batch=SimpleNamespace(total=rows, rows=torch.arange(rows)),
                worker=SimpleNamespace(comm=comm),
                strategy=strategy,
                local_loss=torch.tensor(own),
                current_epoch=epoch,
            )
            joint.look(module, torch.full((3 - comm.rank,), together))

    Threads.run(work, 2)
    return capfd.readouterr().err.splitlines()


def test_a_joint_model_that_loses_twice_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert told([(1.0, 1.0), (1.0, 1.5), (1.0, 1.1), (1.0, 2.0), (1.0, 2.5)], capfd) == [
        "epoch 4: the model of all workers has 2.0 times the loss of the workers' own on the training rows: workers "
        "drift apart, choose fewer steps"
    ]
    assert told([(1.0, 1.0), (1.0, 1.2), (1.0, 1.2), (1.0, 1.2)], capfd) == []
    assert told([(1.0, 1.0), (1.0, 2.5), (1.0, 1.0), (1.0, 1.0)], capfd) == [], "once"
    assert told([(1.0, 1.0), (0.001, 0.01), (0.001, 0.01), (0.001, 0.01)], capfd) == [], "all is learned"


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("keys", "cure"),
    [
        exhaustive(({"strategy": {"name": "vertex_centric", "local_iterations": 1}}, None)),
        ({"strategy": {"name": "vertex_centric", "local_iterations": 8}}, "choose strategy.local_iterations=2 or auto"),
        exhaustive(({"strategy": {**PRESET, "control_variates": False}}, "choose strategy.control_variates=true")),
        exhaustive(({"strategy": PRESET}, None)),
    ],
)
def test_workers_with_one_class_each_are_told_what_keeps_them_together(
    keys: dict[str, Any], cure: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 30)
    features = rng.normal(size=(60, 8)) + 0.5 * labels[:, None]
    graph = Graph.from_edges(
        *rng.integers(0, 60, (2, 120)), 60, features=features, labels=labels, split=1 + np.arange(60) % 3
    )
    trainer = {"max_epochs": 32, "lr": 0.05, "check_val_every_n_epoch": 5}
    result = gnnkit.train(
        graph, workers=2, comm="threads", threads=1, trainer=trainer, folder=tmp_path / "run", **keys, **BARE
    )
    said = [line for line in capfd.readouterr().err.splitlines() if "workers drift apart" in line]
    assert len(said) == (cure is not None)
    if cure is not None:
        assert said[0].endswith(cure)
    assert (result["joint_loss_ratio"] is None) == (keys["strategy"].get("local_iterations") == 1)


def test_nothing_is_compared_where_a_batch_or_a_split_has_no_rows() -> None:
    loss, comm = JointLoss(), SimpleNamespace(all_reduce=lambda parts: parts, device="cpu")
    for rows, losses in ((0, torch.ones(3)), (3, torch.ones(0))):
        batch = SimpleNamespace(total=3, rows=torch.arange(rows))
        module = SimpleNamespace(batch=batch, worker=SimpleNamespace(comm=comm), local_loss=1.0)
        loss.look(module, losses)  # type: ignore[arg-type]
    assert (loss.ratio, loss.highest, loss.losing) == (None, 0.0, 0)


def told_by_steps(losses: list[tuple[float, str]], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What is said of steps: the mean loss of each, and what follows the step."""

    def work(comm: Communicator) -> None:
        joint = JointLoss()
        strategy = SimpleNamespace(steps=Steps(drift=True), cure=lambda: "fewer steps")
        rows = comm.rank + 1
        for epoch, (loss, update) in enumerate(losses):
            module: Any = SimpleNamespace(
                batch=SimpleNamespace(total=3, rows=torch.arange(rows), update=update),
                worker=SimpleNamespace(comm=comm),
                strategy=strategy,
                local_loss=torch.tensor(loss * rows / 3),
                current_epoch=epoch,
            )
            joint.step(module)

    Threads.run(work, 2)
    return capfd.readouterr().err.splitlines()


def test_averages_that_degrade_the_model_are_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    worse = [
        (2.2, "own"),
        (2.0, "average"),
        (5.7, "own"),
        (4.4, "average"),
        (7.4, "own"),
        (6.0, "average"),
        (9.0, "own"),
    ]
    assert told_by_steps(worse, capfd) == [
        "epoch 5: the model of all workers has 1.7 times the loss of the workers' own on the training rows: workers "
        "drift apart, choose fewer steps"
    ]
    better = [
        (2.2, "own"),
        (1.3, "average"),
        (2.0, "own"),
        (1.2, "average"),
        (1.9, "own"),
        (1.1, "average"),
        (1.6, "own"),
    ]
    assert told_by_steps(better, capfd) == [], "each average is better than the one before"
    assert told_by_steps([(2.2, "average"), (3.0, "average"), (4.0, "average")], capfd) == [], "no own steps"
