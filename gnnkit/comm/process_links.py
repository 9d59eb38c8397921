"""Exchange of rows between ranks that are threads of different processes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gnnkit.comm.mailbox import DeadlineExceeded, Mailbox, PeerLost

_ROWS = "rows"


class ProcessLinks:
    """One process's connections to the other processes. Thread-safe."""

    def __init__(self, ranks: Sequence[range], mailbox: Mailbox, timeout: float) -> None:
        """Stores the arguments.

        Args:
            timeout: Deadline of every wait for a peer, in seconds.
        """
        self.process, self._ranks, self._mailbox, self._timeout = mailbox.rank, ranks, mailbox, timeout
        self._lost_rank: int | None = None  # this process's first rank that failed

    def process_of(self, rank: int) -> int:
        """Returns a rank's process."""
        return next(process for process, ranks in enumerate(self._ranks) if rank in ranks)

    def send(self, src: int, dst: int, group: str, rows: Tensor) -> None:
        """Sends rows from a rank of this process to a rank of another process.

        Rows between two ranks of one group arrive in the order in which they were sent.
        """
        try:
            self._mailbox.put(self.process_of(dst), _tag(src, dst, group), tensors={_ROWS: rows})
        except RuntimeError as error:
            raise self._in_ranks(error, src, dst) from error

    def receive(self, src: int, dst: int, group: str) -> Tensor:
        """Returns rows sent from a rank of another process to a rank of this one."""
        try:
            message = self._mailbox.take(_tag(src, dst, group), src=self.process_of(src), timeout=self._timeout)
        except RuntimeError as error:
            raise self._in_ranks(error, dst, src) from error
        return message.tensors[_ROWS]

    def lose(self, rank: int) -> None:
        """Ends every wait after a rank of this process has failed."""
        if self._lost_rank is None:
            self._lost_rank = rank
        self._mailbox.close()

    def close(self) -> None:
        """Announces to the other processes that no more rows follow."""
        self._mailbox.close()

    def _in_ranks(self, error: RuntimeError, me: int, peer: int) -> RuntimeError:
        """Converts an error about processes into one about ranks."""
        if self._lost_rank is not None:
            return PeerLost(f"rank {me}: lost its peer rank {self._lost_rank}, which failed", self._lost_rank)
        if isinstance(error, PeerLost):
            reason = str(error).partition(", which ")[2] or "is gone"
            return PeerLost(f"rank {me}: lost its peer rank {peer}, whose process {reason}", peer)
        if isinstance(error, DeadlineExceeded):
            return DeadlineExceeded(f"rank {me}: timed out after {self._timeout:g} s waiting for rank {peer}")
        return error


def _tag(src: int, dst: int, group: str) -> str:
    return f"{src} {dst} {group}"
