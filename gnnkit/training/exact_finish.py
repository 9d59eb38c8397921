"""Exact steps at the end of approximate training."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gnnkit.training.updates import Updates
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

SHARE = 0.1  # of the epochs, with auto
PATIENCE = 1 / 3  # share of the epochs after which a loss that does not fall is acted upon
STANDS = 0.95  # ratio to the loss a tenth of the epochs earlier above which the loss does not fall
LEARNED = 0.1  # share of the loss before training below which it need not fall
POOR = 0.9  # share of the loss before training above which training starts again


class ExactFinish:
    """Decides from which epoch on the steps of approximate training are exact.

    Stale rows and gradients, and local steps, cost most at the end, where gradients are
    small. With `auto`, exact steps start earlier if the loss of the joint model on the
    training rows, which evaluations measure exactly, exceeds that before training, or
    does not fall after a third of the epochs. If nothing was learned until then, they
    start from the initial parameters, with a new optimiser state.
    """

    def __init__(self, epochs: int, share: float | Literal["auto"]) -> None:
        """Chooses the first exact epoch.

        Args:
            epochs: Number of epochs of the run.
            share: Share of the epochs that are exact, at the end. auto: a tenth, and
                more if the loss does not fall.
        """
        self.epochs, self.watches = epochs, share == "auto"
        self.first = epochs - int((SHARE if share == "auto" else share) * epochs)
        self.begun = False
        self.taken_back: str | None = None  # why exact steps started earlier
        self.restarts = False  # whether exact steps start from the initial parameters
        self.losses: list[list[float]] = []  # epoch and loss of the joint model, of the first step and evaluations
        self._first_step = torch.zeros(2, dtype=torch.float64)  # this rank's sum of losses and number of rows
        self.initial: dict[str, Tensor] = {}  # this rank's parameters before training, set by the module

    def begin_epoch(self, module: TrainingModule) -> None:
        """Makes the steps of strategy and synchronisation exact, once. Collective."""
        if self.watches and module.current_epoch == 1:
            self._add_first_loss(module)
        if self.begun or module.current_epoch < self.first:
            return
        self.begun = True
        module.settle()
        module.join()
        optimizer = module.trainer.optimizers[0]
        module.strategy.make_exact(module.current_epoch)
        if module.sync is not None:
            module.sync.make_exact(module, optimizer, restarts=self.restarts)
        if self.restarts:
            module.put_back(self.initial)
            optimizer.state.clear()
            setattr(module.trainer.strategy, "updates", Updates())  # noqa: B010 - DDP has none
        self.initial = {}

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

    def look(self, module: TrainingModule, losses: Tensor) -> None:
        """Starts the exact steps if the loss does not fall. Collective.

        Args:
            module: This rank's module, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        if not self.watches or self.begun or self.first == self.epochs:
            return
        comm, following = module.worker.comm, module.current_epoch + 1
        if module.current_epoch == 0:
            self._add_first_loss(module)
        sums = torch.tensor([float(losses.sum()), len(losses)], dtype=torch.float64)
        total, rows = comm.all_reduce(sums.to(comm.device)).tolist()
        latest = total / max(rows, 1)
        problem = self._problem(following, latest) if self.losses and following < self.first else None
        self.losses.append([following, latest])
        if problem is None:
            return
        self.first, self.taken_back = following, f"loss of {latest:.3g}, {problem}"
        self.restarts = not latest <= POOR * self.losses[0][1]
        if comm.rank == 0:
            start = " from the initial parameters" if self.restarts else ""
            print(
                f"epoch {following}: the joint model has a training {self.taken_back}: approximate steps are taken back, "
                f"and the remaining {self.epochs - following} epochs are exact{start} (trainer.exact_finish=auto)",
                file=sys.stderr,
                flush=True,
            )

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
        names = ("first", "epochs", "taken_back", "restarts", "losses")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Json) -> None:
        """Restores the state. The number of epochs may differ."""
        self.losses, self.taken_back, self.restarts = list(state["losses"]), state["taken_back"], state["restarts"]
        if state["epochs"] == self.epochs or self.taken_back:
            self.first = state["first"]
