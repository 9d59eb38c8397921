"""The Lightning module, which turns a strategy's batches into optimiser steps."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.comm.agreement import models_differ
from gnnkit.engine.remote import LearnedRows
from gnnkit.errors import UserError
from gnnkit.launch.progress import warn
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.task.base import rows_of
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.node_classification import NodeClassification
from gnnkit.training import hooks, monitor, schedule
from gnnkit.training.embedding import Embedding, LabelInputs
from gnnkit.training.exact_epochs import ExactEpochs
from gnnkit.training.hooks import UserLog, join_metrics
from gnnkit.training.schedule import Schedules, clip
from gnnkit.training.step import loss_of, make_optimizer, own_method, reaching
from gnnkit.utils.spans import active


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """A split's labelled nodes on one rank, in a single batch.

    Outputs are exact, computed from all neighbours, with any training strategy.
    """

    logits: Tensor  # [k, width] model outputs
    labels: Tensor  # [k, ...] in the form of `Graph.labels`
    total: int  # sum of k over all ranks

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"batch.{name}: validation_step and test_step get batch.logits, batch.labels and batch.total, as the model "
            "has computed the outputs from all neighbours already"
        )


_ROWS = "embedding"  # key in a snapshot. Names of parameters start with "model."


class EpochBatches:
    """The training loader of one epoch, starting at a given step.

    Measures the time that training waits for batches.
    """

    def __init__(self, strategy: ExecutionStrategy, epoch: int, first: int, accumulate: int = 1) -> None:
        """Stores the arguments.

        Args:
            strategy: Provides the batches.
            epoch: Number of the epoch.
            first: Step at which to start, a multiple of `accumulate`.
            accumulate: Number of batches per optimiser step.
        """
        self.strategy, self.epoch, self.first, self.accumulate = strategy, epoch, first, accumulate
        self.seconds_waiting = 0.0
        self.spans = active()  # for a trace

    def __len__(self) -> int:
        return self.strategy.num_batches(self.epoch)  # includes the batches before `first`

    def __iter__(self) -> Iterator[Batch]:
        batches = self.strategy.batches(self.epoch, self.first)
        batches = batches if self.accumulate == 1 else accumulate_batches(batches, self.accumulate)
        start = time.perf_counter()
        for batch in batches:
            end = time.perf_counter()
            self.seconds_waiting += end - start
            if self.spans is not None:
                self.spans.add("wait", "wait for a batch", start, end)
            yield batch
            start = time.perf_counter()


def accumulate_batches(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """Merges every `count` batches into one step, and the remaining ones of an epoch.

    Reads `count` batches ahead, because each loss is divided by the rows of all.
    """
    while group := list(itertools.islice(batches, count)):
        total = sum(batch.total for batch in group)
        for number, batch in enumerate(group, 1):
            yield replace(batch, total=total, update="synchronise" if number == len(group) else "accumulate")


def copy_model(module: TrainingModule) -> nn.Module | None:
    """Copies the model, for calls that must not change the model being trained.

    Returns None if the model cannot be copied.
    """
    shared_objects = (
        module,
        module.user_log,
        module.trainer,
        module.worker,
        module.worker.comm,
    )  # reachable from a LightningModule
    try:
        model = copy.deepcopy(module.model, {id(shared_object): shared_object for shared_object in shared_objects})
    except Exception:
        return None
    if isinstance(model, L.LightningModule):
        model.trainer = module.trainer  # not copied by Lightning
    return model


def _by_id(module: nn.Module) -> dict[int, Parameter]:
    return {id(parameter): parameter for parameter in module.parameters()}


class TrainingModule(hooks.OwnHooks):
    """Trains a model on a batch's rows, with the task's loss.

    A model that is a LightningModule may define `configure_optimizers` and
    `training_step(batch, index)`. The step returns this rank's part of the loss: a sum
    over `batch.rows`, divided by `batch.total`, because the ranks' gradients are
    summed. The fields of `batch` are:

    - `x` [num_src, in_features]: the input nodes' features
    - `adjacencies`: one per layer, with the in-edges that the layer reads
    - `rows` [k] int64: the output rows that the loss reads. For link tasks, pairs of
    rows [k, 2]
    - `outputs(out)`: these rows of the model's output. Collective
    - `labels` [k, ...]: these rows' labels, in the form of `Graph.labels`
    - `total`: the sum of k over all ranks
    - `row_weights` [k]: factors of the rows' losses, or None. A model whose
    `training_step` applies them must set `reads_row_weights = True`

    A model may also define `validation_step` and `test_step`, which receive an
    `Evaluated`, and the hooks in `hooks.CALLED`. Other hooks are rejected. The model's
    `self.log` is `UserLog.log`, and torchmetrics cover all ranks. With several ranks, a
    copy of the model takes two or three steps in evaluation mode before the first step,
    to check that the loss is such a sum.

    Args:
        model: The model.
        strategy: Provides batches, after `setup`.
        worker: This rank.
        evaluation: Computes the owned nodes' logits.
        task: Computes losses and metrics. Default: node classification.
        embedding: The learned input rows. Default: input rows are features.
        label_inputs: Hides labels among the features. Default: features have none.
        optimizer: A key of `settings.OPTIMIZERS`.
        lr: Learning rate.
        weight_decay: L2 penalty on the model's decayed parameters.
        schedule: Learning rates over the epochs. Default: constant.
        clip_norm: Maximum norm of a step's gradient. Default: unlimited.
        accumulate: Number of batches per optimiser step.
        exact_epochs: Makes some epochs exact. If None, all steps are as configured.
        progress_splits: Splits that evaluations during training measure. Default: all.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: ExecutionStrategy,
        worker: Worker,
        evaluation: Evaluation,
        *,
        task: Task | None = None,
        embedding: Embedding | None = None,
        label_inputs: LabelInputs | None = None,
        optimizer: str,
        lr: float,
        weight_decay: float,
        schedule: Schedules | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        exact_epochs: ExactEpochs | None = None,
        progress_splits: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        self.exact_epochs, self.progress_splits = exact_epochs, progress_splits
        self.model, self.strategy, self.worker, self.evaluation = model, strategy, worker, evaluation
        self.task, self.embedding, self.label_inputs = task or NodeClassification(), embedding, label_inputs
        self.schedule, self.clip_norm, self.accumulate = schedule, clip_norm, accumulate
        self.optimizer_name, self.lr, self.weight_decay = optimizer, lr, weight_decay
        self.local_loss = torch.zeros(())  # this rank's part of the last step's loss
        self.sync: GradientSync | None = None  # set by `make_trainer`
        self.resumed = (0, 0)  # epoch and step at which this run started
        self._is_judged = False  # whether the model was compared with chance
        self.evaluated: Evaluated | None = None  # set within the model's own evaluation step
        self.user_log = UserLog(self)
        self.agrees_to_stop = True  # False: no user code can end training
        self._stop_requested = False  # by user code on this rank, in this epoch
        if isinstance(model, L.LightningModule):
            model.log = self.user_log.log  # type: ignore[assignment, method-assign]
        self._parameters_by_id = _by_id(self)
        join_metrics(model, worker.comm)

    def train_dataloader(self) -> EpochBatches:
        if self.exact_epochs is not None:
            self.exact_epochs.begin_epoch(self)  # may change the number of steps
        epoch, step = self.resumed
        first = step if epoch == self.current_epoch else 0
        self.loader = EpochBatches(self.strategy, self.current_epoch, first, self.accumulate)
        return self.loader

    def val_dataloader(self) -> Any:
        return [0]  # one step, because every rank evaluates all owned nodes at once

    test_dataloader = val_dataloader

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # strategies create batches on the device

    def configure_optimizers(self) -> Any:
        if (configure := own_method(self.model, "configure_optimizers")) is not None:
            if self.schedule is not None:
                raise UserError(
                    f"trainer.schedule={self.schedule.name}: model={type(self.model).__name__} brings optimisers with "
                    "schedules of its own: leave out trainer.schedule and trainer.warmup_epochs"
                )
            return schedule.check_optimizers(configure(), type(self.model).__name__, by_steps=self.accumulate == 1)
        optimizer = make_optimizer(self.model, self.optimizer_name, self.lr, self.weight_decay)
        return optimizer if self.schedule is None else self.schedule.of(optimizer)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Steps a schedule, equally on all ranks.

        A schedule that monitors an evaluation metric steps only in epochs with an
        evaluation. If ranks logged different values, the leader's is used.
        """
        if metric is not None:
            if (
                schedule.schedule_metric(self.trainer, scheduler) in self.user_log.of_evaluations
                and not self._evaluates
            ):
                return
            metric = self.worker.comm.share(float(metric))
        step_schedule = own_method(self.model, "lr_scheduler_step") or super().lr_scheduler_step
        step_schedule(scheduler, metric)

    @property
    def _evaluates(self) -> bool:
        """Whether this epoch ends with an evaluation."""
        every = self.trainer.check_val_every_n_epoch
        return every is not None and (self.current_epoch + 1) % every == 0

    def on_train_epoch_end(self) -> None:
        """Keeps a loader of one step, because ranks compare lengths of new ones."""
        super().on_train_epoch_end()
        keeps = self.exact_epochs is None and len(self.loader) == self.strategy.num_batches(self.current_epoch + 1) == 1
        self.trainer.reload_dataloaders_every_n_epochs = int(not keeps)  # type: ignore[attr-defined]
        self.loader.epoch, self.loader.first = self.current_epoch + 1, 0
        if self._evaluates:
            schedule.check_monitored(self.trainer)
        self._put_off_stop()
        requests = torch.tensor([float(self._stop_requested)], device=self.worker.device)
        if self.agrees_to_stop:
            self.worker.comm.all_reduce(requests)
        self.trainer.should_stop, self._stop_requested = bool(requests > 0), False

    def _put_off_stop(self) -> None:
        """Defers a request to end training to the end of the epoch.

        User code may set `trainer.should_stop` on one rank only. All ranks then end
        after the same epoch.
        """
        self._stop_requested |= self.trainer.should_stop
        self.trainer.should_stop = False

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._put_off_stop()

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._put_off_stop()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self._put_off_stop()

    def on_train_start(self) -> None:
        super().on_train_start()
        self._put_off_stop()
        self._parameters_by_id = _by_id(self)  # hooks may have created parameters
        hooks.before_step(self, self.clip_norm)
        if self.clip_norm is not None and not hooks.clips(self.model):
            for optimizer in self.trainer.optimizers:
                clip(optimizer, self.clip_norm)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.batch = batch = self.filled(batch)
        loss = loss_of(self.model, self.task, batch, batch_idx)
        self.local_loss = loss.detach()
        # The factor is 1, or NaN where the loss is not finite. The sum of the ranks'
        # gradients then is NaN on all ranks.
        return reaching(loss * (1 + 0 * self.local_loss), self._trained())

    def _trained(self) -> list[Parameter]:
        """Returns the parameters that are trained.

        Raises `UserError` for a parameter created after the optimiser.
        """
        parameters = dict(self.named_parameters())
        for name, parameter in parameters.items():
            if id(parameter) not in self._parameters_by_id:
                raise UserError(
                    f"model={type(self.model).__name__}: the parameter {name.removeprefix('model.')} was made after "
                    "training began, and no optimiser has it: make parameters in the constructor"
                )
        return [parameter for parameter in parameters.values() if parameter.requires_grad]

    def filled(self, batch: Batch) -> Batch:
        """Returns the batch with learned input rows or hidden labels. Collective."""
        if self.label_inputs is not None:
            return self.label_inputs.fill(batch, self.worker, self.current_epoch)
        return batch if self.embedding is None else self.embedding.fill(batch)

    @property
    def learned(self) -> LearnedRows | None:
        """The learned input rows, or None."""
        return None if self.embedding is None else self.embedding.rows

    def snapshot(self) -> dict[str, Tensor]:
        """Copies this rank's parameters and learned rows."""
        state = {name: value.detach().clone() for name, value in self.state_dict().items()}
        return state if self.learned is None else {**state, _ROWS: self.learned.owned.detach().clone()}

    def put_back(self, snapshot: dict[str, Tensor]) -> None:
        """Restores the parameters and learned rows of a `snapshot`."""
        self.load_state_dict({name: value for name, value in snapshot.items() if name != _ROWS})
        if self.learned is not None:
            self.learned.owned.data.copy_(snapshot[_ROWS])

    def settle(self) -> None:
        """Distributes the newest parameters to every worker. Collective."""
        if self.sync is not None:
            self.sync.settle(self, self.trainer.optimizers[0])

    @property
    def _may_drift(self) -> bool:
        """Whether parameters or buffers may differ between workers."""
        return self.drifts or (self.sync is not None and next(self.model.buffers(), None) is not None)

    @property
    def drifts(self) -> bool:
        """Whether workers may take local steps."""
        return self.sync is not None and (self.strategy.steps.drift or self.sync.drifts)

    def join(self) -> None:
        """Combines workers that drifted into the model that is saved. Collective."""
        comm = self.worker.comm
        if self.sync is not None and self._may_drift and models_differ(self.model, comm):
            self.sync.finish(self.model, comm, self.worker.weight)

    @contextmanager
    def joint(self) -> Iterator[None]:
        """Lends the model that would be saved now, within the context. Collective.

        Must follow `settle`. All metrics describe this model, and `trainer.monitor`
        keeps it. Workers that drifted get their own parameters back.
        """
        local_state = self.snapshot() if self._may_drift else None
        self.join()
        try:
            yield
        finally:
            if local_state is not None:
                self.put_back(local_state)

    def validation_step(self, batch: object, batch_idx: int) -> None:
        self.settle()
        with self.joint():
            metrics = self._measure("val")
        for name, figure in metrics.items():
            self.log(name, figure, prog_bar=name == self.task.progress, batch_size=1)

    def test_step(self, batch: object, batch_idx: int) -> None:
        self._measure("test")

    def _measure(self, split: str) -> dict[str, float]:
        """Returns the task's metrics, after the model's own step. Collective."""
        user_step = own_method(self.model, "validation_step" if split == "val" else "test_step")
        is_due = split == "val" and self._is_due()

        def read(outputs: Tensor, worker: Worker) -> dict[str, float]:
            self.task.check_outputs(outputs)
            outputs = self.task.row_outputs(outputs, worker)
            if user_step is not None:
                self._take_own_step(user_step, *rows_of(split, outputs, worker))
            if split != "val":
                return {}
            metrics = self.task.measure_progress(outputs, worker)
            if is_due:
                self._judge(metrics, outputs, worker)
            return {name: value for name, value in metrics.items() if splits is None or name.startswith(splits)}

        splits = self.progress_splits if split == "val" else None
        return self.evaluation.read(self.model, read, None if is_due else splits)

    def _is_due(self) -> bool:
        """Returns whether to compare the model with chance now."""
        epochs, steps, max_epochs = self.current_epoch + 1, self.trainer.global_step, self.trainer.max_epochs or 0
        return not self._is_judged and steps >= monitor.MIN_STEPS and max_epochs <= 3 * epochs < 3 * max_epochs

    def _judge(self, metrics: dict[str, float], outputs: Tensor, worker: Worker) -> None:
        """Warns if nothing was learned. Called once. Collective.

        Args:
            metrics: The joint model's metrics.
            outputs: [k, width] outputs of this rank's rows.
            worker: Its targets are these rows; splits may be absent.
        """
        self._is_judged = True
        baseline = self.task.chance(outputs, worker)
        epochs, steps = self.current_epoch + 1, self.trainer.global_step
        warning = monitor.learned_nothing(self.task, metrics, baseline, epochs, steps)
        if warning is not None and self.worker.comm.rank == 0:
            warn(warning)

    def _take_own_step(self, user_step: Callable[..., object], logits: Tensor, labels: Tensor) -> None:
        """Calls the model's own evaluation step. Collective.

        Args:
            user_step: `validation_step` or `test_step`.
            logits: [k, width] outputs of this rank's nodes in the split.
            labels: [k, ...] labels of these nodes.
        """
        count = torch.tensor([len(labels)], device=self.worker.device)
        self.evaluated = Evaluated(logits, labels, int(self.worker.comm.all_reduce(count)))
        try:
            user_step(self.evaluated, 0)
            self.user_log.publish()
        finally:
            self.evaluated = None
