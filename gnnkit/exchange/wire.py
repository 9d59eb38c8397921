"""The ranks that exchange rows, and the encoding of rows that they send."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from gnnkit.comm import Communicator, Pending
from gnnkit.exchange.background import Background
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.kernels.dropout import derive
from gnnkit.partition.traffic import column_shares


class Codec(ABC):
    """A compressed encoding for rows sent between two ranks.

    Not encoded are a rank's own rows, integers, softmax maxima and numbers that several
    holders must receive bitwise equal. A row that would not shrink is sent unencoded.
    Encoding must be a deterministic function of rows, ids and key.

    Rows may be encoded in a background thread, so a codec must not keep state
    between calls.
    """

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Returns the encoded size of a row, in bytes.

        All rows of one width have the same size, so receivers need no lengths.

        Args:
            width: Numbers per row.
        """

    @abstractmethod
    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:  # -> [n, row_bytes] uint8
        """Encodes rows.

        Args:
            rows: [n, width] floating-point.
            ids: [n] int64, which make the rows' random draws independent.
        """

    @abstractmethod
    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # -> [n, width]
        """Decodes rows.

        Args:
            data: [n, row_bytes] uint8, from `encode`.
            width: Numbers per row.
            dtype: The result's dtype.
        """


Block = tuple[int, int]  # number of rows, numbers per row


