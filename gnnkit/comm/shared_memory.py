"""Exchange of rows within a host, through memory mapped by sender and receiver.

A sender gathers rows directly into its own buffer, and sends their position in a
message. The receiver copies the rows, or reads them in place, and then releases them.
Small blocks are sent within the message.

Messages are sent over sockets, so a waiting rank sleeps and notices a peer's exit at
once. Messages also order the reads and writes of the memory, on every processor.
Buffers are anonymous memory files, which disappear with the last process.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnkit.comm import frames
from gnnkit.comm.base import Counts, Pending
from gnnkit.comm.links import accept_ranks
from gnnkit.comm.mailbox import DeadlineExceeded, PeerLost
from gnnkit.utils.documents import Json

INLINE = 2**13  # maximum bytes per peer that are sent within the message
SLOTS = 2  # buffers that peers may still read while the next rows are written
KEPT = 2**30  # maximum bytes of a buffer that is reused
PIECE = 2**20  # minimum bytes of a buffer, whose unwritten pages take no memory, and numbers that are summed at once
ALIGNED = 64  # alignment of each peer's rows in a buffer, in bytes
_HEADER = struct.Struct("=BIQQQQ")  # kind, buffer, exchange number, offset, bytes of the rows, bytes of the buffer
_ROWS, _PLACE, _RELEASE, _GOODBYE = range(4)  # message kinds


@dataclass(frozen=True, slots=True, eq=False)
class _Parcel:
    """Rows received from one peer."""

    data: Tensor  # [num_bytes] uint8
    buffer: int | None = None  # the sender's buffer, or None if the message contained the rows


@dataclass(slots=True, eq=False)
class _Link:
    """A peer, and the rows received from it."""

    name: str
    rank: int  # in the run
    socket: socket.socket
    arrived: dict[int, _Parcel] = field(default_factory=dict)  # by exchange number
    buffers: dict[int, Tensor] = field(default_factory=dict)  # the peer's buffers, as mapped here
    says_goodbye: bool = False
    ended: bool = False

    def lost(self, me: str) -> PeerLost:
        """Creates the error of a rank that needs this peer."""
        reason = "has closed its communicator" if self.says_goodbye else "has ended"
        return PeerLost(f"{me}: lost its peer {self.name}, which {reason}", self.rank)


@dataclass(slots=True, eq=False)
class _Buffer:
    """A send buffer, reused by one exchange after another."""

    number: int
    fd: int = -1
    memory: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))  # [capacity]
    mapped: set[int] = field(default_factory=set)  # peers that have mapped the memory
    readers: set[int] = field(default_factory=set)  # peers that have not yet read their rows

    def grow(self, size: int) -> None:
        """Replaces the memory by at least `size` bytes."""
        self.drop()
        capacity = max(PIECE, 1 << (size - 1).bit_length())
        self.fd = os.memfd_create("gnnkit rows", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, capacity)
        self.memory = _map(self.fd, capacity)

    def drop(self) -> None:
        """Releases the memory, which is freed when no peer maps it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.memory = -1, torch.empty(0, dtype=torch.uint8)
        self.mapped.clear()


