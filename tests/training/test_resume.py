"""A resumed run takes every step that an unbroken one takes, to the same bits."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from gnnkit import plugins
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.leader.meter import SyncMeter
from gnnkit.model.gcn import GCN
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync import GradientSync
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.parameter_server import ParameterServer
from gnnkit.task.evaluation import Evaluation
from gnnkit.training import checkpoint, resume, saving
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from tests.cases import exhaustive, few
from tests.comm.processes import run_gloo
from tests.graphs import random_graph

pytestmark = pytest.mark.filterwarnings("error:.*resum:UserWarning")
EPOCHS = 8
IDENTITY = resume.Identity({"seed": 7}, {"workers": 2})


class Scheduled(L.LightningModule):
    """A network whose learning rate changes with each epoch or each second step."""

    num_layers, self_loops = 2, True

    def __init__(self, interval: str, hidden: int) -> None:
        super().__init__()
        self.gcn, self.interval = GCN(8, 3, hidden=hidden), interval

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.gcn(x, adjacencies)
        return logits

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        if self.interval == "epoch":
            return {"optimizer": optimizer, "lr_scheduler": ExponentialLR(optimizer, 0.8)}
        schedule = {"scheduler": StepLR(optimizer, 1, 0.9), "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@dataclass(frozen=True)
class Case:
    """A tiny training run."""

    strategy: Callable[[], ExecutionStrategy]
    interval: str = "epoch"
    check_val: int = 1
    epochs: int = EPOCHS
    steps: int | None = None  # between checkpoints within an epoch
    hidden: int = 4
    sync: Callable[[], GradientSync] = AllReduce


class KeepAll(saving.PeriodicCheckpoint):
    """A callback that writes each checkpoint to a separate file."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        super().__init__(saving.Checkpoints(folder, IDENTITY), 1, steps)
        self.folder = folder

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        self.checkpoints.path = self.folder / f"{trainer.current_epoch}.json"
        super().on_train_epoch_start(trainer, module)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.checkpoints.path = self.folder / f"{trainer.current_epoch}-{batch_idx + 1}.json"
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        self.checkpoints.wait()


GRAPH = random_graph(30)


