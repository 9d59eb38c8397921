"""Heartbeats between the ranks of a mailbox."""

from __future__ import annotations

import contextlib
import threading
import time

from gnnkit.comm.mailbox import DeadlineExceeded, Mailbox, Message

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
        start = time.monotonic()
        while True:
            try:
                return self._mailbox.take(tag, src=src, timeout=self._pace)
            except DeadlineExceeded:
                if time.monotonic() - max(start, self._heard[src]) > self._timeout:
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