@dataclass(frozen=True, slots=True, eq=False)
class BlockEncoding:
    """Encodes the blocks of rows that a rank exchanges with each rank.

    A block that would not shrink is sent unencoded.
    """

    codec: Codec
    exchange: Exchange
    rank: int  # in the exchange
    key: int  # random key of this rank's rows
    dtype: torch.dtype  # of the rows
    width: int  # numbers per row, except in cuts and joins

    def blocks(self, counts: Sequence[int], *, arriving: bool) -> list[Block]:
        """Returns the shapes of the blocks for, or from, each rank.

        In cuts and joins, `counts` count numbers, and widths are shares of the columns.
        """
        if self.exchange.kind not in ("cut", "join"):
            return [(count, self.width) for count in counts]
        shares = (self.exchange.heads * column_shares(self.exchange.width, len(counts))).tolist()
        alike = (self.exchange.kind == "cut") == arriving  # whether all blocks have this rank's columns
        widths = [shares[self.rank]] * len(counts) if alike else shares
        return [(count // max(width, 1), width) for count, width in zip(counts, widths, strict=True)]

    def sizes(self, blocks: Sequence[Block]) -> list[int]:
        """Returns the size of each block in bytes."""
        return [num_rows * self._row_bytes(width) for num_rows, width in blocks]

    def encode(self, rows: Tensor, ids: Tensor | None, blocks: Sequence[Block]) -> Tensor:  # [num_bytes] uint8
        """Encodes rows.

        Args:
            rows: [num_rows, ...], or [numbers] in cuts and joins.
            ids: [num_rows] int64 global node ids. If None, `rows` are not node rows.
            blocks: Shapes of the blocks for each rank.
        """
        merged_blocks = _merge_blocks(blocks)
        ids = ids if ids is not None else torch.arange(sum(n for n, _ in merged_blocks), device=rows.device)
        data, row, number, flat = [], 0, 0, rows.reshape(-1)
        for n, width in merged_blocks:
            block = flat[number : number + n * width].view(n, width)
            is_encoded = self._is_shorter(width)
            encoded = self.codec.encode(block, ids[row : row + n], self.key) if is_encoded else _bytes(block)
            data.append(encoded.reshape(-1))
            row, number = row + n, number + n * width
        return torch.cat(data)

    def decode(self, data: Tensor, blocks: Sequence[Block]) -> Tensor:  # [num_bytes] uint8 -> [numbers]
        """Decodes the bytes of blocks."""
        numbers, byte = [], 0
        for n, width in _merge_blocks(blocks):
            size = self._row_bytes(width)
            rows = data[byte : byte + n * size].view(n, size)
            is_encoded = self._is_shorter(width)
            decoded = self.codec.decode(rows, width, self.dtype) if is_encoded else rows.clone().view(self.dtype)
            numbers.append(decoded.reshape(-1))
            byte += n * size
        return torch.cat(numbers)

    def _row_bytes(self, width: int) -> int:
        return min(self.codec.row_bytes(width), width * self.dtype.itemsize)

    def _is_shorter(self, width: int) -> bool:
        return self.codec.row_bytes(width) < width * self.dtype.itemsize


def _bytes(rows: Tensor) -> Tensor:  # [n, width] -> [n, num_bytes] uint8
    return rows.contiguous().view(torch.uint8)


def _merge_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Merges consecutive blocks of equal width."""
    return [(sum(n for n, _ in group), width) for width, group in groupby(blocks, key=lambda block: block[1])]


_CODED = ("gather", "gather_back", "reduce", "reduce_back", "cut", "join")  # kinds that a codec may encode


class Wire:
    """The ranks that one rank exchanges rows with, including itself."""

    def __init__(self, comm: Communicator, ranks: Sequence[int], tally: Tally) -> None:
        """Stores the arguments.

        Args:
            comm: Connects the ranks of the exchange.
            ranks: [comm.world_size] these ranks in the run's numbering.
        """
        self.comm, self.ranks, self.tally = comm, ranks, tally
        self._background: Background | None = None

    # Not a cached property, whose lock all instances would share.
    @property
    def background(self) -> Background:
        """The thread for overlapping exchanges. Collective at first use."""
        if self._background is None:
            self._background = Background(self.comm)
        return self._background

    def close(self) -> None:
        """Stops the thread, if it was started."""
        if self._background is not None:
            self._background.close()


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """One rank's part of an exchange.

    `now`, `start`, `later` and `signal` are collective: all ranks of the exchange call
    the same ones in the same order. `recv` must match the senders' `send`.

    A `Schedule` receives one per exchange and chooses what happens to its rows:
    `now` sends them and waits, `later` sends them in the background, `signal` tells the
    receivers whether rows follow.
    """

    rows: Tensor  # [sum(send), ...] ordered by receiver, contiguous. With `index`, in any order
    send: Sequence[int]  # number of rows for each rank, including this one
    recv: Sequence[int]  # number of rows from each rank, including this one
    exchange: Exchange
    number: int  # of the exchange, within the forward or backward pass
    backward: bool
    key: int  # random key of this exchange, equal on all ranks
    wire: Wire
    ids: Tensor | None = None  # [sum(send)] int64 global node ids. None: `rows` are not node rows
    codec: Codec | None = None  # None: numbers are sent unencoded
    index: Tensor | None = None  # [sum(send)] int64: sends rows[index], ordered by receiver. None: sends `rows`

    @property
    def rank(self) -> int:
        """This rank's number in the exchange."""
        return self.wire.comm.rank

    def others(self) -> Transfer:
        """The transfer between this rank and the others, without `index`."""
        if self.index is None and not self.send[self.rank]:
            return self
        own_range = _own_range(self.send, self.rank)
        ids = None if self.ids is None else _without(self.ids, own_range)
        rows = _without(self.rows, own_range) if self.index is None else self.rows[_without(self.index, own_range)]
        return self.part(rows, _other_counts(self.send, self.rank), _other_counts(self.recv, self.rank), ids)

    def part(self, rows: Tensor, send: Sequence[int], recv: Sequence[int], ids: Tensor | None) -> Transfer:
        """Returns the same exchange with other rows.

        Args:
            rows: [sum(send), ...].
            send: Number of rows for each rank.
            recv: Number of rows from each rank, which must match that rank's `send`.
            ids: [sum(send)] global ids, or None.
        """
        return replace(self, rows=rows, send=send, recv=recv, ids=ids, index=None)

    def with_own(self, rows: Tensor) -> Tensor:  # [sum(recv)] less own rows, ... -> [sum(recv), ...]
        """Inserts this rank's own current rows between the other ranks' rows."""
        first, own_range = sum(self.recv[: self.rank]), _own_range(self.send, self.rank)
        own_rows = self.rows[own_range] if self.index is None else self.rows[self.index[own_range]]
        return torch.cat([rows[:first], own_rows, rows[first:]])

    def own_alone(self) -> Tensor:  # [sum(recv), ...]
        """Returns this rank's own rows, with zeros for those of other ranks.

        A schedule that skips the exchange starts from it.
        """
        away = sum(self.recv) - self.recv[self.rank]
        return self.with_own(self.rows.new_zeros((away, *self.rows.shape[1:])))

    def without_own(self, rows: Tensor) -> Tensor:  # [sum(recv), ...] -> less own rows
        """Removes this rank's own rows from the received ones."""
        return _without(rows, _own_range(self.recv, self.rank))

    def now(self) -> Tensor:  # [sum(recv), ...]
        """Exchanges the rows and waits for them. Collective.

        Returns:
            [sum(recv), ...] rows of all ranks, ordered by sender, this rank's own
            included.
        """
        return self.start().wait()

    def as_read(self) -> Tensor:  # [sum(send), ...]
        """Returns the rows as their receivers would decode them. Sends nothing."""
        rows = self.rows if self.index is None else self.rows[self.index]
        if (encoding := self._encoding) is None:
            return rows
        blocks = encoding.blocks(self.send, arriving=False)
        return encoding.decode(encoding.encode(rows, self.ids, blocks), blocks).view_as(rows)

    def start(self) -> Pending:
        """Starts the exchange. The rows must not change until it completes.

        The time to start and the time spent waiting count as exchange.
        """
        self._count()
        with self.wire.tally.timed():
            return _Timed(self._begin(self.wire.comm), self.wire.tally)

    def later(self) -> Future[Tensor]:
        """Starts to exchange row copies with other ranks, in the background.

        `wait` returns the received rows.
        """
        remote = self.others()
        if remote is self:
            remote = replace(self, rows=self.rows.clone())
        remote._count()
        return self.wire.background.submit(lambda comm: remote._begin(comm).wait())

    def wait(self, rows: Future[Tensor]) -> Tensor:  # [sum(recv)] less own rows, ...
        """Waits for a background exchange's rows, and counts the time."""
        with self.wire.tally.timed():
            return rows.result()

    def signal(self, flags: Sequence[bool]) -> list[bool]:
        """Sends one flag to every rank that receives rows, and returns their flags.

        Args:
            flags: [world_size]. Flags for ranks that receive no rows are not sent.
        """
        out, into = ([int(n > 0) for n in _other_counts(counts, self.rank)] for counts in (self.send, self.recv))
        out_flags = torch.tensor([flag for flag, is_sent in zip(flags, out, strict=True) if is_sent], dtype=torch.uint8)
        none = [0] * len(out)
        self.wire.tally.record(self.exchange, self.wire.ranks[self.rank], self.wire.ranks, none, none, out)
        with self.wire.tally.timed():
            arriving = iter(self.wire.comm.all_to_all(out_flags.to(self.rows.device), out, into).tolist())
        return [bool(next(arriving)) if comes else False for comes in into]

    @property
    def _encoding(self) -> BlockEncoding | None:
        """The encoding of the rows, or None if they are sent as they are."""
        if self.codec is None or not self.rows.is_floating_point() or self.exchange.kind not in _CODED:
            return None
        # All holders of a row must decode the same bits. Their sums use independent
        # draws.
        key = self.key if self.ids is not None and not self.exchange.to_owners else derive(self.key, self.rank)
        width = math.prod(self.rows.shape[1:])
        return BlockEncoding(self.codec, self.exchange, self.rank, key, self.rows.dtype, width)

    def _count(self) -> None:
        width, size = math.prod(self.rows.shape[1:]), self.rows.element_size()
        num_sent, num_received = ([count * width for count in counts] for counts in (self.send, self.recv))
        num_bytes = [numbers * size for numbers in num_sent]
        if (encoding := self._encoding) is not None:
            num_bytes = encoding.sizes(encoding.blocks(self.send, arriving=False))
        exchange = replace(self.exchange, itemsize=size)
        self.wire.tally.record(exchange, self.wire.ranks[self.rank], self.wire.ranks, num_sent, num_received, num_bytes)

    def _begin(self, comm: Communicator) -> Pending:
        if (encoding := self._encoding) is None:
            return comm.start(self.rows, self.send, self.recv, index=self.index)
        remote = self.others()
        out_blocks = encoding.blocks(remote.send, arriving=False)
        in_blocks = encoding.blocks(remote.recv, arriving=True)

        def read(data: Tensor) -> Tensor:
            rows = encoding.decode(data, in_blocks).view(sum(remote.recv), *self.rows.shape[1:])
            return self.with_own(rows) if self.send[self.rank] else rows

        data = encoding.encode(remote.rows, remote.ids, out_blocks)
        return _Read(comm.start(data, encoding.sizes(out_blocks), encoding.sizes(in_blocks)), read)


class _Read(Pending):
    """An exchange that decodes received bytes into rows."""

    def __init__(self, pending: Pending, read: Callable[[Tensor], Tensor]) -> None:
        """Stores the arguments.

        Args:
            pending: The byte exchange.
            read: Decodes the bytes into new rows.
        """
        self._pending, self._read = pending, read

    def wait(self) -> Tensor:
        with self._pending.borrow() as data:
            return self._read(data)


class _Timed(Pending):
    """An exchange that counts its waiting time."""

    def __init__(self, pending: Pending, tally: Tally) -> None:
        self._pending, self._tally = pending, tally

    def wait(self) -> Tensor:
        with self._tally.timed():
            return self._pending.wait()

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        with ExitStack() as stack:
            with self._tally.timed():
                rows = stack.enter_context(self._pending.borrow())
            yield rows


def _own_range(counts: Sequence[int], rank: int) -> slice:
    """Returns the position of a rank's own rows."""
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


def _other_counts(counts: Sequence[int], rank: int) -> list[int]:
    """Returns the counts with 0 for a rank's own rows."""
    return [0 if number == rank else count for number, count in enumerate(counts)]


def _without(rows: Tensor, part: slice) -> Tensor:
    return torch.cat([rows[: part.start], rows[part.stop :]])
