"""The `Leader` callback in a user's own `Trainer`, on one process and under DDP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gnnkit
from gnnkit.callback import Leader, LeaderHook
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.trainer_site import batch_sizes
from gnnkit.leader.watch import WorkerState
from gnnkit.sampler import Loader, NeighborSampler
from gnnkit.training.data import GraphDataModule
from tests.jobs.test_train import small_graph
from tests.waiting import GUARD

EPOCHS, SLEEP = 6, 0.25  # seconds of the slow rank in each step

SCRIPT = """
import json, os, sys, time
from pathlib import Path

import lightning as L
import torch

from gnnkit.callback import Leader, LeaderHook
from tests.leader.test_own_trainer import EPOCHS, SLEEP, Net, data_module
from tests.waiting import NEVER

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]


class SlowNet(Net):
    def training_step(self, batch, index):
        if self.global_rank == 1:
            time.sleep(SLEEP)
        if MODE == "die" and self.global_rank == 1 and self.global_step == 5:
            os._exit(9)
        loss = super().training_step(batch, index)
        self.mean += self.global_rank  # buffers differ, until DDP sends those of rank 0
        return loss


class Count(LeaderHook):
    steps = 0

    def after_step(self, states):
        assert [state.rank for state in states] == [0, 1]
        self.steps += 1


