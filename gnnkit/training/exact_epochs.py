"""Transitions between exact and approximate epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm import Communicator
from gnnkit.comm.agreement import from_vector, to_vector, weighted_mean
from gnnkit.strategy.base import Phases
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

PARTS = ("start", "approximate", "finish")  # of a run


class ExactEpochs:
    """Applies a run's schedule to its synchronisation, at the start of epochs.

    The strategy reads the schedule itself. The optimiser keeps its state.
    """

    def __init__(self, phases: Phases, *, exact: bool = True) -> None:
        """Stores the schedule.

        Args:
            phases: The schedule.
            exact: Whether the steps of exact epochs are exact. They are only
                synchronous if the strategy is approximate in all epochs.
        """
        self.phases, self.kind = phases, "exact" if exact else "synchronous"
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
        return {"exact": self.exact, "names": self.names}

    def load_state_dict(self, state: Json) -> None:
        """Restores the state. The schedule may be another one."""
        self.exact, self.names = state["exact"], [*state.get("names", ())]


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