def train(
    case: Case, comm: Communicator, folder: Path | None = None, resumed: Path | None = None
) -> tuple[Tensor, int, list[int]]:
    """Returns the parameters of this rank, its steps, and the number of each batch."""
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"  # for Lightning's DDP
    strategy = case.strategy()
    owner = (np.arange(GRAPH.num_nodes) * comm.world_size // GRAPH.num_nodes).astype(np.int32)
    shards = list(cut_all(GRAPH, Partition(owner, None, Grid(comm.world_size, 1, 1))))
    graph = GRAPH if strategy.reads.graph else None
    sampler = NeighborSampler([3, 3]) if strategy.reads.sampler else None
    worker = Worker(comm, shards[comm.rank], torch.float32, 7, graph, sampler)
    model = Scheduled(case.interval, case.hidden)
    for number, parameter in enumerate(model.parameters()):
        torch.nn.init.uniform_(parameter, -0.5, 0.5, generator=torch.Generator().manual_seed(number))
    strategy.setup(worker, model)
    module = TrainingModule(
        model, strategy, worker, Evaluation.of(worker, model, 100.0), optimizer="adam", lr=0.1, weight_decay=0.0
    )
    batches = Batches()
    callbacks: list[Any] = [batches] + ([KeepAll(folder, case.steps)] if folder else [])
    again = [resume.Resume(resume.load(str(resumed), comm.rank), IDENTITY)] if resumed else []
    keys = {"max_epochs": case.epochs, "check_val_every_n_epoch": case.check_val, "logger": False}
    with comm.mailbox() as mailbox:
        sync = case.sync()
        trainer = make_trainer(module, sync, SyncMeter(), mailbox=mailbox, callbacks=[*callbacks, *again], **keys)
        for callback in again:
            callback.place(trainer, module)
        trainer.fit(module)
        strategy.close()
        sync.close()
    values = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return values.clone(), trainer.global_step, batches.numbers


class Batches(L.Callback):
    """Notes the number that Lightning gives each batch."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.numbers.append(batch_idx)


def assert_same(actual: list[Any], expected: list[Any], skipped: int) -> None:
    """Compares with the unbroken run, whose first batches were not repeated."""
    for (values, steps, numbers), (reference, all_steps, all_numbers) in zip(actual, expected, strict=True):
        assert torch.equal(values, reference)
        assert steps == all_steps
        assert numbers == all_numbers[skipped:]


FULL = {
    "one": functools.partial(VertexCentric, 1),
    "three": functools.partial(VertexCentric, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "interval", "workers", "check_val"),
    [
        exhaustive(("one", "step", 1, 1)),
        ("one", "step", 1, 3),
        exhaustive(("three", "epoch", 2, 2)),
        ("one", "step", 1, 10),
        exhaustive(("one", "step", 1, 2)),
        *(exhaustive(("three", "epoch", 2, check_val)) for check_val in (1, 3, 10)),
    ],
)
def test_a_run_resumed_from_any_epoch_ends_where_an_unbroken_one_does(
    tmp_path: Path, name: str, interval: str, workers: int, check_val: int
) -> None:
    case = Case(FULL[name], interval, check_val, epochs=6)
    reference = Threads.run(functools.partial(train, case, folder=tmp_path), workers)
    assert [steps for _, steps, _ in reference] == [6] * workers
    for epoch in range(1, 6):
        resume_keys = functools.partial(train, case, resumed=tmp_path / f"{epoch}.json")
        assert_same(Threads.run(resume_keys, workers), reference, epoch)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("name", FULL, default=["one"])
def test_a_parameter_servers_optimiser_goes_on_from_any_epoch(tmp_path: Path, name: str) -> None:
    case = Case(FULL[name], epochs=5, sync=ParameterServer)
    reference = Threads.run(functools.partial(train, case, folder=tmp_path), 2)
    unsaved = Threads.run(functools.partial(train, case), 2)
    assert_same(unsaved, reference, 0)
    for epoch in range(1, 5):
        resume_keys = functools.partial(train, case, resumed=tmp_path / f"{epoch}.json")
        assert_same(Threads.run(resume_keys, 2), reference, epoch)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("name", FULL, default=["one"])
def test_a_chain_of_three_resumed_runs_ends_where_an_unbroken_one_does(tmp_path: Path, name: str) -> None:
    case = Case(FULL[name], "epoch", 1)
    reference = Threads.run(functools.partial(train, case), 2)
    Threads.run(functools.partial(train, case, folder=tmp_path / "a"), 2)
    Threads.run(functools.partial(train, case, folder=tmp_path / "b", resumed=tmp_path / "a/2.json"), 2)
    Threads.run(functools.partial(train, case, folder=tmp_path / "c", resumed=tmp_path / "b/5.json"), 2)
    assert not (tmp_path / "b/2.json").exists()
    actual = Threads.run(functools.partial(train, case, resumed=tmp_path / "c/7.json"), 2)
    assert_same(actual, reference, 7)


SAMPLED = Case(functools.partial(IndividualSample, batch_size=3), "step", 2, epochs=3, steps=1)


RUNS = [pytest.param(Threads.run, id="threads"), pytest.param(run_gloo, id="gloo")]


@pytest.mark.slow
@few("run", RUNS, default=["threads"])
def test_a_run_resumed_from_any_step_of_an_epoch_ends_where_an_unbroken_one_does(
    tmp_path: Path, run: Callable[..., list[Any]]
) -> None:
    reference = run(functools.partial(train, SAMPLED, folder=tmp_path), 2)
    in_epoch = max(reference[0][2]) + 1
    assert in_epoch >= 3
    steps = range(1, in_epoch) if run is Threads.run else [2]
    for epoch in (0, 1, 2) if run is Threads.run else [1]:
        for step in steps:
            resume_keys = functools.partial(train, SAMPLED, resumed=tmp_path / f"{epoch}-{step}.json")
            assert_same(run(resume_keys, 2), reference, epoch * in_epoch + step)


@pytest.mark.slow
def test_batches_made_together_resume_in_mid_epoch_to_the_bit(tmp_path: Path) -> None:
    case = Case(functools.partial(JointSample, batch_size=2), "step", 2, epochs=2, steps=1)
    reference = Threads.run(functools.partial(train, case, folder=tmp_path), 2)
    in_epoch = max(reference[0][2]) + 1
    assert in_epoch >= 2
    actual = Threads.run(functools.partial(train, case, resumed=tmp_path / "0-1.json"), 2)
    assert_same(actual, reference, 1)


PARTITIONED = Case(
    functools.partial(IndividualSample, batch_size=3, topology="partitioned", cache="lru"), "step", 2, epochs=3, steps=1
)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("run", RUNS, default=["threads"])
def test_a_run_that_fetches_rows_resumes_within_an_epoch_with_the_bits_of_a_shared_graph(
    tmp_path: Path, run: Callable[..., list[Any]]
) -> None:
    reference = Threads.run(functools.partial(train, SAMPLED), 2)
    in_epoch = max(reference[0][2]) + 1
    assert_same(run(functools.partial(train, PARTITIONED, folder=tmp_path), 2), reference, 0)
    resumed = functools.partial(train, PARTITIONED, resumed=tmp_path / "1-2.json")
    assert_same(run(resumed, 2), reference, in_epoch + 2)


PRESET: dict[str, dict[str, Any]] = {
    "accumulated": {"sync_every": 3},
    "clusters": {"name": "cluster", "clusters": 4, "clusters_per_batch": 1, "sync_every": 3},
    "llcg": {"name": "llcg", "sync_every": 2, "correction_batch_size": 3},
    "coverage": {"name": "coverage", "resplit_every": 2},
    "exchanged": {"exchange_every": 3, "average": "parameters", "sync_every": 2},
}


def preset(name: str = "preset_workload", **keys: Any) -> ExecutionStrategy:
    strategy: ExecutionStrategy = plugins.load("strategy", name)(**keys)
    return strategy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"),
    [*((name, 3) if name != "clusters" else exhaustive((name, 3)) for name in PRESET), exhaustive(("clusters", 100))],
)
def test_a_preset_workload_resumed_from_any_step_ends_where_an_unbroken_one_does(
    tmp_path: Path, name: str, most: int
) -> None:
    """Also tests kept gradients, and the optimiser's state for corrections.

    Resumes from so many checkpoints at most, spread evenly.
    """
    case = Case(functools.partial(preset, **PRESET[name]), "step", 2, epochs=3, steps=1)
    reference = Threads.run(functools.partial(train, case, folder=tmp_path), 2)
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) >= 2
    for path in files[:: max(len(files) // most, 1)]:
        resumed = functools.partial(train, case, resumed=path)
        assert_same(Threads.run(resumed, 2), reference, checkpoint.load(path)["global_step"])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint after 3 epochs."""
    Threads.run(functools.partial(train, Case(FULL["one"], epochs=4), folder=tmp_path), 1)
    return tmp_path / "3.json"


def test_a_run_that_has_done_all_its_epochs_is_refused(saved: Path) -> None:
    with pytest.raises(
        UserError, match=r"^trainer.max_epochs=3: the checkpoint .*3.json has done 3 epochs, ask for more"
    ):
        Threads.run(functools.partial(train, Case(FULL["one"], epochs=3), resumed=saved), 1)


def test_another_optimiser_of_the_model_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Scheduled, "configure_optimizers", lambda self: [torch.optim.SGD(self.gcn.convs[0].parameters())]
    )
    with pytest.raises(UserError, match="optimizer or schedule is not that of the checkpoint"):
        Threads.run(functools.partial(train, Case(FULL["one"]), resumed=saved), 1)