class SharedMemory:
    """Exchanges between a group's ranks on this host."""

    def __init__(self, rank: int, ranks: Sequence[int], neighbours: Neighbours, timeout: float) -> None:
        """Stores the arguments.

        Args:
            rank: This rank in the group.
            ranks: Run rank of each group rank.
            neighbours: The group's other ranks.
            timeout: Deadline of every wait for a peer, in seconds.
        """
        self.rank, self.far = rank, neighbours.far
        self._name, self._timeout = f"rank {ranks[rank]}", timeout
        self._links = {
            peer: _Link(f"rank {ranks[peer]}", ranks[peer], neighbours.links[peer])
            for peer in [*range(rank + 1, len(ranks)), *range(rank)]  # staggered, so that no rank is first for all
            if peer in neighbours.links
        }
        self._by_fd = {link.socket.fileno(): peer for peer, link in self._links.items()}
        self._poll = select.poll()
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)
        self._buffers: list[_Buffer] = []
        self._number = 0  # number of exchanges started
        self._open: set[int] = set()  # numbers of the exchanges in flight on this rank
        self._message = bytearray(_HEADER.size + INLINE)

    @classmethod
    def open(cls, rank: int, ranks: Sequence[int], gather: Gather, timeout: float) -> SharedMemory | None:
        """Connects a group's ranks. Collective.

        Returns None on all ranks if no two of them share a host, or if the system does
        not support it.

        Args:
            rank: This rank in the group.
            ranks: Run rank of each group rank.
            gather: Gathers bytes from all ranks of the group.
            timeout: Deadline of every wait for a peer, in seconds.
        """
        neighbours = meet(rank, len(ranks), gather, timeout, able=_can_map())
        return None if neighbours is None else cls(rank, ranks, neighbours, timeout)

    def start(
        self, rows: Tensor, send_counts: Counts, recv_counts: Counts, index: Tensor | None, far: Pending | None
    ) -> Pending:
        """Sends the rows for ranks on this host.

        Args:
            rows: The rows, ordered by receiver unless `index` is given.
            send_counts: Number of rows for each rank of the group.
            recv_counts: Number of rows from each rank of the group.
            index: [sum(send_counts)] int64. If None, sends `rows`.
            far: The exchange with ranks on other hosts, if there are any.
        """
        self._number += 1
        rows = rows.detach()
        size = rows.element_size() * math.prod(rows.shape[1:])
        firsts = list(accumulate(send_counts, initial=0))
        sizes = {peer: send_counts[peer] * size for peer in self._links if send_counts[peer] * size}
        large = [peer for peer, num_bytes in sizes.items() if num_bytes > INLINE]
        buffer = self._free_buffer(sum(_align(sizes[peer]) for peer in large)) if large else None
        if buffer is not None:
            buffer.readers.update(large)  # all at once: one peer may finish reading while rows for others are written
        offset = 0
        for peer, num_bytes in sizes.items():
            part = slice(firsts[peer], firsts[peer + 1])
            if num_bytes <= INLINE:
                header = _HEADER.pack(_ROWS, 0, self._number, 0, num_bytes, 0)
                self._send(peer, [header, frames.bytes_of(_select_rows(rows, index, part).contiguous())])
            elif buffer is not None:
                place = buffer.memory[offset : offset + num_bytes].view(rows.dtype)
                _take(rows, index, part, place.view(send_counts[peer], *rows.shape[1:]))
                self._hand_out(buffer, peer, offset, num_bytes)
                offset += _align(num_bytes)
        block = _select_rows(rows, index, slice(firsts[self.rank], firsts[self.rank + 1]))
        self._open.add(self._number)
        sizes = {peer: recv_counts[peer] * size for peer in self._links if recv_counts[peer] * size}
        return _Exchange(self, self._number, sizes, block, recv_counts, far)

    def arrivals(self, number: int, sizes: dict[int, int]) -> Iterator[tuple[int, _Parcel]]:
        """Yields the parcels of one exchange in order of arrival.

        Args:
            sizes: Bytes from each sending peer.
        """
        assert number in self._open, "an exchange ends once"
        missing, deadline = set(sizes), time.monotonic() + self._timeout
        while missing:
            ready = [peer for peer in missing if number in self._links[peer].arrived]
            for peer in ready:
                parcel = self._links[peer].arrived.pop(number)
                if parcel.data.numel() != sizes[peer]:
                    raise RuntimeError(
                        f"{self._name} expects {sizes[peer]} bytes of {self._links[peer].name}, "
                        f"which has sent {parcel.data.numel()}: counts of sender and receiver differ"
                    )
                missing.remove(peer)
                yield peer, parcel
            if not ready:
                self._listen(missing, deadline)

    def release(self, peer: int, parcel: _Parcel) -> None:
        """Notifies the sender that its rows have been read."""
        if parcel.buffer is None:
            return
        buffers = self._links[peer].buffers
        if buffers[parcel.buffer].numel() > KEPT:
            del buffers[parcel.buffer]
        with contextlib.suppress(PeerLost):  # the peer has exited and needs no release
            self._send(peer, [_HEADER.pack(_RELEASE, parcel.buffer, 0, 0, 0, 0)])

    def end(self, number: int) -> None:
        """Records that this rank has completed an exchange."""
        self._open.remove(number)

    def close(self) -> None:
        """Announces the end to the peers, and closes sockets and memory.

        Waits for room if a peer's socket is full, because a peer that sees no
        announcement considers this rank lost.
        """
        for peer in self._links:
            with contextlib.suppress(OSError, PeerLost, DeadlineExceeded):
                self._send(peer, [_HEADER.pack(_GOODBYE, 0, 0, 0, 0, 0)])
        for link in self._links.values():
            link.socket.close()
            link.buffers.clear()
        for buffer in self._buffers:
            buffer.drop()

    def _free_buffer(self, size: int) -> _Buffer:
        """Returns a buffer of at least `size` bytes that no peer reads.

        Waits only while peers read `SLOTS` buffers of exchanges that this rank has
        completed. All ranks complete the same exchanges in the same order, so the
        slowest rank never waits here.
        """
        deadline = time.monotonic() + self._timeout
        self._hear()
        while sum(bool(buffer.readers) for buffer in self._buffers) >= SLOTS + len(self._open):
            self._listen(set().union(*(buffer.readers for buffer in self._buffers)), deadline)
        free = [buffer for buffer in self._buffers if not buffer.readers]
        if not free:
            free = [_Buffer(len(self._buffers))]
            self._buffers += free
        fitting = [buffer for buffer in free if buffer.memory.numel() >= size]
        if fitting:
            return min(fitting, key=lambda buffer: buffer.memory.numel())
        largest = max(free, key=lambda buffer: buffer.memory.numel())
        largest.grow(size)
        return largest

    def _hand_out(self, buffer: _Buffer, peer: int, offset: int, num_bytes: int) -> None:
        """Sends a peer the position of its rows and, at first use, the memory file."""
        capacity = buffer.memory.numel()
        fds = [] if peer in buffer.mapped else [buffer.fd]
        buffer.mapped.add(peer)
        self._send(peer, [_HEADER.pack(_PLACE, buffer.number, self._number, offset, num_bytes, capacity)], fds)

    def _send(self, peer: int, parts: Sequence[bytes | memoryview], fds: Sequence[int] = ()) -> None:
        """Sends one message. Reads incoming messages while there is no room."""
        link, deadline = self._links[peer], time.monotonic() + self._timeout
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                link.socket.sendmsg(parts, files)
                return
            except BlockingIOError:
                self._poll.modify(link.socket, select.POLLIN | select.POLLOUT)
                try:
                    self._listen({peer}, deadline)
                finally:
                    self._poll.modify(link.socket, select.POLLIN)
            except ConnectionError:
                self._hear()
                raise link.lost(self._name) from None

    def _hear(self, seconds: float = 0.0) -> bool:
        """Reads incoming messages, waiting at most `seconds` for one.

        Returns whether there were any. Raises `PeerLost` for a peer that has exited
        without announcing it.
        """
        news = self._poll.poll(seconds * 1000)
        for fd, _ in news:
            link = self._links[self._by_fd[fd]]
            self._read(self._by_fd[fd], link)
            if link.ended:
                self._poll.unregister(fd)
        for link in self._links.values():
            if link.ended and not link.says_goodbye:
                raise link.lost(self._name)
        return bool(news)

    def _listen(self, peers: Collection[int], deadline: float) -> None:
        """Waits for messages.

        Args:
            peers: The peers that this rank waits for.
            deadline: By time.monotonic.
        """
        for peer in peers:
            if self._links[peer].ended:
                raise self._links[peer].lost(self._name)
        if not self._hear(min(max(deadline - time.monotonic(), 0.0), 3600.0)) and time.monotonic() >= deadline:
            names = ", ".join(self._links[peer].name for peer in sorted(peers))
            raise DeadlineExceeded(f"{self._name}: timed out after {self._timeout:g} s waiting for {names}")

    def _read(self, peer: int, link: _Link) -> None:
        """Reads all messages from a peer, and possibly the end of the stream."""
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        while not link.ended:
            try:
                size, files, _, _ = link.socket.recvmsg_into([self._message], room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the peer has exited, but its messages can still be read
            link.ended = not size
            if size:
                self._take_in(peer, link, size, [array.array("i", data)[0] for _, _, data in files])

    def _take_in(self, peer: int, link: _Link, size: int, fds: list[int]) -> None:
        kind, number, exchange, offset, num_bytes, capacity = _HEADER.unpack_from(self._message)
        for fd in fds:
            link.buffers[number] = _map(fd, capacity)
            os.close(fd)
        if kind == _ROWS:
            data = torch.frombuffer(self._message[_HEADER.size : size], dtype=torch.uint8)
            link.arrived[exchange] = _Parcel(data)
        elif kind == _PLACE:
            link.arrived[exchange] = _Parcel(link.buffers[number][offset : offset + num_bytes], number)
        elif kind == _RELEASE:
            buffer = self._buffers[number]
            buffer.readers.remove(peer)
            if not buffer.readers and buffer.memory.numel() > KEPT:
                buffer.drop()
        else:
            link.says_goodbye = True


class _Exchange(Pending):
    """An exchange in flight, with ranks on this host and possibly on others."""

    def __init__(
        self,
        memory: SharedMemory,
        number: int,
        sizes: dict[int, int],
        block: Tensor,
        recv_counts: Counts,
        far: Pending | None,
    ) -> None:
        """Stores the arguments.

        Args:
            memory: Connects the ranks on this host.
            sizes: Bytes from each sending rank on this host.
            block: [recv_counts[rank], ...] this rank's rows for itself.
            recv_counts: Number of rows from each rank of the group.
            far: The exchange with ranks on other hosts, if there are any.
        """
        self._memory, self._number, self._sizes, self._block, self._far = memory, number, sizes, block, far
        self._firsts = list(accumulate(recv_counts, initial=0))

    def wait(self) -> Tensor:
        rows, memory = self._block.new_empty((self._firsts[-1], *self._block.shape[1:])), self._memory
        self._part(rows, memory.rank).copy_(self._block)
        for peer, parcel in memory.arrivals(self._number, self._sizes):
            part = self._part(rows, peer)
            part.view(-1).view(torch.uint8).copy_(parcel.data)
            memory.release(peer, parcel)
        if self._far is not None:
            places = [self._part(rows, peer) for peer in memory.far]
            parts = torch.split(self._far.wait(), list(map(len, places)))
            for place, part in zip(places, parts, strict=True):
                place.copy_(part)
        memory.end(self._number)
        return rows

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Tensor]:
        if len(self._block) or self._far is not None or len(self._sizes) != 1:
            yield self.wait()
            return
        ((peer, parcel),) = self._memory.arrivals(self._number, self._sizes)
        self._memory.end(self._number)
        try:
            yield parcel.data.view(self._block.dtype).view(self._firsts[-1], *self._block.shape[1:])
        finally:
            self._memory.release(peer, parcel)

    def _part(self, rows: Tensor, rank: int) -> Tensor:
        return rows[self._firsts[rank] : self._firsts[rank + 1]]


