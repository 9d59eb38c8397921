"""The Lightning module: from a strategy's batches to steps of the optimiser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from gnnkit.engine.kernels import wide
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, accuracies
from gnnkit.settings import OPTIMIZERS
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.sync import GradientSync

# Scalars that every run logs.
_METRICS = ("train_loss", "train_accuracy", "val_accuracy", "test_accuracy", "work_max_over_mean")
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
}


class EpochBatches:
    """The training loader of one epoch, from the first step or a later one.

    Measures the time that training waits for batches.
    """

    def __init__(self, strategy: ExecutionStrategy, epoch: int, first: int) -> None:
        """Keeps the place.

        Args:
            strategy: Hands out the batches.
            epoch: Number of the epoch.
            first: Step of the epoch to begin with.
        """
        self.strategy, self.epoch, self.first = strategy, epoch, first
        self.seconds_waiting = 0.0

    def __len__(self) -> int:
        return self.strategy.num_batches(self.epoch)  # batches before `first` count as done

    def __iter__(self) -> Iterator[Batch]:
        batches = self.strategy.batches(self.epoch, self.first)
        while True:
            start = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.seconds_waiting += time.perf_counter() - start
            yield batch


class TrainingModule(L.LightningModule):
    """The classification of nodes, by cross-entropy over the rows of a batch.

    A model that is a LightningModule itself may bring `configure_optimizers` and
    `training_step(batch, index)`. The step returns this rank's part of the loss: a sum
    over `batch.rows`, divided by `batch.total`, because gradients of ranks are added
    up. The fields of `batch` are:

    - `x` [num_src, in_features]: the features of the input nodes
    - `adjacencies`: the in-edges that each layer reads, one for each layer
    - `rows` [k] int64: the rows of the model's output that the loss reads
    - `labels` [k] int64: the classes of these rows
    - `total`: the sum of k over all ranks
    - `row_weights` [k]: factors of the rows' losses, or None. A model whose
      `training_step` multiplies by these factors says so: `reads_row_weights = True`

    The model's `self.log` is `log_own`. Other hooks of the model are not called. On
    several ranks, two or three further calls in evaluation mode come before the first
    step, to check that the loss is such a sum.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: ExecutionStrategy,
        worker: Worker,
        evaluation: Evaluation,
        *,
        optimizer: str,
        lr: float,
        weight_decay: float,
    ) -> None:
        """Keeps the parts of this rank.

        Args:
            model: The model.
            strategy: Hands out batches, after `setup`.
            worker: This rank.
            evaluation: Computes the logits of the owned nodes.
            optimizer: A key of `settings.OPTIMIZERS`.
            lr: Learning rate.
            weight_decay: L2 penalty on the parameters that the model decays.
        """
        super().__init__()
        self.model, self.strategy, self.worker, self.evaluation = model, strategy, worker, evaluation
        self.optimizer_name, self.lr, self.weight_decay = optimizer, lr, weight_decay
        self.local_loss = torch.zeros(())  # this rank's part of the last step's loss
        self.sync: GradientSync | None = None  # set by `make_trainer`
        self.muted = False  # whether the model's `self.log` says nothing
        self.resumed = (0, 0)  # epoch and step at the begin of this run
        if isinstance(model, L.LightningModule):
            model.log = self.log_own  # type: ignore[assignment, method-assign]

    def train_dataloader(self) -> EpochBatches:
        epoch, step = self.resumed
        self.loader = EpochBatches(self.strategy, self.current_epoch, step if epoch == self.current_epoch else 0)
        return self.loader

    def val_dataloader(self) -> Any:
        return [0]  # one step, because every rank evaluates all owned nodes at once

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # strategies make batches on the device

    def configure_optimizers(self) -> Any:
        if (own := _own(self.model, "configure_optimizers")) is not None:
            return own()
        named = getattr(self.model, "decayed_parameters", self.model.parameters)
        decayed = list(named())
        chosen = {id(parameter) for parameter in decayed}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in chosen]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        make: Callable[..., Optimizer] = getattr(torch.optim, OPTIMIZERS[self.optimizer_name].torch_name)
        return make([group for group in groups if group["params"]], lr=self.lr)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.batch = batch
        with batch.precision():
            if (own := self.own_training_step) is not None:
                _check_row_weights(self.model, batch)
                loss: Tensor = own(batch, batch_idx)
            else:
                loss = cross_entropy(self.model(batch.x, batch.adjacencies), batch)
        self.local_loss = loss.detach()
        # The factor is 1, or NaN where the loss is not finite. The sum of the ranks'
        # gradients then is NaN on all ranks.
        return loss * (1 + 0 * self.local_loss)

    @property
    def own_training_step(self) -> Callable[..., Tensor] | None:
        """The `training_step` of a model that brings one."""
        return _own(self.model, "training_step")

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
        """Logs a value of the user's model, on the leader.

        With `sync_dist`, reduces the values of all ranks first. Collective then.
        Lightning's own reduction does not reach ranks that are threads. Raises
        `UserError` for the names that every run logs, and for other reductions.

        Args:
            name: Name of the scalar.
            value: The scalar.
            prog_bar: As in Lightning.
            reduce_fx: "mean", "sum", "min" or "max". Parts of a loss want the sum.
            sync_dist: Whether the ranks' values are reduced.
            **keys: Further arguments of Lightning's `log`.
        """
        if name in _METRICS:
            raise UserError(f"self.log({name!r}): every run logs {', '.join(_METRICS)} itself, choose another name")
        if self.muted:
            return
        if sync_dist and isinstance(value, int | float | Tensor):
            value = self._reduced(name, value, reduce_fx)
        keys.setdefault("batch_size", max(self.batch.total if sync_dist else len(self.batch.rows), 1))
        self.log(name, value, prog_bar, reduce_fx=reduce_fx, **keys)

    def _reduced(self, name: str, value: float | Tensor, reduce_fx: Any) -> Tensor:
        """Reduces the values of all ranks. Collective."""
        reduce = _REDUCTIONS.get(getattr(reduce_fx, "__name__", reduce_fx))
        if reduce is None:
            raise UserError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) must be mean, sum, min or max with sync_dist=True"
            )
        values = torch.zeros(self.worker.comm.world_size, dtype=torch.float64, device=self.worker.device)
        values[self.worker.comm.rank] = torch.as_tensor(value).detach()
        return reduce(self.worker.comm.all_reduce(values))

    def settle(self) -> None:
        """Brings the newest parameters to every worker. Collective."""
        if self.sync is not None:
            self.sync.settle(self, self.trainer.optimizers[0])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.settle()
        for split, accuracy in self.evaluation.read(self.model, accuracies).items():
            self.log(f"{split}_accuracy", accuracy, prog_bar=split == "val", batch_size=1)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Computes this rank's part of the loss from the logits [num_dst, num_classes]."""
    chosen, total = logits[batch.rows], max(batch.total, 1)
    chosen = chosen.to(wide(chosen.dtype))
    if batch.row_weights is None:
        return F.cross_entropy(chosen, batch.labels, reduction="sum") / total
    return (F.cross_entropy(chosen, batch.labels, reduction="none") * batch.row_weights).sum() / total


def _check_row_weights(model: nn.Module, batch: Batch) -> None:
    """Raises `UserError` for a model that would leave out the weights of rows."""
    if batch.row_weights is not None and not getattr(model, "reads_row_weights", False):
        raise UserError(
            f"model={type(model).__name__}: this strategy weighs the rows of a batch, and training_step must multiply "
            "the loss of each row by batch.row_weights: do so and set reads_row_weights = True, or leave training_step out"
        )


def _own(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """Returns the user's method of a LightningModule, if there is one."""
    if not isinstance(model, L.LightningModule) or getattr(type(model), name) is getattr(L.LightningModule, name):
        return None
    method: Callable[..., Any] = getattr(model, name)
    return method
