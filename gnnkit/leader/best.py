"""The rule that keeps the best model, and ends training that no longer improves."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    import lightning as L


class ModelCopies(Protocol):
    """The copies of a model that a rule takes and puts back. Collective."""

    def joint(self) -> AbstractContextManager[None]:
        """Lends the model that would be saved now."""

    def snapshot(self) -> dict[str, Tensor]:
        """Copies parameters and buffers."""

    def put_back(self, snapshot: dict[str, Tensor]) -> None:
        """Restores a `snapshot`."""


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best model so far."""

    value: float  # of the monitored metric
    epoch: int  # from 1
    state_dict: dict[str, Tensor]


class BestModel:
    """Keeps the model of the best value. All ranks see the same values."""

    def __init__(
        self,
        name: str,
        patience: int | None = None,
        min_delta: float | None = None,
        *,
        lower_is_better: bool = False,
        on_better: Callable[[nn.Module], None] | None = None,
        section: str = "trainer.",
    ) -> None:
        """Keeps the rule.

        Args:
            name: The monitored metric.
            patience: Values in a row without improvement that end training. None:
                training never ends early.
            min_delta: Change of the value that counts as better. Default: 0.
            lower_is_better: Whether the least value is best.
            on_better: Called with the model at each better value, on every rank.
            section: Prefix of the keys in messages. Default: `trainer.`.
        """
        self.name, self.patience, self.min_delta, self.section = name, patience, min_delta or 0.0, section
        self.sign = -1 if lower_is_better else 1
        self.best, self.best_epoch, self.waited = -math.inf, 0, 0  # times the sign; epochs from 1; values since
        self.parameters: dict[str, Tensor] | None = None  # of the best model
        self.stopped: str | None = None  # why training ended
        self._on_better = on_better

    def look(self, value: float, trainer: L.Trainer, module: Any) -> None:
        """Compares a value with the best one before. Collective.

        Args:
            value: The metric, equal on all ranks.
            trainer: The trainer of this rank.
            module: `ModelCopies`, and the `model` for `on_better`.
        """
        epoch, value = trainer.current_epoch + 1, self.sign * value
        if value > self.best + self.min_delta:
            self.best, self.best_epoch, self.waited = value, epoch, 0
            with module.joint():
                self.parameters = module.snapshot()
                if self._on_better is not None:
                    self._on_better(module.model)
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            self.stopped = (
                f"{self.section}monitor={self.name}: ended after epoch {epoch}, no later value was better than "
                f"{self.sign * self.best:.4g} of epoch {self.best_epoch} ({self.section}patience={self.patience})"
            )
            if trainer.is_global_zero:
                print(self.stopped, file=sys.stderr, flush=True)

    @property
    def best_so_far(self) -> Best | None:
        """The best model so far. None before the first value."""
        if self.parameters is None:
            return None
        return Best(self.sign * self.best, self.best_epoch, self.parameters)

    def take_best(self, module: ModelCopies) -> None:
        """Restores the best model, if there is one."""
        if self.parameters is not None:
            module.put_back(self.parameters)