def _select_rows(rows: Tensor, index: Tensor | None, part: slice) -> Tensor:
    """Returns rows[part], or rows[index[part]]."""
    return rows[part] if index is None else rows.index_select(0, index[part])


def _take(rows: Tensor, index: Tensor | None, part: slice, out: Tensor) -> None:
    """Writes rows[part], or rows[index[part]], to `out`."""
    if index is None:
        out.copy_(rows[part])
    else:
        torch.index_select(rows, 0, index[part], out=out)


def _align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNED) * ALIGNED


def _map(fd: int, size: int) -> Tensor:  # [size] uint8
    """Maps a file. Unlike Python's `mmap`, keeps no file descriptor open."""
    return torch.from_file(f"/proc/self/fd/{fd}", shared=True, size=size, dtype=torch.uint8)


def _can_map() -> bool:
    """Returns whether this system has memory files that `_map` can map."""
    if sys.platform != "linux":
        return False
    buffer = _Buffer(0)
    try:
        buffer.grow(1)
    except (AttributeError, OSError, RuntimeError):
        return False
    finally:
        buffer.drop()
    return True


Gather = Callable[[bytes], list[bytes]]  # gathers bytes of equal length from all ranks. Collective
RECORD = 256  # bytes that each rank shares
MEETING = 10.0  # maximum seconds to wait for connections


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """A group's other ranks, as seen from one rank."""

    links: dict[int, socket.socket]  # to ranks on this host, by rank
    far: tuple[int, ...]  # ranks on other hosts