def test_other_widths_are_refused(saved: Path) -> None:
    reference = r"^model: gcn.convs.0.weight has shape \[8, 5\], but \[8, 4\] in the checkpoint .*3.json"
    with pytest.raises(UserError, match=reference):
        Threads.run(functools.partial(train, Case(FULL["one"], hidden=5), resumed=saved), 1)


@pytest.mark.parametrize(
    ("run", "layout", "saved", "expected"),
    [
        (
            {"trainer.lr": 0.5},
            {},
            {},
            "trainer.lr=0.5 differs from 0.01 in the checkpoint last.json: leave it, or start",
        ),
        ({"dataset": "b"}, {}, {}, "trainer.resume: the graph is not the graph of the checkpoint last.json"),
        ({"sampler.fanouts": [2]}, {}, {}, "sampler.fanouts=[2] differs from null"),
        ({}, {"workers": 3}, {"step": 1}, "workers=3 differs from 2"),
        ({}, {"workers": 3}, {"workers": []}, "workers=3 differs from 2"),
        ({}, {"workers": 3}, {}, None),
        ({}, {}, {"former": {"trainer.plateau_factor": None, "sampler": "weighted", "sampler.alpha": 0.0}}, None),
        (
            {},
            {},
            {"former": {"sampler": "weighted", "sampler.alpha": 1.0}},  # the default of another sampler
            "sampler.alpha=1.0 in the checkpoint last.json was removed",
        ),
        ({}, {}, {"former": {"partition.nodes": "ldg", "partition.nodes.passes": 1}}, None),
        (
            {},
            {},
            {"former": {"partition.nodes": "ldg", "partition.nodes.passes": 3}},
            "partition.nodes.passes=null differs",
        ),
        (
            {"sampler.importance": "mean"},
            {},
            {"former": {"sampler": "neighbor"}},  # was null
            "sampler.importance=mean differs from null",
        ),
        (
            {},
            {},
            {"former": {"sync.damping": "staleness"}},
            "sync.damping=staleness in the checkpoint last.json was removed",
        ),
        ({"features.text": "one_hot"}, {}, {}, None),  # the checkpoint is older than the key
        ({"features.text": "known"}, {}, {}, "features.text=known differs from null"),
        ({"strategy.halo": "none"}, {}, {}, "strategy.halo=none differs from null"),
    ],
)
def test_what_may_not_change_is_named(
    run: dict[str, Any], layout: dict[str, Any], saved: dict[str, Any], expected: str | None
) -> None:
    kept = {"trainer.lr": 0.01, "dataset": "a"}
    former = saved.pop("former", {})  # keys of earlier versions
    run |= {key: value for key, value in former.items() if key in ("sampler", "partition.nodes")}
    identity = {"run": kept | former, "layout": {"workers": 2}}
    state = {"path": "last.json", "step": 0, "workers": None, "identity": identity, **saved}
    given = resume.Identity(kept | run, {"workers": 2} | layout)
    if expected is None:
        resume.check_identity(state, given)
        return
    with pytest.raises(UserError) as error:
        resume.check_identity(state, given)
    assert str(error.value).startswith(expected)


