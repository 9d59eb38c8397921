"""What a user's LightningModule may bring: hooks, logged values and metrics."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.strategy import Batch
from gnnkit.sync import GradientSync
from gnnkit.training.step import own_method

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

_LOGGED = ("train_loss", "work_max_over_mean")  # logged by every run, in addition to the task's metrics
REDUCTIONS = ("mean", "sum", "min", "max")


@dataclass(frozen=True, slots=True)
class LoggedValue:
    """A logged value of one rank, or reduced over several steps or ranks."""

    value: float
    weight: float  # number of rows, the weight in a mean. Values of weight 0 count only if all weights are 0
    reduce: str  # a key of `REDUCTIONS`
    prog_bar: bool
    keys: Mapping[str, Any]  # further plain arguments of Lightning's `log`

    def merge(self, other_entries: Iterable[LoggedValue]) -> LoggedValue:
        """Reduces this value and others of the same name."""
        values = [self, *other_entries]
        nonempty = [entry for entry in values if entry.weight > 0] or values
        weights = [entry.weight or 1.0 for entry in nonempty]
        numbers = [entry.value for entry in nonempty]
        if self.reduce == "mean":
            value = sum(x * weight for x, weight in zip(numbers, weights, strict=True)) / sum(weights)
        elif self.reduce == "sum":
            value = sum(numbers)
        else:  # with NaN, the result of min and max depends on the order
            value = math.nan if any(map(math.isnan, numbers)) else {"min": min, "max": max}[self.reduce](numbers)
        return replace(self, value=value, weight=sum(entry.weight for entry in values))


def reduction(name: str, reduce_fx: Any) -> str:
    """Returns the name of a reduction. Raises `UserError` for an unsupported one.

    Args:
        name: Name of the value.
        reduce_fx: As in Lightning's `log`: a name, or a torch function.
    """
    reduce: str = getattr(reduce_fx, "__name__", reduce_fx)
    if reduce not in REDUCTIONS:
        raise UserError(f"self.log({name!r}, reduce_fx={reduce_fx!r}) must be mean, sum, min or max")
    return reduce


def over_ranks(local_values: Mapping[str, LoggedValue], comm: Communicator) -> dict[str, LoggedValue]:
    """Reduces values over all ranks. The result is equal on all ranks. Collective.

    A rank without rows may have skipped a `log` call, so ranks may have different
    names.

    Args:
        local_values: This rank's values by name.
        comm: Connects the ranks.
    """
    if comm.world_size == 1:
        return dict(local_values)
    fields = ("value", "weight", "reduce", "prog_bar", "keys")
    entries = {name: [getattr(entry, field) for field in fields] for name, entry in local_values.items()}
    ranks = comm.share([part for part in comm.gather_json(entries) if part is not None])  # a lost rank's is None
    by_name: dict[str, list[LoggedValue]] = {}
    for values in ranks:
        for name, row in values.items():
            by_name.setdefault(name, []).append(LoggedValue(*row))
    return {name: first.merge(other_entries) for name, (first, *other_entries) in by_name.items()}


class UserLog:
    """Logs the values of a user's model, reduced over all ranks."""

    def __init__(self, module: TrainingModule) -> None:
        """Stores this rank's module, whose `log` writes the values."""
        self._module = module
        self.muted = False  # whether `log` does nothing
        self.of_evaluations = set(module.task.names)  # names logged by evaluations
        self._ignored: set[str] = set()  # names for which a warning was printed
        self._unpublished: dict[str, LoggedValue] = {}  # this rank's values since the start of a step or hook
        self._of_epoch: dict[str, LoggedValue] = {}  # values of this rank's training steps

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        *,
        reduce_fx: Any = "mean",
        sync_dist: bool = False,
        **keys: Any,
    ) -> None:
        """Logs a value. Replaces `self.log` of the user's model.

        A mean is weighted by `batch_size`, by default the batch's number of rows. Ranks
        without rows do not count. In a training step, loggers get this rank's value, on
        the leader, and callbacks get the reduced value at the end of the epoch. With
        `sync_dist`, loggers get the reduced value in each step, and all ranks must
        call. Outside training steps, a rank may skip the call. Raises `UserError` for
        the names that every run logs, and for unsupported reductions. Further arguments
        are those of Lightning's `log`.

        Args:
            name: Name of the scalar.
            value: The scalar, or a torchmetrics metric.
            prog_bar: As in Lightning.
            reduce_fx: "mean", "sum", "min" or "max". Use "sum" for parts of a loss.
            sync_dist: Whether to reduce a training step's values over the ranks.
        """
        if self._is_reserved(name) or self.muted:
            return
        if not isinstance(value, int | float | Tensor):
            self._module.log(name, value, prog_bar, reduce_fx=reduce_fx, **keys)
            return
        entry = self._logged(value, reduction(name, reduce_fx), prog_bar, keys)
        if self._module._current_fx_name not in PUBLISHED:
            self._log_step(name, entry, sync_dist)
        else:
            before = self._unpublished.get(name)
            self._unpublished[name] = entry if before is None else before.merge([entry])

    def _is_reserved(self, name: str) -> bool:
        """Whether every run logs this name itself, which is an error or a warning."""
        module = self._module
        reserved_names = (*_LOGGED, *module.task.names)
        if name not in reserved_names:
            return False
        if not isinstance(module.model, EdgeIndexModel):
            raise UserError(
                f"self.log({name!r}): every run logs {', '.join(reserved_names)} itself, choose another name"
            )
        if module.worker.comm.rank == 0 and name not in self._ignored:
            print(f"self.log({name!r}) is left out: the run logs it, over the rows of all workers", file=sys.stderr)
        self._ignored.add(name)
        return True

    def _logged(self, value: float | Tensor, reduce: str, prog_bar: bool, keys: dict[str, Any]) -> LoggedValue:
        """Returns the value with its weight. Removes `batch_size` from the keys."""
        for key in ("sync_dist_group", "rank_zero_only"):
            keys.pop(key, None)
        weight = keys.pop("batch_size", None)
        number = float(torch.as_tensor(value).detach())
        return LoggedValue(number, float(self._num_rows if weight is None else weight), reduce, prog_bar, keys)

    @property
    def _num_rows(self) -> int:
        """This rank's number of rows in the current batch."""
        if self._module.evaluated is not None:
            return len(self._module.evaluated.labels)
        batch: Batch | None = getattr(self._module, "batch", None)  # missing before the first step
        return 1 if batch is None else len(batch.rows)

    def _log_step(self, name: str, entry: LoggedValue, sync_dist: bool) -> None:
        """Logs a value of a training step. Collective with `sync_dist`."""
        entry, reduce = self._reduce(entry) if sync_dist else entry, entry.reduce if not sync_dist else "mean"
        keys = {"on_step": True, "on_epoch": False, **{key: x for key, x in entry.keys.items() if x is not None}}
        before = self._of_epoch.get(name) if keys["on_epoch"] else None
        total = entry if before is None else replace(before, reduce=entry.reduce).merge([entry])
        self._of_epoch[name] = replace(total, reduce=reduce, keys=keys)
        if keys["on_step"]:
            step = f"{name}_step" if keys["on_epoch"] else name
            self._write(step, entry, keys | {"on_epoch": False})

    def _reduce(self, entry: LoggedValue) -> LoggedValue:
        """Reduces a value over all ranks. Collective."""
        rows = self._module.worker.comm.all_gather([entry.value, entry.weight], torch.float64).tolist()
        first, *other_entries = (replace(entry, value=value, weight=weight) for value, weight in rows)
        return first.merge(other_entries)

    def _write(self, name: str, value: LoggedValue, keys: Mapping[str, Any]) -> None:
        scalar = torch.tensor(value.value, dtype=torch.float64, device=self._module.worker.device)
        self._module.log(name, scalar, value.prog_bar, batch_size=1, **keys)

    def publish(self) -> None:
        """Logs the values of a step or hook, reduced over all ranks. Collective."""
        values = over_ranks(self._unpublished, self._module.worker.comm)
        self._unpublished = {}
        if self._module.trainer.state.stage == RunningStage.VALIDATING:
            self.of_evaluations |= values.keys()
        for name, value in values.items():
            self._write(name, value, value.keys)

    def publish_steps(self) -> None:
        """Provides callbacks with an epoch's step values over all ranks. Collective."""
        values = over_ranks(self._of_epoch, self._module.worker.comm)
        self._of_epoch = {}
        for name, value in values.items():
            keys = {**value.keys, "on_step": False, "on_epoch": True}
            has_both = value.keys["on_step"] and value.keys["on_epoch"]
            if value.keys["on_epoch"]:
                self._write(f"{name}_epoch" if has_both else name, value, keys)
            if value.keys["on_step"]:
                self._write(name, replace(value, prog_bar=False), keys | {"logger": False})


