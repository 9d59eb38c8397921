"""Exact steps at the end of approximate training."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm.average import from_vector, to_vector, weighted_mean
from gnnkit.task.base import Task
from gnnkit.training import chance
from gnnkit.training.gradient_check import GradientCheck
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

SHARE = 0.1  # of the epochs, with auto
PATIENCE = 1 / 3  # share of the epochs after which a loss that does not fall is acted upon
STANDS = 0.95  # ratio to the loss a tenth of the epochs earlier above which the loss does not fall
LEARNED = 0.1  # share of the loss before training below which it need not fall
UNSKILLED, MIN_EPOCHS = 0.2, 20  # share and number of epochs after which a model no better than chance is acted upon
POOR = 0.9  # share of the loss before training above which training starts again
LITTLE = 0.25  # skill up to which training starts again in the first half of the epochs
FELL = 0.95  # ratio to the best validation metric below which it has fallen
NOISE = 2.0  # standard errors by which a validation metric has fallen
LONG, SIMILAR = 0.3, 0.9  # share of the epochs, with auto, if the gradients' mean cosine is below `SIMILAR`


class ExactFinish:
    """Decides from which epoch on the steps of approximate training are exact.

    Stale rows and gradients, and local steps, cost most at the end, where gradients are
    small. The joint model has a problem if its loss on the training rows, which
    evaluations measure exactly, exceeds that before training, or does not fall after a
    third of the epochs, if it is no better than chance after a fifth, or if its
    validation metric falls below earlier ones. With `auto`, exact steps then start at
    once. If little was learned until then, they start from the initial parameters, with
    a new optimiser state. With a fixed share, the problem is only reported.

    With `auto`, gradients that differ from the exact ones make the finish longer. It
    has to repair more, and the optimiser's moments include the gradients' noise.
    """

    def __init__(
        self, epochs: int, share: float | Literal["auto"], unmeasured: str | None = None, num_validated: int = 0
    ) -> None:
        """Chooses the first exact epoch.

        Args:
            epochs: Number of epochs of the run.
            share: Share of the epochs that are exact, at the end. auto: a tenth, and
                more if approximate steps do harm.
            unmeasured: Why gradients are not compared with exact ones. None: they are.
            num_validated: Number of validation nodes or edges.
        """
        self.epochs, self.share, self.num_validated = epochs, share, num_validated
        self.first = epochs - int((SHARE if share == "auto" else share) * epochs)
        self.begun = False
        self.check = GradientCheck(unmeasured)
        self.problem: str | None = None  # the first one
        self.restarts = False  # whether exact steps start from the initial parameters
        self.losses: list[list[float]] = []  # epoch and loss of the joint model, of the first step and evaluations
        self.best: list[float] = []  # epoch and value of the best validation metric
        self._first_step = torch.zeros(2, dtype=torch.float64)  # this rank's sum of losses and number of rows
        self.initial: dict[str, Tensor] = {}  # this rank's parameters before training, set by the module

    @property
    def acts(self) -> bool:
        """Whether a problem starts the exact steps."""
        return self.share == "auto" and self.first < self.epochs

    @property
    def taken_back(self) -> bool:
        """Whether a problem has started the exact steps."""
        return self.acts and self.problem is not None

    def begin_epoch(self, module: TrainingModule) -> None:
        """Makes the steps of strategy and synchronisation exact, once. Collective."""
        if module.current_epoch == 1:
            self._add_first_loss(module)
        if self.begun or module.current_epoch >= self.epochs or not self._is_time(module):
            return
        self.begun = True
        module.settle()
        module.join()
        optimizer = module.trainer.optimizers[0]
        if module.drifts:
            _average_moments(optimizer, module)
        if (updates := getattr(module.trainer.strategy, "updates", None)) is not None:  # DDP has none
            updates.restart(corrects=not self.restarts)
        if module.strategy.finishes == "always" or self.share != "auto":
            module.strategy.make_exact(module.current_epoch)
        if module.sync is not None:
            module.sync.make_exact(module, optimizer, restarts=self.restarts)
        if self.restarts:
            module.put_back(self.initial)
            optimizer.state.clear()
        self.initial = {}

    def _is_time(self, module: TrainingModule) -> bool:
        """Returns whether this epoch is the first exact one. Collective."""
        epoch = module.current_epoch
        is_late = self.acts and self.epochs - int(LONG * self.epochs) <= epoch < self.first
        if is_late and module.worker.comm.share(self.check.mean_cosine < SIMILAR):
            self.first = epoch
        return epoch >= self.first

    def end_step(self, module: TrainingModule) -> None:
        """Stores the loss of the first step."""
        if module.current_epoch == 0 and not self._first_step.any():
            rows = len(module.batch.rows)
            self._first_step = torch.tensor([float(module.local_loss) * module.batch.total, rows], dtype=torch.float64)

    def _add_first_loss(self, module: TrainingModule) -> None:
        """Adds the loss before training, unless it is unknown. Collective."""
        total, rows = module.worker.comm.all_reduce(self._first_step.to(module.worker.device)).tolist()
        if not self.losses and rows:
            self.losses.append([0, total / rows])

    def look(
        self, module: TrainingModule, outputs: Tensor, losses: Tensor | None, measured: Mapping[str, float]
    ) -> None:
        """Starts the exact steps if the joint model has a problem. Collective.

        Args:
            module: This rank's module, after a step.
            outputs: [num_owned, width] the joint model's outputs for this rank's nodes.
            losses: [k] its losses of this rank's training rows. None: unknown.
            measured: Its metrics, equal on all ranks.
        """
        if self.begun or self.problem is not None:
            return
        task, worker = module.task, module.worker
        following, skill, problem = module.current_epoch + 1, 1.0, None
        if losses is not None:
            problem = self._look_at_loss(module, losses)
        if following >= self.first:
            return
        if math.isfinite(latest := measured.get(task.progress, math.nan)):
            skill = chance.skill(task, measured, task.chance(outputs, worker))
            problem = problem or self._metric_problem(task, following, latest, skill)
        if problem is not None:
            is_new = len(self.losses) > 1 and not self.losses[-1][1] <= POOR * self.losses[0][1]
            self.restarts = self.acts and (is_new or (skill <= LITTLE and 2 * following <= self.epochs))
            self._report(module, problem)

    def _look_at_loss(self, module: TrainingModule, losses: Tensor) -> str | None:
        """Adds the loss, and returns a problem. Collective.

        Args:
            module: This rank's module, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        comm, following = module.worker.comm, module.current_epoch + 1
        if module.current_epoch == 0:
            self._add_first_loss(module)
        sums = torch.tensor([float(losses.sum()), len(losses)], dtype=torch.float64)
        total, rows = comm.all_reduce(sums.to(comm.device)).tolist()
        latest = total / max(rows, 1)
        problem = self._problem(following, latest) if self.losses else None
        self.losses.append([following, latest])
        return None if problem is None else f"training loss of {latest:.3g}, {problem}"

    def _metric_problem(self, task: Task, epoch: int, latest: float, skill: float) -> str | None:
        """Returns why the validation metric is a problem, or None."""
        name, sign = task.progress, -1 if task.is_lower_better(task.progress) else 1
        if epoch >= max(UNSKILLED * self.epochs, MIN_EPOCHS) and skill <= task.least_skill:
            return f"{name} of {latest:.4g}, hardly better than {task.without_learning}"
        if not self.best or sign * latest >= sign * self.best[1]:
            self.best = [epoch, latest]
        at, best = self.best
        noise = NOISE * math.sqrt(max(best * (1 - best), 0) / max(self.num_validated, 1))  # of a mean within [0, 1]
        has_fallen = abs(best - latest) > max((1 - FELL) * max(abs(best), abs(latest)), noise)
        return f"{name} of {latest:.4g}, after {best:.4g} in epoch {at:.0f}" if has_fallen else None

    def _report(self, module: TrainingModule, problem: str) -> None:
        """Stores a problem, starts the exact steps if they may, and prints a line."""
        following, self.problem = module.current_epoch + 1, problem
        outcome = f"trainer.exact_finish={self.share} keeps the approximate steps, which auto would take back"
        if self.acts:
            self.first = following
            start = " from the initial parameters" if self.restarts else ""
            outcome = (
                f"approximate steps are taken back, and the remaining {self.epochs - following} epochs are exact{start} "
                f"(trainer.exact_finish=auto; {SHARE} would keep them)"
            )
        if module.worker.comm.rank == 0:
            print(f"epoch {following}: the joint model has a {problem}: {outcome}", file=sys.stderr, flush=True)

    def _problem(self, epoch: int, latest: float) -> str | None:
        """Returns why approximate steps are taken back, or None."""
        before = self.losses[0][1]
        if not latest <= before:
            return f"above {before:.3g} before training"
        earlier = min((loss for at, loss in self.losses if at <= epoch - SHARE * self.epochs), default=math.inf)
        if epoch >= PATIENCE * self.epochs and latest > max(STANDS * earlier, LEARNED * before):
            return f"which does not fall: it was {earlier:.3g} earlier"
        return None

    def state_dict(self) -> Json:
        """Returns the state for a checkpoint."""
        names = ("first", "begun", "epochs", "problem", "restarts", "losses", "best")
        return {name: getattr(self, name) for name in names} | {"gradients": self.check.measured}

    def load_state_dict(self, state: Json) -> None:
        """Restores the state. The number of epochs may differ."""
        self.losses, self.problem = list(state["losses"]), state["problem"]
        self.restarts = state["restarts"] and not state["begun"]
        self.check.measured, self.best = list(state["gradients"]), list(state["best"])
        if self.acts and (state["epochs"] == self.epochs or self.problem is not None):
            self.first = state["first"]


def _average_moments(optimizer: Optimizer, module: TrainingModule) -> None:
    """Replaces the optimiser's moments by the ranks' mean. Collective.

    If some ranks have never stepped, and so have no moments, all ranks drop theirs,
    unless only the leader steps.
    """
    comm = module.worker.comm
    named = [item for state in optimizer.state.values() for item in state.items()]
    moments = [value for name, value in named if isinstance(value, Tensor) and name != "step"]
    num_ranks = int(comm.all_reduce(torch.tensor([len(moments) > 0], dtype=torch.int64, device=comm.device)))
    if num_ranks == comm.world_size:
        from_vector(weighted_mean(to_vector(moments), comm, 1.0), moments)
    elif module.sync is not None and module.sync.drifts:
        optimizer.state.clear()
