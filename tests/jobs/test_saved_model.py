"""What a run reports is what its saved model does, whatever the workers hold.

`GNNKIT_EVERY=1` tries every way of training with every synchronisation, 240 runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.graph import Split
from gnnkit.partition.base import Grid
from gnnkit.sync.all_reduce import AllReduce
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.sync.training import make_model, shards_on, train

STEPS: dict[str, Any] = {
    "exact": {"name": "vertex_centric"},
    "superstep": {"name": "vertex_centric", "local_iterations": 3},
    "auto": {"name": "vertex_centric", "local_iterations": "auto"},
    "quantized": {"name": "vertex_centric", "exchange": "quantized"},
    "pipelined": {"name": "vertex_centric", "exchange": "pipelined"},
    "border sampled": {"name": "vertex_centric", "exchange": "sampled"},
    "preset": {"name": "preset_workload", "average": "parameters", "sync_every": 3},
    "preset gradients": {"name": "preset_workload"},
    "preset alone": {"name": "preset_workload", "average": "parameters", "options": {"control_variates": False}},
    "clusters": {"name": "cluster", "clusters": 2, "clusters_per_batch": 1},
    "llcg": {"name": "llcg"},
    "coverage": {"name": "coverage"},
    "exchange": {"name": "preset_workload", "exchange_every": 2},
    "sampled": {"name": "individual_sample", "batch_size": 4},
    "owners": {"name": "individual_sample", "batch_size": 4, "topology": "partitioned"},
    "cooperative": {"name": "joint_sample", "batch_size": 8},
}
SAMPLED = {"sampled", "owners", "cooperative", "llcg"}
TOGETHER = {"cooperative"}  # ranks may have one row, too few for torch's BatchNorm
SYNCS: dict[str, Any] = {
    "all_reduce": "all_reduce",
    "leader": "leader",
    "server": "parameter_server",
    "async": {"name": "parameter_server", "mode": "async"},
    "ssp": {"name": "parameter_server", "mode": "ssp", "staleness": 1},
    "gradients": "neighbour",
    "parameters": {"name": "neighbour", "exchange": "parameters"},
}
RUNS = [  # of which the tenth runs by default
    ("superstep", "all_reduce", True),
    ("superstep", "all_reduce", False),
    ("superstep", "leader", False),
    ("superstep", "server", True),
    ("superstep", "parameters", True),
    ("preset", "leader", True),
    ("preset", "all_reduce", False),
    ("exact", "gradients", False),
    ("exact", "parameters", True),
    ("exact", "all_reduce", True),
    ("sampled", "async", True),
    ("sampled", "parameters", False),
]
EVERY = "GNNKIT_EVERY" in os.environ
if EVERY:
    RUNS = list(product(STEPS, SYNCS, (True, False)))


class Normed(nn.Module):
    """Has running statistics, which torch takes over the rows of each rank."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(in_features), nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return adjacencies[0].aggregate(self.out(self.norm(x)), reduce="mean")


def run(folder: Path, steps: str, sync: str, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 4, "lr": 0.1, "check_val_every_n_epoch": 1}
    trainer |= keys.pop("trainer", {})
    chosen = {
        "strategy": STEPS[steps],
        "sync": SYNCS[sync],
        "workers": 3,
        "threads": 1,
        "comm": "threads",
        **BARE,
        **keys,
    }
    if steps in SAMPLED:
        chosen["sampler"] = {"name": "neighbor", "fanouts": [3, 3] if steps in TOGETHER else [3]}
    chosen |= model_of(steps) | {"trainer": trainer, "write": ["logits"]}
    return dict(gnnkit.train(small_graph(), folder=folder, **chosen))


def model_of(steps: str) -> dict[str, Any]:
    """Returns keys of a model that `steps` can train."""
    return {} if steps in TOGETHER else {"model": Normed, "inexact": "allow"}


@pytest.mark.slow
@few("steps,sync,monitored", RUNS, default=RUNS if EVERY else (RUNS[9],))
def test_reported_figures_are_those_of_the_saved_model(tmp_path: Path, steps: str, sync: str, monitored: bool) -> None:
    trainer = {"monitor": "val_loss"} if monitored else {}
    try:
        found = run(tmp_path / "run", steps, sync, trainer=trainer)
    except gnnkit.UserError as error:
        assert EVERY  # some do not go together
        pytest.skip(str(error))
    assert found["final_drift"] == 0
    again = gnnkit.predict(
        tmp_path / "run",
        small_graph(),
        folder=tmp_path / "again",
        job="test",
        **model_of(steps),
        workers=3,
        threads=1,
        comm="threads",
        write=["logits"],
    )
    figures = [name for name in again if name.endswith(("accuracy", "f1", "loss"))]
    assert "test_loss" in figures
    assert {name: again[name] for name in figures} == {name: found[name] for name in figures}
    logits = [np.load(tmp_path / name / "logits.npy") for name in ("run", "again")]
    np.testing.assert_array_equal(*logits)
    if trainer:
        assert found["best_value"] == pytest.approx(again["val_loss"], rel=1e-6)  # logged in float32


def test_an_evaluation_borrows_the_model_that_would_be_saved() -> None:
    shards = shards_on(Grid(3, 1, 1))
    counts = [int((shard.split == Split.TRAIN).sum()) for shard in shards]
    expected = sum(rank * count for rank, count in enumerate(counts)) / sum(counts)

    def work(comm: Communicator) -> tuple[float, float]:
        module: Any = train(shards, AllReduce, make_model(), comm, epochs=0, local_iterations=2)[0]
        module.sync = AllReduce()
        bias = nn.init.constant_(module.model.convs[1].bias, float(comm.rank))
        with module.joint():
            inside = bias[0].item()
        return inside, bias[0].item()

    inside, after = zip(*Threads.run(work, 3), strict=True)
    assert inside == pytest.approx([expected] * 3)
    assert after == (0.0, 1.0, 2.0)
