"""Runs of workers that step apart compare their joint model with their own models."""

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
from gnnkit.training.joint import JointLoss
from tests.cases import exhaustive
from tests.runs import BARE

PRESET = {"name": "preset_workload", "average": "parameters", "sync_every": 4}


def test_the_ratio_is_of_means_over_all_rows_and_of_local_steps() -> None:
    def work(comm: Communicator) -> float | None:
        joint, rows = JointLoss(), comm.rank + 1
        for loss, update in ((1.0, "own"), (2.0, "average"), (9.0, "conclude")):
            module: Any = SimpleNamespace(
                batch=SimpleNamespace(total=3, rows=torch.arange(rows), update=update),
                worker=SimpleNamespace(comm=comm),
                local_loss=torch.tensor(loss * rows / 3),
            )
            joint.end_step(module)
        joint.look(module, torch.full((3 - comm.rank,), 3.0))
        return joint.ratio

    assert Threads.run(work, 2) == pytest.approx([1.5, 1.5])


def test_nothing_is_compared_where_a_batch_or_a_split_has_no_rows() -> None:
    comm = SimpleNamespace(all_reduce=lambda parts: parts, device="cpu")
    for rows, losses in ((0, torch.ones(3)), (3, torch.ones(0))):
        loss = JointLoss()
        batch = SimpleNamespace(total=3, rows=torch.arange(rows), update="own")
        module: Any = SimpleNamespace(batch=batch, worker=SimpleNamespace(comm=comm), local_loss=1.0)
        loss.end_step(module)
        loss.look(module, losses)
        assert loss.ratio is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        exhaustive({"name": "vertex_centric", "local_iterations": 1}),
        {"name": "vertex_centric", "local_iterations": 8},
        exhaustive({**PRESET, "control_variates": False}),
    ],
    ids=["one", "eight", "preset"],
)
def test_a_run_reports_how_much_its_joint_model_loses(
    strategy: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 30)
    features = rng.normal(size=(60, 8)) + 0.5 * labels[:, None]
    graph = Graph.from_edges(
        *rng.integers(0, 60, (2, 120)), 60, features=features, labels=labels, split=1 + np.arange(60) % 3
    )
    trainer = {"max_epochs": 32, "lr": 0.05, "check_val_every_n_epoch": 5}
    keys: dict[str, Any] = {"workers": 2, "comm": "threads", "threads": 1, "folder": tmp_path / "run", **BARE}
    result = gnnkit.train(graph, trainer=trainer, strategy=strategy, **keys)
    drifts = strategy.get("local_iterations") != 1
    line = f"the workers' joint model had {result['joint_loss_ratio'] or 0:.2f} times the training loss of their own models"
    assert (line in capfd.readouterr().err) == drifts == (result["joint_loss_ratio"] is not None)
