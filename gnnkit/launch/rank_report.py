"""What a started process sends to its parent when its work has ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LOST_PEER = re.compile(
    r"(RuntimeError|Dist\w*Error|PeerLost|DeadlineExceeded|Connection\w*Error|BrokenPipeError): .*"
    r"(connection (closed|reset|refused|was closed)|broken pipe|timed out|timeout|peer|aborted)",
    re.IGNORECASE | re.DOTALL,
)
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankReport:
    """A process's result or error, which is sent as JSON."""

    result: Any = None  # a JSON value
    error: str | None = None  # type and text, or None if the work has succeeded
    message: str = ""  # text for users
    is_user_error: bool = False  # whether the error is a `UserError`
    traceback: str | None = None  # None for disk errors

    @property
    def lost_peer(self) -> bool:
        """Whether the error looks like a consequence of another process's failure."""
        return self.error is not None and _LOST_PEER.match(self.error) is not None

    @property
    def timed_out(self) -> bool:
        """Whether the process timed out waiting for another."""
        return self.error is not None and self.lost_peer and _TIMED_OUT.search(self.error) is not None
