"""One rank alone meets a fault in some phase: the run ends with its error, or is right.

No rank hangs, and no rank sees the fault as an error of its own program. The tests draw
some dozens of cases, of which one for each phase runs by default. `GNNKIT_FAULTS` is
the number of further ones, from another seed.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import train as train_job
from gnnkit.jobs import weights
from gnnkit.jobs.rank_job import RankJob
from gnnkit.partition.store.parts import RankParts
from gnnkit.strategy import Worker
from gnnkit.task.base import NodeTask
from gnnkit.task.evaluation import Evaluation
from gnnkit.training import checkpoint
from gnnkit.training.module import Evaluated
from tests.cases import exhaustive
from tests.runs import BARE
from tests.waiting import GUARD

pytestmark = pytest.mark.slow
NUM_NODES = 24
MORE = int(os.environ.get("GNNKIT_FAULTS", "0"))

STRATEGIES: dict[str, dict[str, Any]] = {
    "vertex_centric": {},
    "local": {"strategy": {"name": "vertex_centric", "local_iterations": 2}},
    "2d": {"partition": {"name": "2d", "grid": [2, 2, 1]}, "workers": 4},
    "pipelined": {"exchange": "pipelined"},
    "adaptive": {"exchange": "adaptive"},
    "joint": {"strategy": {"name": "joint_sample", "batch_size": 3}},
    "individual": {"strategy": {"name": "individual_sample", "batch_size": 3}},
    "fetched": {"strategy": {"name": "individual_sample", "batch_size": 3, "topology": "partitioned"}},
    "preset": {"strategy": "preset_workload"},
}
DRAWN = ("joint", "individual", "fetched")
SYNCS: dict[str, Any] = {
    "all_reduce": "all_reduce",
    "leader": "leader",
    "server": "parameter_server",
    "async": {"name": "leader", "mode": "async"},
    "ssp": {"name": "parameter_server", "mode": "ssp", "staleness": 1},
    "neighbour": "neighbour",
}
PHASES = {  # what one rank alone meets there
    "read": ("error",),
    "setup": ("error", "user error"),
    "features": ("nan",),
    "model": ("error", "user error"),
    "step": ("error", "nan", "user error"),
    "loss": ("nan", "inf"),
    "gradient": ("nan",),
    "optimizer": ("error",),
    "evaluation": ("error", "nan"),
    "metric": ("error", "nan", "not logged"),
    "checkpoint": ("error",),
    "callback": ("error", "user error", "stop"),
    "splits": ("no train", "no val", "no test", "no node", "more"),
    "test": ("error",),
    "outputs": ("error",),
}


class Fault(Exception):
    """The error of the rank that the test has chosen."""


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to which rank."""

    phase: str
    fault: str
    strategy: str = "vertex_centric"
    sync: str = "all_reduce"
    on_nan: str = "stop"
    rank: int = 1
    epoch: int = 1

    def __str__(self) -> str:
        return "-".join(map(str, (self.phase, self.fault, self.strategy, self.sync, self.on_nan, self.rank)))

    def strikes(self, phase: str, rank: int, epoch: int | None = None) -> bool:
        """Says whether the fault is now, here. `epoch` is None outside of training."""
        return self.phase == phase and self.rank == rank and epoch in (None, self.epoch)

    def strike(self) -> float:
        """Raises the error, or returns the number that spoils what follows."""
        if self.fault == "error":
            raise Fault(f"of rank {self.rank}")
        if self.fault == "user error":
            raise UserError(f"fault of rank {self.rank}")
        return math.inf if self.fault == "inf" else math.nan


