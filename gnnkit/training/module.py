"""The Lightning module: from a strategy's batches to steps of the optimiser."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from gnnkit.partition.shard import Shard
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.training.checkpoint import pack, unpack

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
# What every run logs.
_METRICS = ("train_loss", "train_accuracy", "val_accuracy", "test_accuracy", "work_max_over_mean")
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
}


@dataclass(frozen=True, slots=True)
class EpochBatches:
    """The training loader: Lightning takes a fresh iterator from it at every epoch."""

    strategy: ExecutionStrategy
    epoch: Callable[[], int]

    def __iter__(self) -> Iterator[Batch]:
        return self.strategy.batches(self.epoch())


class TrainingModule(L.LightningModule):
    """Classifies nodes: cross-entropy over the rows that the strategy hands out.

    A model that is a LightningModule itself may bring its own `configure_optimizers`, and its own `training_step(batch, index)`,
    which returns this rank's part of the loss: its sum over `batch.rows`, divided by `batch.total`. Its `self.log` is `log_own`; its
    other hooks are not called.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: ExecutionStrategy,
        worker: Worker,
        *,
        optimizer: str,
        lr: float,
        weight_decay: float,
    ) -> None:
        super().__init__()
        self.model, self.strategy, self.worker = model, strategy, worker
        self.optimizer_name, self.lr, self.weight_decay = optimizer, lr, weight_decay
        self.local_loss = torch.zeros(())  # this rank's part of the last step's loss
        if isinstance(model, L.LightningModule):
            model.log = self.log_own  # type: ignore[assignment, method-assign]
        self._end: Tensor | None = None  # `_own_state` when training ended, before any final average

    def train_dataloader(self) -> Any:
        return EpochBatches(self.strategy, lambda: self.current_epoch)

    def val_dataloader(self) -> Any:
        return [0]  # one step, on the batch that the strategy keeps for evaluation

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # strategies make batches where they are needed

    def configure_optimizers(self) -> Any:
        if (own := _own(self.model, "configure_optimizers")) is not None:
            return own()
        named = getattr(self.model, "decayed_parameters", self.model.parameters)
        decayed = list(named())
        chosen = {id(parameter) for parameter in decayed}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in chosen]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return OPTIMIZERS[self.optimizer_name]([group for group in groups if group["params"]], lr=self.lr)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.batch = batch
        if (own := _own(self.model, "training_step")) is not None:
            loss: Tensor = own(batch, batch_idx)
            self.local_loss = loss.detach()
            return loss
        logits = self.model(batch.x, batch.adjacencies)
        loss = F.cross_entropy(logits[batch.rows], batch.labels, reduction="sum") / max(batch.total, 1)
        self.local_loss = loss.detach()
        return loss

    def log_own(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        *,
        reduce_fx: Any = "mean",
        sync_dist: bool = False,
        **keys: Any,
    ) -> None:
        """`log` for a model: the leader's value is kept or, with `sync_dist`, the mean, sum, min or max of all ranks', as `reduce_fx`
        says; parts of a loss want the sum. Lightning's own would reach neither ranks that are threads nor those it does not drive.
        Raises `ValueError` for the names that every run logs, and for other reductions.
        """
        if name in _METRICS:
            raise ValueError(f"self.log({name!r}): every run logs {', '.join(_METRICS)} itself, choose another name")
        if sync_dist and isinstance(value, int | float | Tensor):
            value = self._reduced(name, value, reduce_fx)
        keys.setdefault("batch_size", max(self.batch.total if sync_dist else len(self.batch.rows), 1))
        self.log(name, value, prog_bar, reduce_fx=reduce_fx, **keys)

    def _reduced(self, name: str, value: float | Tensor, reduce_fx: Any) -> Tensor:
        """Over all ranks' values. Collective."""
        reduce = _REDUCTIONS.get(getattr(reduce_fx, "__name__", reduce_fx))
        if reduce is None:
            raise ValueError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) must be mean, sum, min or max with sync_dist=True"
            )
        values = torch.zeros(self.worker.comm.world_size, dtype=torch.float64, device=self.worker.device)
        values[self.worker.comm.rank] = torch.as_tensor(value).detach()
        return reduce(self.worker.comm.all_reduce(values))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        for split, accuracy in accuracies(self.predict_logits(), self.worker).items():
            self.log(f"{split}_accuracy", accuracy, prog_bar=split == "val", batch_size=1)

    def on_train_end(self) -> None:
        if self.strategy.local_iterations > 1:
            self._end = self._own_state()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Where ranks differ between synchronisations, the checkpoint also holds what each needs to go on as an unbroken run
        does; after the final average, what each had before it. Collective then."""
        if self.strategy.local_iterations > 1:
            own = self._own_state() if self._end is None else self._end
            checkpoint[_WORKERS] = self.worker.comm.gather(own.to(self.worker.device))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises `ValueError` for the states of other workers than those of this run."""
        packed = checkpoint.pop(_WORKERS, None)
        if packed is None:
            return
        if self.strategy.local_iterations == 1:
            raise ValueError(
                "trainer.resume: its workers have parameters of their own, strategy.local_iterations=1 has not"
            )
        if len(packed) != self.worker.comm.world_size:
            raise ValueError(
                f"trainer.resume: it was saved by {len(packed)} workers, got workers={self.worker.comm.world_size}"
            )
        own = unpack(packed[self.worker.comm.rank])
        if own["shard"] != _fingerprint(self.worker.shard):
            raise ValueError(
                "trainer.resume: it was saved on another graph or partition, whose workers had other nodes"
            )
        checkpoint |= {key: own[key] for key in ("state_dict", "optimizer_states")}
        self.strategy.load_state_dict(own["strategy"])

    def _own_state(self) -> Tensor:  # [num_bytes] uint8
        return pack(
            {
                "shard": _fingerprint(self.worker.shard),
                "state_dict": self.state_dict(),
                "optimizer_states": [optimizer.state_dict() for optimizer in self.trainer.optimizers],
                "strategy": self.strategy.state_dict(),
            }
        )

    @torch.no_grad()
    def predict_logits(self) -> Tensor:  # [num_owned, num_classes]
        """Logits of the owned nodes, dropout off. Collective."""
        training = self.model.training
        self.model.eval()
        batch = self.strategy.evaluation()
        logits: Tensor = self.model(batch.x, batch.adjacencies)
        self.model.train(training)
        return logits


