"""The configured way of rows between ranks in training."""

from __future__ import annotations

from typing import Any

from gnnkit.engine import Adaptive, Bfloat16, Codec, LastReceived, Packed, Pipelined, Sampled, Schedule
from gnnkit.errors import UserError
from gnnkit.ranges import MAX_COUNT, one_of, real, share, whole

_LATER = ("pipelined", "sampled", "adaptive")  # schedules: rows come later, in part, or not at all
EXCHANGES = ("exact", "quantized", *_LATER, *(f"quantized+{name}" for name in _LATER))
_READ_BY = {
    "bits": "quantized",
    "staleness": "pipelined",
    "smoothing": "pipelined",
    "keep": "sampled",
    "variation": "adaptive",
    "max_age": "adaptive",
}


class RowExchange:
    """One value of `strategy.exchange` with its options."""

    def __init__(self, name: str, options: dict[str, Any], *, drifts: bool) -> None:
        """Checks the choices. Refuses an option that the exchange does not read.

        Args:
            name: One of `EXCHANGES`.
            options: The keys of `_READ_BY`. None: not given.
            drifts: Whether there are epochs without exchange.
        """
        self.name: str = one_of("strategy.exchange", name, EXCHANGES)
        self._drifts, self._parts = drifts, name.split("+")
        self._check(options)
        given = {"bits": 8, "staleness": 1, "smoothing": 0.0, "keep": 0.1, "variation": 0.05, "max_age": 10}
        given |= {key: value for key, value in options.items() if value is not None}
        self._bits: int = one_of("strategy.bits", given["bits"], (32, 16, 8, 4, 2))
        self._staleness = whole("strategy.staleness", given["staleness"], 0, MAX_COUNT)
        self._smoothing = share("strategy.smoothing", given["smoothing"])
        self._keep = real("strategy.keep", given["keep"], 0, 1)
        self._variation = real("strategy.variation", given["variation"], 0)
        self._max_age = whole("strategy.max_age", given["max_age"], 1, MAX_COUNT)

    def _check(self, options: dict[str, Any]) -> None:
        for key, value in options.items():
            if value is not None and _READ_BY[key] not in self._parts:
                raise UserError(
                    f"strategy.{key}={value} must be null: only strategy.exchange={_READ_BY[key]} reads the key, and "
                    f"strategy.exchange={self.name} is chosen"
                )
        if self._drifts and self.needs_in_edges:
            raise UserError(
                f"strategy.local_iterations above 1 goes with strategy.exchange=exact and quantized, not with "
                f"{self.name}: a local iteration exchanges nothing, and {self._later} rows follow from the exchange "
                "of every epoch"
            )

    @property
    def _later(self) -> str | None:
        return next((part for part in self._parts if part in _LATER), None)

    @property
    def exact(self) -> bool:
        """Whether all rows come at once, to the bit."""
        return self.name == "exact"

    @property
    def needs_in_edges(self) -> bool:
        """Whether a rank must hold every in-edge of the nodes that the rank owns."""
        return self._later is not None

    @property
    def keeps_state(self) -> bool:
        """Whether a rank holds rows from one epoch to the next."""
        return self._drifts or self._later in ("pipelined", "adaptive")

    def schedule(self) -> Schedule | None:
        """Makes the schedule of a run."""
        if self._drifts:
            return LastReceived()
        if self._later == "pipelined":
            return Pipelined(self._staleness, self._smoothing)
        if self._later == "sampled":
            return Sampled(self._keep)
        return Adaptive(self._variation, self._max_age) if self._later == "adaptive" else None

    def codec(self) -> Codec | None:
        """Makes the codec of a run."""
        if "quantized" not in self._parts or self._bits == 32:
            return None
        return Bfloat16() if self._bits == 16 else Packed(self._bits)