leader, count = Leader(monitor="train_loss", folder=FOLDER, timeout=NEVER), Count()
options = {"strategy": "ddp", "devices": 2, "accelerator": "cpu", "max_epochs": EPOCHS, "limit_val_batches": 0}
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(callbacks=[leader, count], **options, **quiet)
module = SlowNet()
trainer.fit(module, data_module())
rank, best = trainer.global_rank, leader.best
torch.save(best.state_dict, FOLDER / f"best-{rank}.pt")
found = {
    "workers": [[state.rank, state.step, state.rows, state.edges, state.memory, state.loss] for state in leader.workers],
    "seconds": [state.seconds for state in leader.workers],
    "stragglers": leader.stragglers,
    "best": [best.epoch, best.value],
    "steps": count.steps,
    "last": {name: value.tolist() for name, value in module.state_dict().items()},
}
(FOLDER / f"found-{rank}.json").write_text(json.dumps(found))
"""


class Net(L.LightningModule):
    """Two layers on the means of neighbours. Ranks update the running mean apart."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.first, self.last = nn.Linear(small_graph().features.shape[1], 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, batch: Any) -> Tensor:
        x = batch["x"].float()
        block = batch["blocks"][-1]
        degrees = torch.diff(block["indptr"])
        rows = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
        sums = torch.zeros(len(degrees), x.shape[1]).index_add(0, rows, x[block["indices"].long()])
        hidden = torch.relu(self.first(sums / degrees.clamp(min=1)[:, None]))
        if self.training:
            self.mean.lerp_(hidden.detach().mean(0), 0.5)
        out: Tensor = self.last(hidden - self.mean)
        return out

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self(batch), batch["y"].long() % 3)

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self.loss(batch)
        self.log(
            "train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch["seeds"])
        )  # the leader averages
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch["seeds"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def data_module() -> GraphDataModule:
    return GraphDataModule(small_graph(), NeighborSampler([64]), batch_size=3, threads=1)


def trainer_of(*callbacks: Callback, **options: Any) -> L.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(accelerator="cpu", devices=1, callbacks=[*callbacks], **quiet, **options)


def start(folder: Path, mode: str, code: str = SCRIPT) -> subprocess.Popen[str]:
    """Starts the script, whose trainer starts the other rank."""
    script = folder / "script.py"
    script.write_text(code)
    paths = os.pathsep.join([str(Path(gnnkit.__file__).parent.parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, str(script), str(folder), mode]
    return subprocess.Popen(
        argv, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def output_of(process: subprocess.Popen[str], timeout: float = 2 * GUARD) -> str:
    try:
        return process.communicate(timeout=timeout)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long("starts two interpreters")
@pytest.mark.exhaustive
def test_two_processes_report_their_states_and_keep_one_best_model(tmp_path: Path) -> None:
    process = start(tmp_path, "train")
    text = output_of(process)
    assert process.returncode == 0, text
    leader, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    check_states(leader, second, tmp_path)
    assert leader["stragglers"].keys() == {"1"}
    assert leader["stragglers"]["1"] > 2
    assert "rank 1 is slow in compute" in text
    assert leader["seconds"][1]["compute"] >= SLEEP
    lines = [json.loads(line) for line in (tmp_path / "workers.jsonl").read_text().splitlines()]
    waits = [line["seconds_sync"] > line["seconds_compute"] for line in lines if line["rank"] == 0]
    assert np.median(waits) == 1, "rank 0 waits for the other in most steps"
    assert leader["best"] == second["best"]
    models = [torch.load(tmp_path / f"best-{rank}.pt") for rank in (0, 1)]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert leader["last"]["mean"] != second["last"]["mean"], "buffers differ between ranks"


def check_states(leader: dict[str, Any], other: dict[str, Any], folder: Path) -> None:
    """Rank 0 has the state of each step of both ranks, and rank 1 has none."""
    lines = [json.loads(line) for line in (folder / "workers.jsonl").read_text().splitlines()]
    steps = max(line["step"] for line in lines)
    assert [(line["step"], line["rank"]) for line in lines] == [
        (n, rank) for n in range(1, steps + 1) for rank in (0, 1)
    ]
    assert {line["epoch"] for line in lines} == set(range(EPOCHS))
    assert leader["steps"] == steps
    assert [worker[:2] for worker in leader["workers"]] == [[0, steps], [1, steps]]
    assert all(min(worker[2:5]) > 0 and np.isfinite(worker[5]) for worker in leader["workers"])
    assert (other["workers"], other["stragglers"], other["steps"]) == ([], {}, 0)
    assert len((folder / "epochs.jsonl").read_text().splitlines()) == EPOCHS


@pytest.mark.slow
@pytest.mark.long("starts two interpreters")
@pytest.mark.exhaustive
def test_a_rank_that_dies_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    process = start(tmp_path, "die")
    text = output_of(process)
    assert process.returncode != 0, text
    assert "Leader: lost ranks [1], whose processes have ended" in text
    assert not (tmp_path / "found-0.json").exists()
    lines = [json.loads(line) for line in (tmp_path / "workers.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) in (4, 5)  # the last message may come too late


LOADERS = """
import json, sys
from pathlib import Path

import lightning as L
import numpy as np
import torch

from gnnkit.sampler import Loader, NeighborSampler
from tests.jobs.test_train import small_graph
from tests.leader.test_own_trainer import Net

FOLDER = Path(sys.argv[1])


class Seeds(Net):
    def __init__(self):
        super().__init__()
        self.seeds = []

    def training_step(self, batch, index):
        self.seeds.append(batch["seeds"].tolist())
        return super().training_step(batch, index)


module, sampler = Seeds(), NeighborSampler([64])
loader = Loader(small_graph(), sampler, batch_size=3)
alone = len(loader)
every = Loader(small_graph(), sampler, batch_size=3, rank=0, world_size=1)
options = {"strategy": "ddp", "devices": 2, "accelerator": "cpu", "max_epochs": 2}
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(**options, **quiet)
trainer.fit(module, loader)
found = {
    "alone": alone,
    "together": len(loader),
    "seeds": module.seeds,
    "every": [seed for batch in every for seed in batch.seeds.tolist()],
}
(FOLDER / f"found-{trainer.global_rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.long("starts two interpreters")
@pytest.mark.exhaustive
def test_ddp_splits_the_seeds_of_a_loader(tmp_path: Path) -> None:
    """Although the loader is created before the process group."""
    process = start(tmp_path, "loaders", LOADERS)
    text = output_of(process)
    assert process.returncode == 0, text
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    num_nodes = small_graph().num_nodes
    assert (first["alone"], first["together"]) == (-(-num_nodes // 3), -(-num_nodes // 6))
    loader = Loader(small_graph(), NeighborSampler([64]), batch_size=3, rank=1, world_size=2)
    assert second["seeds"] == [batch.seeds.tolist() for _ in range(2) for batch in loader]
    seeds = [seed for rank in (first, second) for batch in rank["seeds"] for seed in batch]
    assert set(seeds) == set(range(num_nodes))
    assert len(seeds) <= 2 * (num_nodes + 1), "at most one repeated seed in each epoch"
    assert sorted(first["every"]) == sorted(second["every"]) == list(range(num_nodes))
    assert text.count("seeds are split over the 2 ranks of torch.distributed's default process group") == 1


@pytest.mark.slow
def test_one_process_needs_no_process_group(tmp_path: Path) -> None:
    class Collect(LeaderHook):
        def __init__(self) -> None:
            self.states: list[WorkerState] = []

        def after_step(self, states: Any) -> None:
            self.states += states

    leader, collect = Leader(monitor="val_loss"), Collect()
    trainer, module = trainer_of(leader, collect, max_epochs=3), Net()
    trainer.fit(module, data_module())
    assert [state.step for state in collect.states] == list(range(1, trainer.global_step + 1))
    assert [state.rank for state in leader.workers] == [0]
    assert leader.stragglers == {}
    assert leader.throughput["seeds/s"] > 0
    assert 0 <= leader.wait_share <= 1
    assert leader.best is not None
    assert 1 <= leader.best.epoch <= 3
    module.load_state_dict(leader.best.state_dict)
    again = trainer_of(max_epochs=1).validate(module, data_module(), verbose=False)
    assert again[0]["val_loss"] == pytest.approx(leader.best.value, rel=1e-6)


@pytest.mark.slow
def test_a_metric_of_training_steps_ends_training_that_no_longer_improves() -> None:
    leader = Leader(monitor="train_loss", mode="max", patience=2)  # the loss falls
    trainer = trainer_of(leader, max_epochs=50)
    trainer.fit(Net(), data_module())
    assert trainer.current_epoch < 50
    assert leader.stopped is not None
    assert leader.stopped.startswith("monitor=train_loss: ended after epoch")
    assert leader.stopped.endswith("(patience=2)")


@pytest.mark.slow
def test_a_metric_that_nothing_logs_is_an_error() -> None:
    with pytest.raises(
        UserError, match=r"Leader\(monitor='val_f1'\): no such metric was logged, only train_loss, val_loss"
    ):
        trainer_of(Leader(monitor="val_f1"), max_epochs=1).fit(Net(), data_module())


@pytest.mark.slow
def test_the_best_value_is_restored_from_a_checkpoint() -> None:
    leader, later = Leader(monitor="val_loss"), Leader(monitor="val_loss")
    trainer_of(leader, max_epochs=2).fit(Net(), data_module())
    later.load_state_dict(leader.state_dict())
    assert leader.best is not None
    assert later.best is not None
    assert (later.best.epoch, later.best.value) == (leader.best.epoch, leader.best.value)
    second = Leader(monitor="train_loss")
    second.load_state_dict(leader.state_dict())
    assert second.best is None


@pytest.mark.slow
def test_the_folder_is_created(tmp_path: Path) -> None:
    trainer_of(Leader(folder=tmp_path / "new" / "run"), max_epochs=1).fit(Net(), data_module())
    assert (tmp_path / "new" / "run" / "workers.jsonl").stat().st_size > 0
    file = tmp_path / "file"
    file.touch()
    for folder, reason in ((file, "File exists"), (file / "run", "Not a directory")):
        with pytest.raises(UserError, match=rf"Leader\(folder='{folder}'\): cannot write there: {reason}; pass a"):
            trainer_of(Leader(folder=folder), max_epochs=1).fit(Net(), data_module())


def test_wrong_arguments_are_named() -> None:
    for arguments, reason in (
        ({"mode": "least"}, "mode=least"),
        ({"patience": 0}, "patience=0"),
        ({"timeout": 0}, "timeout=0"),
    ):
        with pytest.raises(UserError, match=reason):
            Leader("val_loss", **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_of_gnnkit_refuses_a_second_leader(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"callback=Leader: every run has a Leader already; use trainer\.monitor"):
        gnnkit.train(small_graph(), strategy="vertex_centric", workers=1, callbacks=Leader(), folder=tmp_path / "run")


def batch_of(graph: Graph, **options: Any) -> Any:
    return next(iter(Loader(graph, NeighborSampler([3, 2]), batch_size=4, threads=1, **options)))


def test_batches_of_a_loader_are_counted_in_every_form() -> None:
    plain = batch_of(small_graph())
    reference = (4, sum(len(block.indices) for block in plain.blocks))
    assert batch_sizes(plain) == batch_sizes(plain.to_torch()) == reference
    data = plain.to_pyg()
    assert batch_sizes(data) == (4, data.edge_index.shape[1])
    assert batch_sizes([torch.zeros(3)]) == (1, 0)


def test_gradients_are_averaged_as_without_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP takes one hook only, so a model with one, or no DDP model, is left alone."""
    meter, calls = SyncMeter(), []
    monkeypatch.setattr(DistributedDataParallel, "register_comm_hook", lambda *args: calls.append(args))
    meter.attach(nn.Linear(1, 1))
    assert calls == []
