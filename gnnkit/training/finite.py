"""Checks of the loss: that it is finite, and divided by the rows of all ranks.

All ranks make the same decision, before the optimiser steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.config.settings import OnNan
from gnnkit.errors import UserError
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.strategy import Batch, ExecutionStrategy
from gnnkit.sync import GradientSync
from gnnkit.training import resume
from gnnkit.training.module import TrainingModule, copy_model
from gnnkit.training.saving import Checkpoints
from gnnkit.training.step import own_method

_UNKNOWN, _INPUT, _LOSS, _BACKWARD, _MODULES = -1, 1, 2, 3, 4  # places, followed by the model's modules
_LATE = 1 << 40  # order of places after the forward pass


@dataclass(frozen=True, slots=True)
class _Place:
    """The place on one rank at which numbers became non-finite."""

    step: int = 0  # step of the run, counted from 1
    epoch: int = 0
    order: int = 0  # number of module calls before
    place: int = 0  # 0 if all numbers were finite

    def row(self) -> list[int]:
        """Returns the fields in order, for a tensor."""
        return [self.step, self.epoch, self.order, self.place]

    def describe(self, model: nn.Module) -> str:
        """Describes the place, such as the name of a module."""
        if self.place >= _MODULES:
            name = list(dict(model.named_modules()))[self.place - _MODULES]
            return f"first in the output of {name or 'the model'}"
        return {
            _UNKNOWN: "the layer is not looked for, as the ranks do not wait for each other",
            _INPUT: "the input rows are not finite",
            _LOSS: "first in the loss, the output of every layer is finite",
            _BACKWARD: "first in the backward pass, the loss is finite",
        }[self.place]


class Guard(Callback):
    """Prevents optimiser steps with non-finite gradients, on all ranks.

    - `stop` ends the run.
    - `skip` continues with the next step.
    - `rollback` restores parameters and optimiser state from the last checkpoint, and
    continues with the next step at half the learning rate. The fourth rollback ends the
    run instead.

    In a step in which ranks do not communicate, only the affected rank skips the step.
    `stop` and `rollback` are then applied at the next synchronisation. Ranks that do
    not wait for each other decide independently, and `rollback` ends the run.
    """

    def __init__(
        self,
        on_nan: OnNan = "stop",
        checkpoints: Checkpoints | None = None,
        resume_path: str | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """Stores the rule.

        Args:
            on_nan: stop, skip or rollback. Default: stop.
            checkpoints: The run's checkpoints. Default: none are saved.
            resume_path: The checkpoint from which the run was resumed. Default: none.
            quiet: Whether skipped steps are only counted, not printed.
        """
        self.on_nan, self.checkpoints, self.resume_path, self.quiet = on_nan, checkpoints, resume_path, quiet
        self.skipped_steps = self.rollbacks = 0
        self._pending: _Place | None = None  # of a step without synchronisation
        self._buffers: list[Tensor] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: nn.Module, batch: object, batch_idx: int) -> None:
        if self.on_nan == "skip":
            self._buffers = [buffer.clone() for buffer in module.buffers()]

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        together = module.sync is None or module.sync.lockstep
        alone = not module.strategy.steps.only_synchronise
        if together and alone and any(_flags(self._pending is not None, module.worker.comm)):
            self._decide(trainer, module, self._pending or _Place())

    def allows(self, trainer: L.Trainer, module: TrainingModule, is_finite: bool, *, lockstep: bool) -> bool:
        """Returns whether the optimiser may step. Collective in a synchronising step.

        Raises `UserError` if the run must end.

        Args:
            trainer: This rank's trainer.
            module: This rank's module.
            is_finite: Whether this rank's loss and gradient are finite.
            lockstep: Whether all ranks decide together. Otherwise, this rank decides
                independently.
        """
        comm = module.worker.comm
        if not lockstep:
            return is_finite or self._leave_out(trainer, module, [comm.rank])
        if not (module.batch.meets or module.strategy.steps.exchange):
            return is_finite or self._postpone(trainer, module)
        flags = _flags(
            not is_finite or self._pending is not None, comm, module.sync.all_reduce if module.sync else None
        )
        return self._together(trainer, module, flags)

    def allows_sum(self, trainer: L.Trainer, module: TrainingModule, is_finite: bool, total: Sequence[Tensor]) -> bool:
        """Returns whether the optimiser may step, if the ranks' gradients are summed.

        Collective if the sum is not finite. Raises `UserError` if the run must end.

        Args:
            trainer: This rank's trainer.
            module: This rank's module.
            is_finite: Whether this rank's loss and gradient were finite.
            total: The sums, equal on all ranks.
        """
        return are_finite(total) or self._together(
            trainer, module, _flags(not is_finite, module.worker.comm), all_bad=True
        )

    def _together(self, trainer: L.Trainer, module: TrainingModule, flags: list[bool], all_bad: bool = False) -> bool:
        """Decides from all ranks' flags.

        Args:
            trainer: This rank's trainer.
            module: This rank's module.
            flags: By rank, whether its loss or gradient is not finite.
            all_bad: Whether the sum of the gradients is not finite. Default: unknown.
        """
        if not (any(flags) or all_bad):
            return True
        if self.on_nan == "skip":
            return self._leave_out(trainer, module, [rank for rank, flag in enumerate(flags) if flag])
        place = self._place(trainer, module, flags[module.worker.comm.rank])
        self._decide(trainer, module, self._pending or place)
        return False

    def _leave_out(self, trainer: L.Trainer, module: TrainingModule, ranks: list[int]) -> bool:
        """Skips this step. Returns False.

        Raises `UserError` if the rule is not `skip` and ranks step independently.
        """
        if self.on_nan != "skip":
            # A second forward pass would exchange rows with ranks in other steps.
            place = _Place(trainer.global_step + 1, trainer.current_epoch, _LATE, _UNKNOWN)
            raise UserError(self._message(module, [(ranks[0], place)]))
        self.skipped_steps += 1
        for buffer, before in zip(module.buffers(), self._buffers, strict=True):
            buffer.copy_(before)
        if self.skipped_steps <= 5 and not self.quiet:
            step = trainer.global_step + 1
            _tell(module, f"trainer.on_nan=skip: step {step} is left out, not finite on {_names(ranks)}")
        return False

    def _postpone(self, trainer: L.Trainer, module: TrainingModule) -> bool:
        """Skips a step on this rank only, and records it. Returns False."""
        if self.on_nan == "skip":
            return self._leave_out(trainer, module, [module.worker.comm.rank])
        self._pending = self._pending or self._place(trainer, module, True)
        return False

    def _place(self, trainer: L.Trainer, module: TrainingModule, bad: bool) -> _Place:
        """Runs a second forward pass to locate non-finite numbers.

        Collective in a synchronising step, also for ranks whose numbers are finite.
        """
        order, place = _first_not_finite(module, module.batch.again())
        if not bad:
            order = place = 0
        elif not place:
            order, place = _LATE, _BACKWARD if bool(torch.isfinite(module.local_loss)) else _LOSS
        return _Place(trainer.global_step + 1, trainer.current_epoch, order, place)

    def _decide(self, trainer: L.Trainer, module: TrainingModule, own_place: _Place) -> None:
        """Rolls back, or raises `UserError`. Collective."""
        self._pending = None
        if self.checkpoints is not None:
            self.checkpoints.wait()  # on the leader, and thus before any rank reads
        comm = module.worker.comm
        places = [_Place(*row) for row in comm.all_gather(own_place.row()).tolist()]
        bad_places = [(rank, place) for rank, place in enumerate(places) if place.place]
        last: str = comm.share(str(self.last or ""))  # hosts that see different folders make the same decision
        if self.on_nan != "rollback" or self.rollbacks == 3 or not last:
            raise UserError(self._message(module, bad_places or list(enumerate(places))))
        self.rollbacks += 1
        _roll_back(resume.load(last, comm.rank), trainer, module)
        ranks = _names([rank for rank, _ in bad_places])
        _tell(module, f"trainer.on_nan=rollback: not finite on {ranks}, back to {last} at half the learning rate")

    @property
    def last(self) -> Path | None:
        """The last checkpoint, which is finite."""
        if self.checkpoints is not None and self.checkpoints.path.exists():
            return self.checkpoints.path
        return None if self.resume_path is None else Path(self.resume_path)

    def _message(self, module: TrainingModule, bad_places: list[tuple[int, _Place]]) -> str:
        _, first = min(bad_places, key=lambda item: (item[1].step, item[1].order))
        cause = first.describe(module.model) if first.place else "their sum overflows"
        suffix = f" after {self.rollbacks} rollbacks" if self.rollbacks else ""
        last_checkpoint = (
            f"the last finite checkpoint is {self.last}" if self.last else "no checkpoint was saved before"
        )
        return (
            f"trainer.on_nan={self.on_nan}{suffix}: loss or gradient of step {first.step} (epoch {first.epoch}) is not "
            f"finite on {_names([rank for rank, _ in bad_places])}: {cause}. The step was not taken, {last_checkpoint}. "
            "Lower trainer.lr, or see trainer.on_nan"
        )


def decide_together(sync: GradientSync, strategy: ExecutionStrategy) -> bool:
    """Returns whether all ranks decide together about a non-finite loss.

    They do if all ranks meet in each synchronising step, in the synchronisation or in
    the exchange of rows.

    Args:
        sync: The gradient synchronisation.
        strategy: The execution strategy.
    """
    return sync.lockstep and (sync.collective or strategy.reads.all_edges or strategy.steps.exchange)


def are_finite(gradients: Sequence[Tensor]) -> bool:
    """Returns whether all numbers are finite. If so, waits for a GPU only once."""
    if not gradients:
        return True
    total = float(torch.stack([gradient.detach().sum().double() for gradient in gradients]).sum())
    return math.isfinite(total) or all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def _flags(flag: bool, comm: Communicator, add_up: Callable[[Tensor], Tensor] | None = None) -> list[bool]:
    """Returns every rank's flag. Collective.

    Args:
        flag: This rank's flag.
        comm: Connects the workers.
        add_up: Sums a tensor over the workers. Default: `comm.all_reduce`.
    """
    if comm.world_size == 1:
        return [flag]
    flags = torch.zeros(comm.world_size, device=comm.device)
    flags[comm.rank] = flag
    return [bool(value) for value in (add_up or comm.all_reduce)(flags).tolist()]


def _first_not_finite(module: TrainingModule, batch: Batch) -> tuple[int, int]:
    """Returns the first place with non-finite numbers. Collective.

    Returns the number of module calls before it, and the place. Both are 0 if all
    numbers are finite.
    """
    calls: list[int] = []  # by call: the place if its output is not finite, else 0

    def watch(place: int) -> Any:
        return lambda _module, _inputs, output: calls.append(0 if _is_finite(output) else place)

    model = copy_model(module) or module.model
    modules = list(model.modules())
    hooks = [module_.register_forward_hook(watch(_MODULES + i)) for i, module_ in enumerate(modules)]
    try:
        with torch.no_grad(), module.strategy.tally.paused(), batch.precision():
            model(batch.x, batch.adjacencies)
    finally:
        for hook in hooks:
            hook.remove()
    if not bool(batch.x.isfinite().all()):  # after the pass, because other ranks wait for this rank's rows
        return 0, _INPUT
    return next(((order, place) for order, place in enumerate(calls, 1) if place), (0, 0))


def _is_finite(output: object) -> bool:
    if isinstance(output, Tensor):
        return not output.is_floating_point() or bool(torch.isfinite(output).all())
    return all(_is_finite(item) for item in output) if isinstance(output, list | tuple) else True


def _roll_back(saved_state: resume.SavedState, trainer: L.Trainer, module: TrainingModule) -> None:
    """Restores parameters, optimiser state and strategy state.

    Schedules continue, at half the learning rate.
    """
    rank_state = resume.own_state(saved_state, module)
    module.load_state_dict(rank_state["state_dict"])
    for optimizer, state in zip(trainer.optimizers, rank_state["optimizer_states"], strict=True):
        rates: list[dict[str, object]] = [
            {key: group[key] / 2 for key in ("lr", "initial_lr") if key in group} for group in optimizer.param_groups
        ]
        optimizer.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group.update(rate)
    for config in trainer.lr_scheduler_configs:
        scheduler: Any = config.scheduler
        if hasattr(scheduler, "base_lrs"):
            scheduler.base_lrs = [rate / 2 for rate in scheduler.base_lrs]
    resume.restore_steps(rank_state, trainer, module)


def _tell(module: TrainingModule, text: str) -> None:
    if module.worker.comm.rank == 0 or not module.batch.meets:
        print(text, file=sys.stderr, flush=True)


def _names(ranks: list[int]) -> str:
    """Formats rank numbers for a message."""
    if not ranks:
        return "no rank alone"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_UNCHECKED = (
    "model={}: cannot be copied, so training_step was not checked: on several workers it must return a sum over "
    "batch.rows divided by batch.total"
)
_TOLERANCE = 1e-3  # relative. A mean is wrong by half


class LossCheck(Callback):
    """Checks that the loss of `training_step` is a sum divided by `batch.total`.

    The ranks' gradients are summed, so a mean over each rank's rows would be too large
    by the number of ranks. Before the first step, a copy of the model computes the
    batch's loss in evaluation mode, and again with twice the total. A correct loss
    halves. Losses with random draws are not checked.
    """

    def __init__(self) -> None:
        self._is_checked = False

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        strategy = module.strategy
        serves_one_pass = strategy.steps.drift or strategy.steps.keep_state
        brings_step = own_method(module.model, "training_step") is not None
        if self._is_checked or not brings_step or module.worker.comm.world_size == 1 or serves_one_pass:
            return
        self._is_checked = True
        model = copy_model(module)
        if not _anywhere(model is None, module):
            assert model is not None
            with _quiet(module, model):
                _check(module, model, batch, batch_idx)
        elif trainer.is_global_zero:
            print(_UNCHECKED.format(type(module.model).__name__), file=sys.stderr, flush=True)


def _check(module: TrainingModule, model: nn.Module, batch: Batch, index: int) -> None:
    """Raises `UserError` on all ranks if any rank's loss is wrong. Collective."""
    again, step = module.filled(batch).again(), own_method(model, "training_step")
    assert step is not None

    def loss(total: int) -> float:
        return float(step(replace(again, total=total), index))

    once, twice = loss(batch.total), loss(2 * batch.total)
    suspect = abs(2 * twice - once) > _TOLERANCE * abs(once)
    if not _anywhere(suspect, module):
        return
    is_repeatable = abs(loss(batch.total) - once) <= _TOLERANCE * abs(once)
    if _anywhere(suspect and is_repeatable, module):
        if isinstance(module.model, EdgeIndexModel):
            raise UserError(
                f"model={type(module.model).__name__}: training_step adds to the mean over the batch's rows, and each "
                "worker would add it again: leave a penalty to trainer.weight_decay or to the optimiser, or use workers=1"
            )
        raise UserError(
            f"model={type(module.model).__name__}: training_step must return a sum over batch.rows divided by "
            "batch.total, because gradients of ranks are added up, but the loss does not halve when batch.total "
            'doubles: use reduction="sum" and divide by batch.total'
        )


def _anywhere(flag: bool, module: TrainingModule) -> bool:
    """Returns whether the flag is set on any rank. Collective."""
    flags = torch.tensor([float(flag)], device=module.worker.device)
    return bool(module.worker.comm.all_reduce(flags) > 0)


@contextmanager
def _quiet(module: TrainingModule, model: nn.Module) -> Iterator[None]:
    """Sets a copy of the model to evaluation mode within the context.

    Logging, word counts and gradients are disabled, and torch's random state is
    restored.
    """
    device = module.worker.device
    module.user_log.muted = True
    model.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            module.strategy.tally.paused(),
        ):
            yield
    finally:
        module.user_log.muted = False
