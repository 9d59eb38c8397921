"""job=verify: a few training steps on the ranks against one process that runs the same algorithm, in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gnnkit import plugins
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.model.program import Program
from gnnkit.partition.shard import Shard
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.sync.base import GradientSync
from gnnkit.training.module import TrainingModule
from gnnkit.training.plan import WHOLE
from gnnkit.training.program import iterate
from gnnkit.training.ranks import SyncMeter
from gnnkit.training.trainer import make_trainer, reconcile

EPOCHS = 3
TOLERANCE = 1e-10
LEARNING_RATE = 0.1

MakeModel = Callable[[Worker], nn.Module]


def verify_rank(config: dict[str, Any], shards: Path, make_model: MakeModel, comm: Communicator) -> dict[str, Any]:
    """Trains on the ranks; the leader then trains alone and compares. Collective; the result is the leader's.

    Where the strategy promises the result of one process, the reference is one rank that holds the whole graph, else all
    ranks as threads of this process. Both go through the trainer that trains, and through its DDP where it has one, to the final
    average. Optimiser: SGD, whose parameters show the gradients.
    """
    torch.set_num_threads(config["threads"])
    strategy, sync = _create(config)
    if sync.asynchronous:
        raise ValueError(f"job=verify needs a synchronous mode, sync={config['sync']['name']} depends on time")
    found = _trained(config, shards, make_model, comm)
    if comm.rank != 0:
        return {}
    ranks = 1 if strategy.equals_one_process and sync.exact else comm.world_size
    folders = [shards / WHOLE] if ranks == 1 else [shards / str(rank) for rank in range(ranks)]
    expected = Threads.run(functools.partial(_trained_on, config, folders, make_model), ranks, timeout=_FOREVER)[0]
    reference = "one rank with the whole graph" if ranks == 1 else f"{ranks} ranks as threads of one process"
    return _compared(found, expected) | {"reference": reference, "note": _note(make_model, comm, shards, config)}


def verify_program(config: dict[str, Any], shards: Path, program: Program, comm: Communicator) -> dict[str, Any]:
    """Runs a program on the ranks, and on the leader alone with the whole graph. Collective; the result is the leader's."""
    torch.set_num_threads(config["threads"])

    def values(comm: Communicator, folder: Path) -> dict[str, Tensor]:
        worker = Worker(comm, Shard.load(folder), torch.float64, config["seed"])
        return {"values": _ordered(iterate(copy.deepcopy(program), worker, lambda *_: None).values, worker)}

    found = values(comm, shards / str(comm.rank))
    if comm.rank != 0:
        return {}
    expected = Threads.run(functools.partial(values, folder=shards / WHOLE), 1, timeout=_FOREVER)[0]
    return _compared(found, expected) | {"reference": "one rank with the whole graph"}


_FOREVER = 1e6  # seconds; the reference has no peers that could be lost


def _create(config: dict[str, Any]) -> tuple[ExecutionStrategy, GradientSync]:
    return plugins.create("strategy", config["strategy"]), plugins.create("sync", config["sync"])


def _trained(config: dict[str, Any], shards: Path, make_model: MakeModel, comm: Communicator) -> dict[str, Tensor]:
    return _steps(config, Worker(comm, Shard.load(shards / str(comm.rank)), torch.float64, config["seed"]), make_model)


def _trained_on(
    config: dict[str, Any], folders: list[Path], make_model: MakeModel, comm: Communicator
) -> dict[str, Tensor]:
    return _steps(config, Worker(comm, Shard.load(folders[comm.rank]), torch.float64, config["seed"]), make_model)


def _steps(config: dict[str, Any], worker: Worker, make_model: MakeModel) -> dict[str, Tensor]:
    """What is compared, on the leader: of every step, then at the end."""
    strategy, _ = _create(config)
    model = make_model(worker)
    strategy.setup(worker, model)
    module, recorder = _Plain(model, strategy, worker, optimizer="sgd", lr=LEARNING_RATE, weight_decay=0.0), _Recorder()
    options = {"max_epochs": EPOCHS, "limit_val_batches": 0, "logger": False, "callbacks": [recorder]}
    make_trainer(config, module, SyncMeter(), **options).fit(module)
    reconcile(model, strategy, worker)
    return {
        "loss": worker.comm.all_reduce(torch.stack(recorder.losses)),
        "gradients": torch.stack(recorder.gradients),
        "parameters": _values(module),
        "logits": _ordered(module.predict_logits(), worker),
    }


class _Plain(TrainingModule):
    """Steps all parameters by SGD, whatever optimiser the model brings: others divide by gradients that are nearly zero."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)


class _Recorder(Callback):
    """Keeps every step's loss, this rank's part, and gradient, as the parameters show it."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        self._before = _values(module)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.losses.append(module.local_loss)
        self.gradients.append((self._before - _values(module)) / LEARNING_RATE)


def _values(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach().clone()


def _ordered(logits: Tensor, worker: Worker) -> Tensor:  # [num_nodes, num_classes]
    """All ranks' rows by node, on the leader."""
    nodes = worker.comm.gather(torch.tensor(np.asarray(worker.shard.owned, np.int64), device=worker.device))
    rows = worker.comm.gather(logits)
    return torch.cat(rows)[torch.argsort(torch.cat(nodes))] if rows else logits


def _compared(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Any]:
    differences, verified = {}, True
    for name, reference in expected.items():
        differences[name] = float((found[name].cpu() - reference).abs().max())
        verified &= differences[name] <= TOLERANCE * max(1.0, float(reference.abs().max()))
    return {"job": "verify", "verified": verified, "largest_difference": differences, "tolerance": TOLERANCE}


def _note(make_model: MakeModel, comm: Communicator, shards: Path, config: dict[str, Any]) -> str | None:
    worker = Worker(comm, Shard.load(shards / "0"), torch.float64, config["seed"])
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in make_model(worker).modules()):
        return "the model has torch's own Dropout, which no two layouts repeat: it is exact with p=0 only"
    return None
