"""How rows are exchanged in training: the interface, schedules, and passes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

from gnnkit.comm import Arrived, Pending
from gnnkit.errors import UserError
from gnnkit.exchange.tally import Exchange
from gnnkit.exchange.wire import Codec, Transfer, Wire
from gnnkit.kernels.dropout import derive
from gnnkit.partition.grid import Grid

Operation = Literal["sum", "mean", "max", "weighted sum", "messages", "scores", "softmax", "halo", "relations"]
_tracker = ModuleTracker()


class Schedule(ABC):
    """Decides how a rank gets other ranks' rows: now, later, in part, or not at all.

    A schedule lives for a run and serves one pass after another. A model's forward
    passes all make the same exchanges in the same order, and so do its backward passes.
    (`transfer.backward`, `transfer.number`) therefore identifies an exchange in every
    pass. All ranks make the same choice of calling a transfer's `now`, `later` or
    `signal`.

    Examples:
        >>> from gnnkit.exchange import Schedule
        >>> class Every(Schedule):
        ...     '''Exchanges all rows in each pass.'''
        ...     def receive(self, transfer, forward):
        ...         return transfer.now()
    """

    def begin(self, forward: ForwardPass) -> None:  # noqa: B027 - most have nothing to do
        """Called before a pass's first exchange.

        A schedule that counts passes, or decides once for a pass, does so here.

        Args:
            forward: The pass that begins.
        """

    def check(self, operation: Operation) -> None:  # noqa: B027 - most serve all
        """Raises `UserError` if a layer's operation is unsupported.

        Called on all ranks, before the operation's exchanges.
        """

    @abstractmethod
    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        """Returns the rows that this rank reads, in a new tensor. Collective.

        This rank's own rows must be the current ones (`transfer.with_own`).

        Args:
            transfer: The exchange's rows.

        Returns:
            [sum(transfer.recv), ...]
        """

    def keep(self, compute: Callable[[], Tensor], number: int, forward: ForwardPass) -> Tensor:
        """Returns `compute()`, or its result in an earlier pass. Collective.

        Args:
            compute: Exchanges rows exactly.
            number: Position in the pass, counted together with the exchanges.
        """
        return compute()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as plain values and tensors.

        Waits for rows in flight, because they will not arrive in a resumed run.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:  # noqa: B027 - most have none
        """Restores the state."""


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass of a model over the graph, and the backward pass after it.

    The default is exact: all rows are sent, unencoded.
    """

    schedule: Schedule | None = None  # None: all rows are sent
    codec: Codec | None = None  # None: numbers are sent unencoded
    key: int = 0  # random key of the exchange
    exchanges: bool = True  # False: remote rows are constants

    @cached_property
    def again(self) -> ForwardPass:
        """The pass for evaluating a training step again, outside training.

        Its rows are exact, and the schedule's state does not change. A pass without an
        exchange remains without one.
        """
        return ForwardPass() if self.exchanges else ForwardPass(self.schedule, exchanges=False)