class EpochFigures(Callback):
    """Provides metrics of all ranks' steps to other callbacks.

    It must precede the callbacks that read metrics at the end of an epoch.
    """

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if isinstance(module.model, L.LightningModule):
            module.user_log.publish_steps()


def join_metrics(model: nn.Module, comm: Communicator) -> None:
    """Makes every metric of a model combine the states of all ranks.

    torchmetrics itself uses torch.distributed's default group, which ranks that are
    threads do not have, and which includes servers.

    Args:
        model: The model.
        comm: Connects the workers.
    """
    for metric in metrics_of(model):
        metric.distributed_available_fn = functools.partial(bool, comm.world_size > 1)
        metric.dist_sync_fn = functools.partial(gather_everywhere, comm)


def metrics_of(model: nn.Module) -> Iterator[Any]:
    """Yields a model's torchmetrics metrics."""
    for part in model.modules():
        if hasattr(part, "dist_sync_fn") and hasattr(part, "distributed_available_fn"):
            yield part


def gather_everywhere(comm: Communicator, x: Tensor, group: object = None) -> list[Tensor]:
    """Returns all ranks' tensors on all ranks. Collective.

    Args:
        comm: Connects the ranks.
        x: This rank's tensor. The first dimension may differ between ranks.
        group: torchmetrics' process group, unused.
    """
    rows = x.detach().reshape(1) if x.ndim == 0 else x.detach()
    lengths: list[int] = comm.all_gather(len(rows)).tolist()
    copies = torch.cat([rows.to(comm.device)] * comm.world_size)
    all_rows = comm.all_to_all(copies, [len(rows)] * comm.world_size, lengths).to(x.device)
    parts = torch.split(all_rows, lengths)
    return [part[0] if x.ndim == 0 else part for part in parts]


