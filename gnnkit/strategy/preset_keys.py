"""The keys of `preset_workload`, and their valid combinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnnkit.errors import UserError
from gnnkit.utils.ranges import MAX_COUNT, one_of, switch, whole

_CHOICES: dict[str, tuple[str, ...]] = {  # the default comes first
    "halo": ("one_hop", "none"),
    "degrees": ("global", "local"),
    "average": ("gradients", "parameters"),
}
_EXCHANGED = {  # keys whose default is required if rows are exchanged, and the reason
    "halo": "the in-neighbours' rows are the ones that move",
    "degrees": "no edge is dropped",
}


@dataclass(slots=True)
class PresetKeys:
    """The strategy's keys, checked and completed with defaults by the constructor.

    `PresetWorkload` documents them.
    """

    halo: Any
    degrees: Any
    sync_every: Any
    average: Any
    control_variates: Any
    exchange_every: Any
    num_steps: int  # number of steps per epoch

    def __post_init__(self) -> None:
        if self.halo == "cluster":
            raise UserError("strategy.halo=cluster was removed: use strategy=cluster (pip install gnnkit-preset)")
        for name, values in _CHOICES.items():
            value = values[0] if getattr(self, name) is None else getattr(self, name)
            setattr(self, name, one_of(f"strategy.{name}", value, values))
        if self.exchange_every is not None:
            whole("strategy.exchange_every", self.exchange_every, 1, MAX_COUNT)
            self._check_exchanged()
        self.sync_every = "epoch" if self.sync_every is None else self.sync_every
        if self.sync_every != "epoch":
            whole("strategy.sync_every", self.sync_every, 1, MAX_COUNT, what="epoch or a whole number")
        self._settle_control_variates()

    @property
    def is_exact(self) -> bool:
        """Whether steps equal one worker's, given an exact exchange."""
        return self.exchange_every == 1 and self.average == "gradients" and self.period == 1

    @property
    def approximation(self) -> tuple[str, str]:
        """The key that makes steps approximate, and the reason."""
        without, alone = self.halo == "none", self.average == "parameters"
        cut, drift = "edges between shares are missing", "workers step alone between two averages"
        choices = (
            (alone and not self.control_variates, "control_variates=false", drift),
            (alone and without, "average=parameters", f"{cut} and {drift}"),
            (alone, "average=parameters", drift),
            (without, "halo=none", cut),
            (
                (self.exchange_every or 1) > 1,
                f"exchange_every={self.exchange_every}",
                "rows of other workers are stale",
            ),
            (True, f"halo={self.halo}", cut),
        )
        key, reason = next(choice for holds, *choice in choices if holds)
        return f"strategy.{key}", reason

    @property
    def period(self) -> int:
        """Number of steps between synchronisations."""
        return self.num_steps if self.sync_every == "epoch" else int(self.sync_every)

    def _settle_control_variates(self) -> None:
        """Uses control variates by default. Raises `UserError` if they have no use."""
        if self.control_variates is not None:
            value = switch("strategy.control_variates", self.control_variates, what="true, false or null")
            if self.average != "parameters":
                raise UserError(
                    f"strategy.control_variates={str(value).lower()} is read with strategy.average=parameters only: "
                    "leave the key out"
                )
        self.control_variates = self.average == "parameters" and self.control_variates is not False

    def _check_exchanged(self) -> None:
        """Raises `UserError` for keys that contradict an exchange of rows."""
        for key, reason in _EXCHANGED.items():
            if getattr(self, key) != (default := _CHOICES[key][0]):
                raise UserError(
                    f"strategy.{key}={getattr(self, key)} does not go with strategy.exchange_every: {reason}, "
                    f"choose strategy.{key}={default}"
                )