class Passes:
    """An engine's current pass, and the number of the next exchange."""

    def __init__(self) -> None:
        self.current = ForwardPass()
        self._numbers = [0, 0]  # forward, backward
        self._plain = False

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows in the current pass."""
        return self.current.exchanges

    @property
    def exact(self) -> bool:
        """Whether the current pass receives all rows, unencoded."""
        return self.current.schedule is None and self.current.codec is None

    def enter(self, forward: ForwardPass) -> None:
        """Makes `forward` the current pass. Called before each of its operations."""
        if forward is not self.current:
            self.current, self._numbers = forward, [0, 0]
            if forward.schedule is not None:
                forward.schedule.begin(forward)

    def start(
        self,
        wire: Wire,
        rows: Tensor,
        send: Sequence[int],
        recv: Sequence[int],
        exchange: Exchange,
        ids: Tensor | None,
        index: Tensor | None = None,
    ) -> Pending:
        """Starts an exchange. Collective.

        Args:
            wire: The ranks of the exchange.
            rows: [sum(send), ...] ordered by receiver. With `index`, in any order.
            send: Number of rows for each rank.
            recv: Number of rows from each rank.
            exchange: Kind and layer, for counting.
            ids: [sum(send)] the rows' global node ids. If None, `rows` are not node
                rows.
            index: [sum(send)] int64: sends rows[index]. If None, sends `rows`.

        Returns:
            Waits for the rows [sum(recv), ...] that the current pass delivers.
        """
        current, backward = self.current, _tracker.is_bw
        number = self._next(backward)
        key = derive(current.key, int(backward), number)
        codec = None if self._plain else current.codec
        if current.schedule is None:
            return Transfer(rows, send, recv, exchange, number, backward, key, wire, ids, codec, index).start()
        rows = rows if index is None else rows.index_select(0, index)
        transfer = Transfer(rows, send, recv, exchange, number, backward, key, wire, ids, codec)
        return Arrived(current.schedule.receive(transfer, current))

    def keep(self, compute: Callable[[], Tensor]) -> Tensor:
        """Returns `compute()`, exact, or an earlier result, as the schedule decides."""
        number, schedule = self._next(False), self.current.schedule

        def exactly() -> Tensor:
            current, numbers = self.current, self._numbers
            self.current, self._numbers = ForwardPass(), [0, 0]
            try:
                return compute()
            finally:
                self.current, self._numbers = current, numbers

        return exactly() if schedule is None else schedule.keep(exactly, number, self.current)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Sends rows unencoded within the context, for holders that need equal bits."""
        before, self._plain = self._plain, True
        try:
            yield
        finally:
            self._plain = before

    def _next(self, backward: bool) -> int:
        self._numbers[backward] += 1
        return self._numbers[backward] - 1


class LastReceived(Schedule):
    """Stores received rows, which passes without an exchange read as constants.

    Their gradients are then zero. The first pass always exchanges. In passes with an
    exchange, another schedule applies.
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        """Stores the schedule for passes with an exchange, or None to send all rows."""
        self._schedule = schedule
        self._rows: list[Tensor] = []  # by number of the exchange, or of the stored value

    def begin(self, forward: ForwardPass) -> None:
        if self._schedule is not None:
            self._schedule.begin(forward)

    def check(self, operation: Operation) -> None:
        if self._schedule is not None:
            self._schedule.check(operation)

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        if transfer.backward:
            return self._new(transfer, forward) if forward.exchanges else transfer.own_alone()
        if not forward.exchanges and transfer.number < len(self._rows):
            return transfer.with_own(self._rows[transfer.number])
        rows = self._new(transfer, forward)
        self._store(transfer.number, transfer.without_own(rows.detach()))
        return rows

    def keep(self, compute: Callable[[], Tensor], number: int, forward: ForwardPass) -> Tensor:
        if forward.exchanges or number >= len(self._rows):
            self._store(number, compute())
        return self._rows[number]

    def state_dict(self) -> dict[str, Any]:
        state = {} if self._schedule is None else {"schedule": self._schedule.state_dict()}
        return {"received": self._rows, **state}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._rows = [rows.to(device) for rows in state["received"]]
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"], device)

    def _new(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        return transfer.now() if self._schedule is None else self._schedule.receive(transfer, forward)

    def _store(self, number: int, rows: Tensor) -> None:
        self._rows[number : number + 1] = [rows]


_DRAWS = 2**32  # separates the exchange's random key from the keys of layers


class Layout(Protocol):
    """The properties of the row layout that an exchange reads."""

    @property
    def grid(self) -> Grid: ...

    @property
    def holds_in_edges(self) -> bool:
        """Whether each rank holds every in-edge of its owned nodes."""
        ...


class RowExchange:
    """How remote rows and their gradients are exchanged in training.

    The schedule decides which rows are sent in which pass. The codec encodes their
    numbers. The constructor's arguments are the keys of `exchange`. `a + b` combines
    the schedule of one exchange with the codec of the other. Evaluation is always
    exact.

    Derive from it to send fewer or smaller rows than exact training does, and
    describe the effect in `costs`. The defaults make an exact exchange.

    Examples:
        >>> from gnnkit.exchange import RowExchange, codec
        >>> from gnnkit.testing import check_exchange
        >>> class Half(RowExchange):
        ...     '''Sends 8 bits per number.'''
        ...     def codec(self):
        ...         return codec(8)
        >>> check_exchange(Half)
    """

    exact: bool = False  # whether each pass sends all rows without loss
    keeps_state: bool = False  # whether the schedule keeps rows across epochs
    needs_in_edges: bool = False  # whether a rank must hold every in-edge of its owned nodes
    every_epoch: bool = False  # whether the schedule depends on an exchange in every epoch

    def costs(self) -> str:
        """Returns the notice printed at the start of a run, from `approximate`.

        Default: "", for an exact exchange.
        """
        return ""

    def schedule(self) -> Schedule | None:
        """Creates a run's schedule, or None if each pass sends all rows.

        Called once per rank and run, so a schedule may keep rows from one pass to the
        next.
        """
        return None

    def codec(self) -> Codec | None:
        """Creates a run's codec, or None to send numbers unencoded.

        Called once per rank and run. Gradients are encoded in the same way as rows.
        """
        return None

    @property
    def name(self) -> str:
        """The name used in messages: the class name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def check_pauses(self, pauses: str) -> None:
        """Raises `UserError` if this exchange cannot skip epochs.

        Args:
            pauses: The key that skips exchanges, such as `exchange_every above 1`.
        """
        if self.every_epoch:
            raise UserError(
                f"{pauses} skips exchanges, but exchange={self.name} needs one in every epoch: "
                "use exchange=exact or quantized"
            )

    def check_layout(self, layout: Layout) -> None:
        """Raises `UserError` if the layout does not support this exchange."""
        if self.needs_in_edges and not layout.holds_in_edges:
            raise UserError(
                f"partition.grid={layout.grid} spreads a node's in-edges over several ranks, but exchange={self.name} "
                "needs them all at the node's owner: use partition.grid=1d, partition.border=none, and no vertex cut"
            )

    def __add__(self, other: RowExchange) -> RowExchange:
        return _CombinedExchange(self, other)