def meet(rank: int, world_size: int, gather: Gather, timeout: float, *, able: bool) -> Neighbours | None:
    """Connects each pair of ranks on the same host by a message-oriented socket.

    Collective. The sockets have abstract names. They reach ranks of the same kernel and
    network namespace, and leave no files. Each rank authenticates its peers by a random
    token.

    Args:
        world_size: Number of ranks in the group.
        gather: Gathers bytes from all ranks.
        timeout: Deadline in seconds.
        able: Whether this rank can use the connections. Otherwise it counts as far.

    Returns:
        None on all ranks if no two share a host, or if a connection fails.
    """
    token, links = secrets.token_hex(16), dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        own_record: Json = {"host": f"rank {rank}"}  # a unique default
        listener = _listen(world_size) if able else None
        if listener is not None:
            stack.enter_context(listener)
            own_record = {"host": host(), "name": listener.getsockname().hex(), "token": token}
        records = [json.loads(record) for record in gather(json.dumps(own_record).encode().ljust(RECORD))]
        hosts = [record["host"] for record in records]
        if len(set(hosts)) == world_size:
            return None
        near = [peer for peer in range(world_size) if hosts[peer] == hosts[rank] and peer != rank]
        with contextlib.suppress(OSError):
            if listener is not None:
                _connect(links, rank, near, listener, records, time.monotonic() + min(timeout, MEETING))
    if min(gather(bytes([len(links) == len(near)]))) == b"\0":
        for link in links.values():
            link.close()
        return None
    return Neighbours(links, tuple(peer for peer in range(world_size) if hosts[peer] != hosts[rank]))