def test_a_checkpoint_of_an_earlier_version_may_have_removed_keys_at_their_defaults() -> None:
    earlier: dict[str, Any] = {"strategy": "preset_workload", "strategy.halo": None, "strategy.degrees": "global"}
    earlier |= {"strategy.correction": "none", "strategy.clusters": None, "exchange.smoothing": 0.0}
    state: Any = {"path": "last.json", "step": 0, "workers": None}
    identity = resume.Identity({"strategy": "preset_workload", "strategy.halo": "one_hop"}, {})
    resume.check_identity(state | {"identity": {"run": earlier}}, identity)
    with pytest.raises(
        UserError, match=r"^strategy\.correction=llcg in the checkpoint last\.json was removed: start anew"
    ):
        resume.check_identity(state | {"identity": {"run": earlier | {"strategy.correction": "llcg"}}}, identity)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"{}", "is not whole"),
        (b"\xff\x00", "is not whole"),
        ({"some": "state"}, "is not the checkpoint of a run"),
        ([1, 2], "is not the checkpoint of a run"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path, content: Any, expected: str) -> None:
    path = tmp_path / "last"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        checkpoint.save(content, path)
    with pytest.raises(UserError, match=expected) as error:
        resume.load(str(path))
    assert str(error.value).startswith(f"trainer.resume={path}: ")
    assert "\n" not in str(error.value)


