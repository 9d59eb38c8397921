"""Collectives that continue without lost ranks, and heartbeats of slow ones."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gnnkit.comm.base import LEADER, Communicator, Counts
from gnnkit.comm.mailbox import DeadlineExceeded, Mailbox, Message, PeerLost

_TAG = "heartbeat"


def pause(timeout: float) -> float:
    """Returns the seconds between heartbeats, at most a quarter of the timeout."""
    return min(1.0, timeout / 4)


class Heartbeats:
    """A thread that sends heartbeats to the other ranks.

    A rank can therefore wait for a slow rank as long as that rank's process is alive.
    """

    def __init__(self, mailbox: Mailbox, timeout: float) -> None:
        """Starts the thread.

        Args:
            mailbox: Connects the ranks. Must stay open until `close`.
            timeout: Seconds without a heartbeat after which a wait fails.
        """
        self._mailbox, self._timeout = mailbox, timeout
        self._pace = pause(timeout)
        self._heard = [0.0] * mailbox.world_size  # time.monotonic of the last heartbeat, by rank
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeats of rank {mailbox.rank}", daemon=True)
        self._thread.start()

    def take(self, tag: str, src: int) -> Message:
        """Removes and returns a rank's oldest message. Waits while the rank is alive.

        Raises `PeerLost` if there is no message and the rank has exited, and
        `DeadlineExceeded` if the rank sends no heartbeat within the timeout.

        Args:
            src: The sending rank.
        """
        silent, heard = 0.0, self._heard[src]
        while True:
            start = time.monotonic()
            try:
                return self._mailbox.take(tag, src=src, timeout=self._pace)
            except DeadlineExceeded:
                silent += min(time.monotonic() - start, 2 * self._pace)  # a process that stood still heard nobody
                if self._heard[src] != heard:
                    silent, heard = 0.0, self._heard[src]
                if silent > self._timeout:
                    raise DeadlineExceeded(
                        f"rank {self._mailbox.rank}: timed out: no heartbeat of rank {src} for {self._timeout:g} s"
                    ) from None

    def close(self) -> None:
        """Stops the thread."""
        self._ending.set()
        self._thread.join()

    def _beat(self) -> None:
        other_ranks = [rank for rank in range(self._mailbox.world_size) if rank != self._mailbox.rank]
        while not self._ending.wait(self._pace):
            for rank in other_ranks:
                with contextlib.suppress(RuntimeError):  # the rank may have exited
                    self._mailbox.put(rank, _TAG)
                while self._mailbox.poll(_TAG, rank) is not None:
                    self._heard[rank] = time.monotonic()


Parts = Mapping[int, Tensor]  # by rank
Route = Callable[[Mapping[int, Parts]], Mapping[int, Parts]]  # tensors by sender and receiver -> by receiver and sender


class Survivors(Communicator):
    """A communicator that continues without lost ranks.

    In each collective, every rank sends one message to rank 0 and receives one answer.
    A lost rank contributes nothing. If rank 0 is lost, every other rank fails at once.

    Slow ranks are waited for. Only a rank without a heartbeat for `timeout` seconds
    raises `DeadlineExceeded`.
    """

    goes_on = True

    def __init__(self, comm: Communicator, mailbox: Mailbox, ranks: Sequence[int]) -> None:
        """Creates the group on each of its ranks.

        Args:
            comm: Provides the device and the deadline.
            mailbox: Connects the ranks. Must stay open until `close`.
            ranks: The mailbox ranks in this group, including this rank.
        """
        self.device, self.timeout = comm.device, comm.timeout
        self._join(mailbox, tuple(ranks), Heartbeats(mailbox, comm.timeout), "survivors")

    def _join(self, mailbox: Mailbox, ranks: tuple[int, ...], heartbeats: Heartbeats, tag: str) -> None:
        self._mailbox, self._ranks, self._heartbeats, self._tag = mailbox, ranks, heartbeats, tag
        self.rank, self.world_size = ranks.index(mailbox.rank), len(ranks)
        self.lost: frozenset[int] = frozenset()  # ranks lost before the last collective, equal on all ranks
        self._splits: Counter[tuple[int, ...]] = Counter()  # number of subgroups by members

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Survivors:
        raise NotImplementedError("Survivors needs a mailbox of ranks that are connected")

    def split(self, ranks: Sequence[int]) -> Survivors:
        members = tuple(ranks)
        self._splits[members] += 1
        part = Survivors.__new__(Survivors)
        part.device, part.timeout = self.device, self.timeout
        name = f"{self._tag}/{'-'.join(map(str, members))}/{self._splits[members]}"
        part._join(self._mailbox, tuple(self._ranks[rank] for rank in members), self._heartbeats, name)
        return part

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        send_parts = torch.split(rows.detach(), list(send_counts))
        parts = self._meet("all_to_all", dict(enumerate(send_parts)), _relay)
        for rank, count in enumerate(recv_counts):
            if count:
                self._require(rank, parts)
        return torch.cat([parts[rank] for rank in sorted(parts)])

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(self._meet("all_reduce", {LEADER: x.detach()}, _sum)[LEADER])

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        contribution = {LEADER: x.detach()} if self.rank == src else {}
        parts = self._meet("broadcast", contribution, _spread)
        self._require(src, parts)
        return x.copy_(parts[src])

    def gather(self, x: Tensor, *, dst: int = LEADER) -> list[Tensor]:
        """Returns every remaining rank's `x` on rank `dst`."""
        parts = self._meet("gather", {dst: x.detach()}, _relay)
        nothing = x.new_empty((0, *x.shape[1:]))
        return [parts.get(rank, nothing) for rank in range(self.world_size)] if self.rank == dst else []

    def close(self) -> None:
        self._heartbeats.close()

    def _require(self, rank: int, parts: Parts) -> None:
        if rank not in parts:
            raise PeerLost(f"rank {self.rank}: lost its peer rank {rank}, whose rows are needed", rank)

    def _meet(self, kind: str, parts: Parts, route: Route) -> Parts:
        """Exchanges tensors through rank 0. Returns this rank's tensors by sender.

        Args:
            route: Computes on rank 0 what each rank receives.
        """
        if self.rank != LEADER:
            self._put(LEADER, {"kind": kind}, parts)
            message = self._heartbeats.take(f"{self._tag} down", self._ranks[LEADER])
            self.lost = frozenset(message.fields["lost"])
            return self._here(_by_rank(message.tensors))
        posts = {LEADER: {dst: part.cpu() for dst, part in parts.items()}} | self._collect(kind)
        self.lost = frozenset(range(self.world_size)) - posts.keys()
        deliveries = route(posts)
        for rank in posts.keys() - {LEADER}:
            try:
                self._put(rank, {"lost": sorted(self.lost)}, deliveries[rank])
            except PeerLost:
                continue  # the next collective counts this rank as lost
        return self._here(deliveries[LEADER])

    def _collect(self, kind: str) -> dict[int, Parts]:
        """Takes the messages of all remaining ranks, on rank 0."""
        posts: dict[int, Parts] = {}
        for rank in range(self.world_size):
            if rank == LEADER or rank in self.lost:
                continue
            try:
                message = self._heartbeats.take(f"{self._tag} up", self._ranks[rank])
            except PeerLost:
                continue
            if message.fields["kind"] != kind:
                raise RuntimeError(f"rank {rank} calls {message.fields['kind']}, while rank {LEADER} calls {kind}")
            posts[rank] = _by_rank(message.tensors)
        return posts

    def _put(self, dst: int, fields: Mapping[str, object], parts: Parts) -> None:
        way = "up" if dst == LEADER else "down"
        self._mailbox.put(
            self._ranks[dst], f"{self._tag} {way}", fields, {str(rank): part for rank, part in parts.items()}
        )

    def _here(self, parts: Parts) -> Parts:
        return {rank: part.to(self.device) for rank, part in parts.items()}


def _by_rank(tensors: Mapping[str, Tensor]) -> Parts:
    return {int(rank): tensor for rank, tensor in tensors.items()}


def _relay(posts: Mapping[int, Parts]) -> Mapping[int, Parts]:
    """Delivers to every rank the parts addressed to it."""
    return {dst: {src: parts[dst] for src, parts in posts.items() if dst in parts} for dst in posts}


def _sum(posts: Mapping[int, Parts]) -> Mapping[int, Parts]:
    """Delivers to every rank the sum, computed in rank order."""
    total = posts[LEADER][LEADER].clone()
    for rank in sorted(posts.keys() - {LEADER}):
        total += posts[rank][LEADER]
    return {dst: {LEADER: total} for dst in posts}


def _spread(posts: Mapping[int, Parts]) -> Mapping[int, Parts]:
    """Delivers to every rank the parts of the ranks that have one."""
    payloads = {src: parts[LEADER] for src, parts in posts.items() if parts}
    return dict.fromkeys(posts, payloads)