class _CombinedExchange(RowExchange):
    """Combines the schedule of one exchange with the codec of another."""

    def __init__(self, first: RowExchange, second: RowExchange) -> None:
        self._parts = first, second
        self.keeps_state = first.keeps_state or second.keeps_state
        self.needs_in_edges = first.needs_in_edges or second.needs_in_edges
        self.every_epoch = first.every_epoch or second.every_epoch
        schedules = [part.schedule() is not None for part in self._parts]
        codecs = [part.codec() is not None for part in self._parts]
        if type(first).exact or type(second).exact or all(schedules) or all(codecs):
            raise UserError(f"exchange={self.name}: expected one exchange with a schedule and one with a codec")

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
    """An exchange's state in one run. Creates each step's forward pass.

    A strategy with an argument `exchange` creates one in `setup`, passes each step's
    forward pass to `ShardAdjacency.layers`, and saves `state_dict` in its own.
    """

    def __init__(self, exchange: RowExchange, layout: Layout, *, pauses: bool) -> None:
        """Creates the schedule and the codec.

        Args:
            layout: The layout, which is checked.
            pauses: Whether some steps skip the exchange and read the last received
                rows.
        """
        exchange.check_layout(layout)
        self.codec, schedule = exchange.codec(), exchange.schedule()
        self._schedule = LastReceived(schedule) if pauses else schedule

    def step(self, key: int, *, exchanges: bool) -> ForwardPass:
        """Creates a step's forward pass.

        Args:
            key: The step's random key.
            exchanges: False: remote rows are constants.
        """
        return ForwardPass(self._schedule, self.codec, derive(key, _DRAWS), exchanges)

    def state_dict(self) -> dict[str, Any]:
        """Returns the schedule's stored rows."""
        return {} if self._schedule is None else self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restores the schedule's rows."""
        if self._schedule is not None:
            self._schedule.load_state_dict(state, device)