def test_a_wrong_part_of_a_checkpoint_is_named(saved: Path) -> None:
    state = checkpoint.load(saved)
    checkpoint.save(state | {"epoch": "three"}, saved)
    with pytest.raises(UserError, match="is not the checkpoint of a run: epoch is wrong"):
        resume.load(str(saved))
    assert json.loads(saved.read_text())


@pytest.mark.parametrize("other", [40, 41])
def test_ranks_that_have_read_other_checkpoints_do_not_start(other: int) -> None:
    (shard,) = cut_all(random_graph(8), Partition(np.zeros(8, np.int32), None, Grid(1, 1, 1)))
    identity = resume.Identity({}, {})

    def begin(comm: Communicator) -> None:
        state = {"step": 0, "workers": None, "identity": identity.to_dict(), "path": "last.json"}
        state["global_step"] = other if comm.rank == 2 else 40
        resume.Resume(state, identity)._check_alike(Worker(comm, shard, torch.float64, 0))  # type: ignore[arg-type]

    if other == 40:
        Threads.run(begin, 3)
        return
    with pytest.raises(UserError, match="rank 2 has read a checkpoint of step 41, rank 0 of step 40: let all hosts"):
        Threads.run(begin, 3)


def test_a_worker_that_was_lost_goes_on_from_the_leaders_state() -> None:
    def own(comm: Communicator) -> Any:
        shard = next(iter(cut_all(random_graph(8), Partition(np.zeros(8, np.int32), None, Grid(1, 1, 1)))))
        worker = Worker(comm, shard, torch.float64, 0)
        packed = checkpoint.pack({"name": "worker", "shard": resume.fingerprint(shard)})
        leader = {"name": "leader", "strategy": {"round": 3}, "path": "", "workers": [packed, packed, packed[:0]]}
        return resume.own_state(leader, SimpleNamespace(worker=worker))  # type: ignore[arg-type]

    states = Threads.run(own, 3)
    assert [state["name"] for state in states] == ["worker", "worker", "leader"]
    assert states[2]["strategy"] == {}


def test_a_rank_goes_on_from_its_own_part_and_a_lost_one_from_the_leader_s() -> None:
    (shard,) = cut_all(random_graph(8), Partition(np.zeros(8, np.int32), None, Grid(1, 1, 1)))
    mine, none = resume.fingerprint(shard), torch.empty(0, dtype=torch.uint8)

    def load_state(rank: int, *workers: torch.Tensor) -> Any:
        module: Any = SimpleNamespace(worker=SimpleNamespace(comm=SimpleNamespace(rank=rank), shard=shard))
        files: Any = {
            "shard": mine,
            "strategy": {"of": "leader"},
            "path": "last.json",
            "workers": list(workers) or None,
        }
        return resume.own_state(files, module)["strategy"]

    own = checkpoint.pack({"shard": mine, "strategy": {"of": "rank 1"}})
    assert load_state(1) == load_state(0, none, own) == {"of": "leader"}
    assert (load_state(1, none, own), load_state(1, none, none)) == ({"of": "rank 1"}, {})
    second = checkpoint.pack({"shard": "other", "strategy": {}})
    with pytest.raises(UserError, match=r"workers of the checkpoint last\.json had other nodes: cut the graph alike"):
        load_state(1, none, second)