_PARTS = ("fit", "train", "train_epoch", "train_batch", "validation", "validation_epoch", "test", "test_epoch")
# Called by gnnkit's module on every rank, in Lightning's order.
CALLED = (
    *(f"on_{part}_{end}" for part in _PARTS for end in ("start", "end")),
    "on_before_zero_grad",
    "on_before_backward",
)
_STEPS = ("validation_step", "test_step")
# Hooks and steps after which all ranks log values reduced over the ranks.
PUBLISHED = ("on_train_start", *(name for name in CALLED if "_epoch_" in name), *_STEPS)
BEFORE_STEP = ("on_before_optimizer_step", "configure_gradient_clipping")  # called on the rank that runs the optimiser
_KEPT = {*CALLED, *BEFORE_STEP, *_STEPS, "training_step", "lr_scheduler_step"}
_KEPT |= {"configure_callbacks", "configure_optimizers"}
# Methods of a LightningModule that are not hooks.
_OTHERS = {"backward", "clip_gradients", "configure_callbacks", "manual_backward", "optimizer_step"}
_OTHERS |= {"optimizer_zero_grad", "predict_step", "toggle_optimizer", "untoggle_optimizer"}
_WHY = {
    "on_after_backward": "a rank may see its own gradient or the sum, use on_before_optimizer_step",
    "predict_step": "job=predict and write=[logits] give the outputs of all nodes",
    "setup": "make parameters in the constructor, or use on_fit_start",
    "teardown": "use on_fit_end",
}


