"""The interface of an exchange, two exchanges as one, and an exchange at work."""

from __future__ import annotations

import re
from typing import Any, Protocol

import torch

from gnnkit.errors import UserError
from gnnkit.exchange.codecs import Codec
from gnnkit.exchange.received import LastReceived
from gnnkit.exchange.schedule import ForwardPass, Schedule
from gnnkit.kernels.dropout import derive
from gnnkit.partition.grid import Grid

_DRAWS = 2**32  # tells the key of the exchange from the keys of layers


class Layout(Protocol):
    """What an exchange asks of the engine that it serves."""

    @property
    def grid(self) -> Grid: ...

    @property
    def holds_in_edges(self) -> bool:
        """Whether each rank holds every in-edge of the nodes that it owns."""
        ...


class RowExchange:
    """How rows of other ranks, and gradients of rows, travel in training.

    The schedule decides when which rows travel, the codec how their numbers are
    written. Arguments of the constructor are the keys of `exchange`. `a + b` has the
    schedule of the one and the codec of the other. Evaluation is exact in any case.
    """

    exact: bool = False  # whether all rows come at once, to the bit
    keeps_state: bool = False  # whether the schedule keeps rows from one epoch to the next
    needs_in_edges: bool = False  # whether a rank must hold every in-edge of the nodes that the rank owns
    every_epoch: bool = False  # whether rows follow from an exchange in every epoch

    def costs(self) -> str:
        """Returns the line of an exchange that is approximate, from `approximate`.

        The run begins with this line. Default: "", for an exchange that is exact.
        """
        return ""

    def schedule(self) -> Schedule | None:
        """Makes the schedule of a run. None: all rows come at once."""
        return None

    def codec(self) -> Codec | None:
        """Makes the codec of a run. None: rows travel as they are."""
        return None

    @property
    def name(self) -> str:
        """The name in messages: that of the class, as in `error_feedback`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def check_pauses(self, pauses: str) -> None:
        """Raises `UserError` where `pauses`, a key, leaves exchanges out."""
        if self.every_epoch:
            raise UserError(
                f"{pauses} does not go with exchange={self.name}, whose rows follow from the exchange of every epoch: "
                "choose exchange=exact or quantized"
            )

    def check_layout(self, engine: Layout) -> None:
        """Raises `UserError` for a layout that the exchange does not go with."""
        if self.needs_in_edges and not engine.holds_in_edges:
            raise UserError(
                f"partition.grid={engine.grid} spreads the in-edges of a node over ranks, and exchange={self.name} "
                "needs every in-edge with the owner of its node: use partition.grid=1d, one column and one slice"
            )

    def __add__(self, other: RowExchange) -> RowExchange:
        return _Both(self, other)


class _Both(RowExchange):
    """The schedule of one exchange, and the codec of another."""

    def __init__(self, one: RowExchange, other: RowExchange) -> None:
        self._parts = one, other
        self.keeps_state = one.keeps_state or other.keeps_state
        self.needs_in_edges = one.needs_in_edges or other.needs_in_edges
        self.every_epoch = one.every_epoch or other.every_epoch
        schedules = [part.schedule() is not None for part in self._parts]
        codecs = [part.codec() is not None for part in self._parts]
        if one.exact or other.exact or all(schedules) or all(codecs):
            raise UserError(f"exchange={self.name} must join the schedule of one exchange with the codec of another")

    def costs(self) -> str:
        return "\n".join(filter(None, (part.costs() for part in self._parts)))

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self._parts)

    def schedule(self) -> Schedule | None:
        return next((schedule for part in self._parts if (schedule := part.schedule()) is not None), None)

    def codec(self) -> Codec | None:
        return next((codec for part in self._parts if (codec := part.codec()) is not None), None)


class ForwardPasses:
    """An exchange at work in one run: makes the forward pass of each step."""

    def __init__(self, exchange: RowExchange, engine: Layout, *, pauses: bool) -> None:
        """Begins a run.

        Args:
            exchange: How rows travel.
            engine: Says the layout.
            pauses: Whether some steps exchange nothing. These read the rows last
                received.
        """
        exchange.check_layout(engine)
        self._codec, schedule = exchange.codec(), exchange.schedule()
        self._schedule = LastReceived(schedule) if pauses else schedule

    def step(self, key: int, *, exchanges: bool) -> ForwardPass:
        """Makes the pass of a step.

        Args:
            key: Key of the step.
            exchanges: False: rows of other ranks are constants.
        """
        return ForwardPass(self._schedule, self._codec, derive(key, _DRAWS), exchanges)

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows that the schedule keeps."""
        return {} if self._schedule is None else self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Goes on from these rows."""
        if self._schedule is not None:
            self._schedule.load_state_dict(state, device)