class Model(L.LightningModule):
    """A model of a user, with steps and hooks of its own."""

    num_layers = 1

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.case = torch.nn.Linear(4, 3), case
        self.rank = -1  # set with the first batch

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        mean = adjacencies[0].aggregate(x, reduce="mean")
        out: Tensor = self.linear(x[: len(mean)] + mean)
        if self.training and self.rank >= 0 and self.case.strikes("step", self.rank, self.trainer.current_epoch):
            out = out * self.case.strike()
        return out

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self) -> None:
        self.rank = self.trainer.global_rank

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out = batch.outputs(self(batch.x, batch.adjacencies))
        loss = F.cross_entropy(out, batch.labels, reduction="sum") / max(batch.total, 1)
        if self.case.strikes("loss", self.rank, self.trainer.current_epoch):
            loss = loss * self.case.strike()
        if self.case.strikes("gradient", self.rank, self.trainer.current_epoch):
            loss = loss + 0 * torch.sqrt(0 * self.linear.bias.sum())  # the slope is infinite, times 0
        self.log("own_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Evaluated, batch_idx: int) -> None:
        struck = self.case.strikes("metric", self.rank, self.trainer.current_epoch)
        if struck and self.case.fault == "not logged":
            return
        loss = F.cross_entropy(batch.logits, batch.labels)
        self.log("own_val", loss * self.case.strike() if struck else loss)

    def test_step(self, batch: Evaluated, batch_idx: int) -> None:
        if self.case.strikes("test", self.rank):
            self.case.strike()


class Stepping(Model):
    """A model with a hook that only steps of the workers have."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.case.strikes("optimizer", self.rank, self.trainer.current_epoch):
            self.case.strike()


class Struck(L.Callback):
    """Fails or stops in a hook, on one rank."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if self.case.strikes("callback", trainer.global_rank, trainer.current_epoch):
            self.case.strike()
            trainer.should_stop = True


def make_graph(case: Case) -> Graph:
    """Draws a graph. The nodes of two workers are those of two halves."""
    rng = np.random.default_rng(1)
    split = np.where(np.arange(NUM_NODES) % 6 < 4, 1, 2 + np.arange(NUM_NODES) % 2).astype(np.int8)
    half = np.arange(NUM_NODES) // (NUM_NODES // 2) == case.rank % 2
    if case.phase == "splits":
        gone = {"no train": [1], "no val": [2], "no test": [3], "no node": [1, 2, 3], "more": []}[case.fault]
        split[half & np.isin(split, gone)] = 0
        if case.fault == "more":
            split[half] = 1
    edges, features = rng.integers(0, NUM_NODES, (2, 4 * NUM_NODES)), rng.normal(size=(NUM_NODES, 4))
    labels = rng.integers(0, 3, NUM_NODES)
    return Graph.from_edges(*edges, NUM_NODES, features=features.astype(np.float32), labels=labels, split=split)


@contextmanager
def struck(case: Case) -> Iterator[None]:
    """Lets parts of gnnkit meet the fault, on the rank of the case."""
    with pytest.MonkeyPatch.context() as patch:

        def before(owner: Any, name: str, phase: str, rank: Any) -> None:
            whole = getattr(owner, name)

            def call(*arguments: Any, **keys: Any) -> Any:
                if case.strikes(phase, rank(*arguments)):
                    case.strike()
                return whole(*arguments, **keys)

            patch.setattr(owner, name, call)

        before(RankParts, "shard", "read", lambda parts, name: int(name))
        before(RankJob, "set_up", "setup", lambda job, strategy, worker, *_: worker.comm.rank)
        before(RankJob, "own_model", "model", lambda job, worker, *_: worker.comm.rank)
        before(train_job, "write_outputs", "outputs", lambda job, task, model, *_: model.rank)
        if case.phase == "checkpoint":  # the leader alone writes
            before(checkpoint if case.epoch else weights, "save", "checkpoint", lambda *_: case.rank)
        if case.phase == "evaluation":
            before(Evaluation, "logits", "evaluation" if case.fault == "error" else "", lambda _, model: model.rank)
            measure = NodeTask.measure

            def spoilt(task: NodeTask, rows: Tensor, worker: Worker) -> dict[str, float]:
                return measure(task, rows * (math.nan if worker.comm.rank == case.rank else 1), worker)

            if case.fault == "nan":
                patch.setattr(NodeTask, "measure", spoilt)
        if case.phase == "features":
            shard = RankParts.shard

            def damaged(parts: RankParts, name: int | str) -> Any:
                whole = shard(parts, name)
                if int(name) != case.rank:
                    return whole
                features = np.array(whole.features)
                features[-1:] = math.nan
                return replace(whole, features=features)

            patch.setattr(RankParts, "shard", damaged)
        yield


def run(case: Case, folder: Path) -> dict[str, Any]:
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 2, "partition": "contiguous", "threads": 1}
    keys |= {"comm": {"name": "threads", "timeout": GUARD}, "sync": SYNCS[case.sync], **BARE}
    if case.strategy in DRAWN:
        keys["sampler"] = {"name": "neighbor", "fanouts": [3]}
    trainer = {"max_epochs": 3, "on_nan": case.on_nan, "check_val_every_n_epoch": 1, "checkpoint_every": 1}
    with struck(case):
        return gnnkit.train(
            make_graph(case), model=(Stepping if case.phase == "optimizer" else Model)(case), folder=folder, trainer=trainer, callbacks=[Struck(case)],
            overrides=["features.scale=none"], **(keys | STRATEGIES[case.strategy]),
        )  # fmt: skip