def host() -> str:
    """Returns an identifier shared by the ranks that can reach each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.geteuid()}"


def _listen(world_size: int) -> socket.socket | None:
    """Opens a listening socket, or returns None if the system does not support them."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind("")  # lets the system choose an abstract name
        listener.listen(world_size + 128)
        host()
        stack.pop_all()  # keeps the socket open
        return listener
    return None


def _connect(
    links: dict[int, socket.socket],
    rank: int,
    near: Sequence[int],
    listener: socket.socket,
    records: Sequence[Mapping[str, Any]],
    deadline: float,
) -> None:
    """Connects to lower ranks, and accepts connections from higher ranks.

    Args:
        records: Name and token of each rank's listener.
        deadline: By time.monotonic.
    """
    connections = dict[int, socket.socket]()
    for peer in near:
        if peer < rank:
            connections[peer] = link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.settimeout(_seconds_left(deadline))
            link.connect(bytes.fromhex(records[peer]["name"]))
            if not _is_of_this_user(link):
                raise PermissionError("a stranger listens")
            link.send(frames.hello(records[peer]["token"], rank))
    higher_ranks, token = [peer for peer in near if peer > rank], records[rank]["token"]
    connections.update(accept_ranks(higher_ranks, listener, token, deadline, is_trusted=_is_of_this_user))
    for link in connections.values():
        link.setblocking(False)
    links.update(connections)


def _is_of_this_user(link: socket.socket) -> bool:
    return _user(link) == os.geteuid()


def _user(link: socket.socket) -> int:
    """Returns the peer's user id, as reported by the kernel."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _seconds_left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)
