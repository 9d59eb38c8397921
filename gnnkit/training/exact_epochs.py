"""Transitions between exact and approximate epochs, whose gradients are compared."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm import Communicator
from gnnkit.comm.average import average_parameters, from_vector, to_vector, weighted_mean
from gnnkit.strategy import Batch
from gnnkit.strategy.phases import Phases
from gnnkit.sync.base import trainable
from gnnkit.task.base import HEAD
from gnnkit.training.step import loss_of
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

PARTS = ("start", "approximate", "finish")  # of a run


TIMES = 10  # maximum number of comparisons per run


class GradientCheck:
    """Measures how far the workers' gradients are from the exact one.

    At evaluations, at most ten times, a copy of the model repeats a step's forward and
    backward pass with current rows of all nodes. If workers hold different parameters,
    the copy has their mean, and is compared with the gradients of a superstep's last
    local step. Learned rows are not part of the gradients.
    """

    def __init__(self, reason: str | None = None) -> None:
        """Stores the reason why gradients are not compared, or None."""
        self.unmeasured = reason
        self.measured: list[list[float]] = []  # epoch from 1, cosine, and norm over that of the exact gradient

    def look(self, module: TrainingModule, gradients: Sequence[Tensor], *, is_summed: bool) -> None:
        """Compares gradients, if it is time, without counting messages. Collective.

        Args:
            module: This rank's module, after a step's backward pass.
            gradients: This rank's gradients by parameter.
            is_summed: Whether they are sums over the ranks.
        """
        epoch, trainer = module.current_epoch + 1, module.trainer
        every = trainer.check_val_every_n_epoch or 1
        every *= max(math.ceil((trainer.max_epochs or 0) / (TIMES * every)), 1)
        due = (int(self.measured[-1][0] if self.measured else 0) // every + 1) * every
        if self.unmeasured is not None or epoch < due or module.batch.update in ("own", "conclude", "correct"):
            return
        with module.strategy.tally.paused():
            self._compare(module, gradients, epoch, is_summed=is_summed)

    def _compare(self, module: TrainingModule, gradients: Sequence[Tensor], epoch: int, *, is_summed: bool) -> None:
        """Compares gradients with the gradients of an exact step. Collective."""
        batch = module.strategy.exact_batch(module.current_epoch)
        exact = None if batch is None else self._gradient(module, batch)
        if batch is None or exact is None:
            self.unmeasured = "there is no exact step to compare with, or the model cannot be copied"
            return
        gradient = to_vector(gradients).double() * (module.batch.total / max(batch.total, 1))
        gradient = gradient if is_summed else module.worker.comm.all_reduce(gradient)
        cosine, ratio = gradient @ exact / (gradient.norm() * exact.norm()), gradient.norm() / exact.norm()
        if math.isfinite(cosine) and math.isfinite(ratio):
            self.measured.append([epoch, float(cosine), float(ratio)])

    @staticmethod
    def _gradient(module: TrainingModule, batch: Batch) -> Tensor | None:  # [num_parameters] float64
        """Computes the joint model's gradient over all ranks. Collective.

        Returns None if the model cannot be copied.
        """
        from gnnkit.training.module import copy_model

        strategy, sync, comm = module.strategy, module.sync, module.worker.comm
        if (model := copy_model(module)) is None:
            return None
        if strategy.steps.drift or (sync is not None and sync.drifts):
            average_parameters(model, comm, module.worker.weight)
        task = copy.copy(module.task)
        if (head := getattr(model, HEAD, None)) is not None:
            vars(task)["head"] = lambda: head  # of the copied model
        # Uses the learned rows or label inputs of the current step.
        batch = module.filled(batch) if module.embedding is None else replace(batch, x=module.batch.x)
        loss = loss_of(model, task, batch, 0)
        local = torch.autograd.grad(loss, trainable(model), allow_unused=True, materialize_grads=True)
        return comm.all_reduce(to_vector(local)).double()


class ExactEpochs:
    """Applies a run's schedule to its synchronisation, at the start of epochs.

    The strategy reads the schedule itself. The optimiser keeps its state.
    """

    def __init__(self, phases: Phases, reason: str | None = None, *, exact: bool = True) -> None:
        """Stores the schedule.

        Args:
            phases: The schedule.
            reason: Why gradients are not compared with exact ones. If None, they
                are.
            exact: Whether the steps of exact epochs are exact. They are only
                synchronous if the strategy is approximate in all epochs.
        """
        self.phases, self.check, self.kind = phases, GradientCheck(reason), "exact" if exact else "synchronous"
        self.names: list[str] = []  # the part of each epoch so far, or synchronous
        self.exact = phases.is_exact(0)  # whether the steps of the last begun epoch are exact
        self._sync_is_exact = False  # whether the synchronisation was told so

    def begin_epoch(self, module: TrainingModule) -> None:
        """Makes the steps of an epoch exact or approximate. Collective."""
        exact, part = self.phases.is_exact(module.current_epoch), "finish" if "approximate" in self.names else "start"
        part = self.kind if self.kind == "synchronous" else part
        if module.current_epoch < (module.trainer.max_epochs or 0):  # a resumed run may have completed all
            self.names[module.current_epoch :] = [part if exact else "approximate"]
        if exact and not self.exact:
            _join(module)
        self.exact = exact
        if module.sync is not None and exact != self._sync_is_exact:
            module.sync.set_exact(module, exact)
            self._sync_is_exact = exact

    def describe(self, epochs: int, begin: int) -> str:
        """Describes a run's schedule from epoch `begin` on."""
        return self.phases.describe(epochs, begin=begin, exact=self.kind)

    def parts(self, epochs: int) -> dict[str, set[int]]:
        """Returns the epochs (from 0) that have run in each part.

        Synchronous epochs, if there are any, are also approximate.

        Args:
            epochs: Number of completed epochs.
        """
        parts: dict[str, set[int]] = {part: set() for part in PARTS}
        for epoch, part in enumerate(self.names[:epochs]):
            parts.setdefault(part, set()).add(epoch)
        parts["approximate"] |= parts.get("synchronous", set())
        return parts

    def state_dict(self) -> Json:
        """Returns the state for a checkpoint."""
        return {"exact": self.exact, "gradients": self.check.measured, "names": self.names}

    def load_state_dict(self, state: Json) -> None:
        """Restores the state. The schedule may be another one."""
        self.exact, self.names, self.check.measured = state["exact"], [*state.get("names", ())], [*state["gradients"]]


def _join(module: TrainingModule) -> None:
    """Gives all workers one model and one optimiser state. Collective."""
    module.settle()
    module.join()
    if (updates := getattr(module.trainer.strategy, "updates", None)) is not None:  # DDP has none
        updates.forget()
    if module.sync is not None and module.sync.drifts:
        _average_moments(module.trainer.optimizers[0], module.worker.comm)


def _average_moments(optimizer: Optimizer, comm: Communicator) -> None:
    """Replaces the optimiser's moments by the ranks' mean. Collective.

    If some ranks have never stepped, and so have no moments, all ranks drop theirs.
    """
    items = [item for state in optimizer.state.values() for item in state.items()]
    moments = [value for name, value in items if isinstance(value, Tensor) and name != "step"]
    if int(comm.all_reduce(torch.tensor([len(moments) > 0], dtype=torch.int64, device=comm.device))) < comm.world_size:
        optimizer.state.clear()
    else:
        from_vector(weighted_mean(to_vector(moments), comm, 1.0), moments)
