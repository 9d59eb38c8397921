"""Selection of the best model, with early stopping."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    import lightning as L


class ModelCopies(Protocol):
    """Saves and restores a model's parameters in memory. All methods are collective."""

    def joint(self) -> AbstractContextManager[None]:
        """Returns a context in which the model is the one that would be saved."""

    def snapshot(self) -> dict[str, Tensor]:
        """Copies parameters and buffers."""

    def put_back(self, snapshot: dict[str, Tensor]) -> None:
        """Restores a `snapshot`."""


_SAVED = ("best_epoch", "first_epoch", "waited", "parameters")  # attributes in checkpoints, besides `best`


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best model so far."""

    value: float  # the monitored metric
    epoch: int  # counted from 1
    state_dict: dict[str, Tensor]


class BestModel:
    """Stores the model with the best metric. The metric is equal on all ranks."""

    def __init__(
        self,
        name: str,
        patience: int | None = None,
        min_delta: float | None = None,
        *,
        lower_is_better: bool = False,
        latest: bool = False,
        on_better: Callable[[nn.Module], None] | None = None,
        section: str = "trainer.",
    ) -> None:
        """Stores the options.

        Args:
            name: The monitored metric.
            patience: Number of values in a row without improvement that end training.
                If None, training never ends early.
            min_delta: Minimum change of the metric that counts as an improvement. None:
                0.
            lower_is_better: Whether the lowest value is best.
            latest: Whether the latest of equal values is best, which `patience` does
                not count as an improvement. Default: the first one.
            on_better: Called with the model after each improvement, on every rank.
            section: Prefix of configuration keys in messages.
        """
        self.name, self.patience, self.min_delta, self.section = name, patience, min_delta or 0.0, section
        self.sign, self.latest = -1 if lower_is_better else 1, latest
        self.best, self.waited = -math.inf, 0  # value times the sign; values since it was first reached
        self.first_epoch = self.best_epoch = 0  # first and stored epoch with this value, from 1
        self.parameters: dict[str, Tensor] | None = None  # parameters of the best model
        self.stopped: str | None = None  # the reason for early stopping
        self._on_better = on_better

    def look(self, value: float, trainer: L.Trainer, module: Any) -> None:
        """Compares a value with the best one so far. Collective.

        Args:
            value: The metric, equal on all ranks.
            module: `ModelCopies`, with the `model` that `on_better` receives.
        """
        epoch, value = trainer.current_epoch + 1, self.sign * value
        is_better = value > self.best + self.min_delta
        if is_better or (self.latest and value == self.best):
            self.best, self.best_epoch = value, epoch
            self.first_epoch = epoch if is_better else self.first_epoch
            with module.joint():
                self.parameters = module.snapshot()
                if self._on_better is not None:
                    self._on_better(module.model)
        self.waited = 0 if is_better else self.waited + 1
        if self.patience is not None and self.waited >= self.patience:
            suffix = "" if self.best_epoch == self.first_epoch else f"; the saved model is of epoch {self.best_epoch}"
            self.stopped = (
                f"{self.section}monitor={self.name}: ended after epoch {epoch}, no later value was better than "
                f"{self.sign * self.best:.4g} of epoch {self.first_epoch} ({self.section}patience={self.patience}){suffix}"
            )
            if trainer.is_global_zero:
                print(self.stopped, file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, object]:
        """Returns the state for a checkpoint."""
        best = None if math.isinf(self.best) else self.best
        return {"name": self.name, "best": best, **{name: getattr(self, name) for name in _SAVED}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of a run with the same metric."""
        state = {"first_epoch": state["best_epoch"], **state}  # earlier checkpoints have none
        self.best = -math.inf if state["best"] is None else state["best"]
        for name in _SAVED:
            setattr(self, name, state[name])

    @property
    def best_so_far(self) -> Best | None:
        """The best model so far, or None before the first value."""
        if self.parameters is None:
            return None
        return Best(self.sign * self.best, self.best_epoch, self.parameters)

    def take_best(self, module: ModelCopies) -> None:
        """Restores the best model, if there is one."""
        if self.parameters is not None:
            module.put_back(self.parameters)