_WORKERS = "workers"  # key of a checkpoint


def _fingerprint(shard: Shard) -> str:
    """Of the rows that a rank owns and reads."""
    digest = hashlib.sha256(str(shard.grid).encode())
    for rows in (shard.owned, shard.sources, shard.targets):
        digest.update(np.asarray(rows, np.int64).tobytes())
    return digest.hexdigest()


def _own(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """The user's method of a LightningModule, where it has one."""
    if not isinstance(model, L.LightningModule) or getattr(type(model), name) is getattr(L.LightningModule, name):
        return None
    method: Callable[..., Any] = getattr(model, name)
    return method


def accuracies(logits: Tensor, worker: Worker) -> dict[str, float]:
    """Share of right answers among the labelled nodes of each split, over all ranks; splits without nodes are left out. Collective."""
    names = ("train", "val", "test")
    labels = torch.tensor(worker.shard.labels, dtype=torch.int64, device=worker.device)
    split = torch.tensor(worker.shard.split, device=worker.device)
    right = (logits.argmax(1) == labels) & (labels >= 0)
    counts = torch.zeros(2, len(names), dtype=torch.int64, device=worker.device)
    for index in range(len(names)):
        members = (split == index + 1) & (labels >= 0)
        counts[0, index], counts[1, index] = (right & members).sum(), members.sum()
    hits, totals = worker.comm.all_reduce(counts).tolist()
    return {name: hit / total for name, hit, total in zip(names, hits, totals, strict=True) if total}