def check(case: Case, folder: Path) -> str:
    """Runs the case. Returns what has happened: its error, refused, told, or right."""
    result, message = None, None
    try:
        result = run(case, folder)
    except (Fault, UserError) as error:
        message = error
    if result is not None:
        _check_right(case, result)
        return "right"
    if isinstance(message, Fault):
        assert (case.fault, str(message)) == ("error", f"of rank {case.rank}")
        return "error"
    text = str(message)
    if case.fault in ("user error", "nan", "inf") and ("not finite" in text or text == f"fault of rank {case.rank}"):
        assert ("not finite" in text) != (case.fault == "user error"), text
        return "told"
    assert not (folder / "workers.jsonl").exists(), text
    return "refused"


def _check_right(case: Case, result: Mapping[str, Any]) -> None:
    """Fails for a run that ends as if nothing had been, though a rank has failed."""
    is_idle = case.phase == "optimizer" and case.sync == "leader" and case.rank  # the leader alone steps
    assert case.fault not in ("error", "user error") or is_idle or result["skipped_steps"], case
    assert result["epochs"] == (case.epoch + 1 if case.fault == "stop" else 3)


def in_turn() -> list[Case]:
    """Lists each fault of each phase once, with the strategies and syncs in turn."""
    names, syncs = itertools.cycle(STRATEGIES), itertools.cycle(SYNCS)
    overrides = []
    for phase, faults in PHASES.items():
        for fault in faults:
            on_nan = "skip" if len(overrides) % 3 == 0 and fault in ("nan", "inf") else "stop"
            rank = 0 if phase == "checkpoint" else 1
            overrides.append(Case(phase, fault, next(names), next(syncs), on_nan, rank))
    return overrides


def first_of_each_phase(cases: Sequence[Case]) -> list[Any]:
    """Marks the others exhaustive, and phases whose like others strike by default."""
    rare = ("features", "step", "loss", "gradient", "test")
    first = {case.phase: case for case in reversed(cases) if case.phase not in rare}
    return [case if first.get(case.phase) is case else exhaustive(case) for case in cases]


def drawn(count: int) -> list[Case]:
    """Draws further cases."""
    generator = random.Random(int(os.environ.get("GNNKIT_FAULTS_SEED", "0")))
    cases = []
    for _ in range(count):
        phase = generator.choice(list(PHASES))
        fault, rank = generator.choice(PHASES[phase]), 0 if phase == "checkpoint" else generator.randrange(2)
        name, sync = generator.choice(list(STRATEGIES)), generator.choice(list(SYNCS))
        cases.append(Case(phase, fault, name, sync, generator.choice(["stop", "skip"]), rank, generator.randrange(3)))
    return cases


@pytest.mark.parametrize("case", [*first_of_each_phase(in_turn()), *drawn(MORE)], ids=str)
def test_a_fault_of_one_rank_ends_the_run_with_its_error_or_leaves_it_right(case: Case, tmp_path: Path) -> None:
    if check(case, tmp_path / "run") == "refused":  # the strategy and the sync do not go together
        assert check(replace(case, strategy="vertex_centric", sync="all_reduce"), tmp_path / "plain") != "refused"