class OwnHooks(L.LightningModule):
    """A module that calls the model's hooks, if the model is a LightningModule."""

    model: nn.Module
    user_log: UserLog  # values that hooks log

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        user_hook = own_method(self.model, "on_train_batch_start")
        if user_hook is not None and user_hook(batch, batch_idx) == -1:
            raise UserError(
                f"model={type(self.model).__name__}: on_train_batch_start returns -1 to end an epoch, which other "
                "ranks would not know: set trainer.max_epochs"
            )


def _calling(name: str) -> Callable[..., object]:
    def hook(self: OwnHooks, *arguments: object) -> Any:
        user_hook = own_method(self.model, name)
        if user_hook is None:
            return None
        result = user_hook(*arguments)
        if name in PUBLISHED:
            self.user_log.publish()
        return result

    return hook


for _name in CALLED:
    if _name not in vars(OwnHooks):
        setattr(OwnHooks, _name, _calling(_name))


def check(model: nn.Module, sync: GradientSync, measures_nodes: bool) -> None:
    """Raises `UserError` for a hook that gnnkit does not call.

    Args:
        model: The model.
        sync: The gradient synchronisation.
        measures_nodes: Whether evaluations have rows for a step of the model.
    """
    name = type(model).__name__
    for hook in _own_hooks(model):
        if hook not in _KEPT:
            raise UserError(
                f"model={name}: the hook {hook} is not called: {_WHY.get(hook, 'gnnkit does this work')}; leave it out"
            )
        if hook in BEFORE_STEP and not sync.steps_here:
            raise UserError(f"model={name}: the hook {hook} is not called where servers step: use sync=all_reduce")
        if hook in _STEPS and not measures_nodes:
            raise UserError(
                f"model={name}: the hook {hook} needs a task about nodes and sync.on_lost=stop: leave it out"
            )
    if isinstance(model, L.LightningModule) and not model.automatic_optimization:
        raise UserError(
            f"model={name}: automatic_optimization=False steps without the other ranks: leave it true, and bring "
            "configure_optimizers"
        )


def _own_hooks(model: nn.Module) -> Iterator[str]:
    """Yields the names of Lightning hooks that a model overrides."""
    classes = (ModelHooks, DataHooks, CheckpointHooks)
    names = {name for base_class in classes for name in vars(base_class) if not name.startswith("_")}
    for name in sorted({*names, *_OTHERS, "lr_scheduler_step", *BEFORE_STEP, *_STEPS}):
        if own_method(model, name) is not None:
            yield name


def before_step(module: Any, clip_norm: float | None) -> None:
    """Calls hooks of the model and callbacks with the complete gradient.

    The ranks' gradients are summed at this point. With `sync=leader`, only the leader
    steps.

    Args:
        module: This rank's module, with its trainer.
        clip_norm: `trainer.clip_norm`, for a model that clips gradients itself.
    """
    model, trainer = module.model, module.trainer
    see, clip = (own_method(model, name) for name in BEFORE_STEP)
    base = L.Callback.on_before_optimizer_step
    watching = [
        candidate
        for candidate in trainer.callbacks
        if getattr(candidate.on_before_optimizer_step, "__func__", None) is not base
    ]
    if see is None and clip is None and not watching:
        return

    def before(optimizer: Optimizer, *_: object) -> None:
        for callback in watching:
            callback.on_before_optimizer_step(trainer, module, optimizer)
        if see is not None:
            see(optimizer)
        if clip is not None:
            clip(optimizer, clip_norm, "norm")

    for optimizer in trainer.optimizers:
        optimizer.register_step_pre_hook(before)


def clips(model: nn.Module) -> bool:
    """Returns whether the model clips gradients itself."""
    return own_method(model, "configure_gradient_clipping") is not None
