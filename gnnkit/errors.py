"""Errors that users can fix, and interruption."""

from __future__ import annotations

import errno

from gnnkit.utils.redaction import redact

MAX_MESSAGE = 10_000  # characters. Longer messages are cut in the middle


def for_people(text: str) -> str:
    """Removes secrets from a message, and cuts the middle of a very long one."""
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 2 :]}"
    return redact(text)


class UserError(ValueError):
    """An error that the user can fix, in input, configuration or data.

    The command prints its message without a traceback and exits with code 2. The
    message never contains secrets, and its length is bounded, regardless of names and
    values in it. Catch it to treat wrong input apart from failures: in a run, an error
    of another class is a fault of gnnkit, of a plugin or of the machine. A plugin
    raises it with a message that gives the key with its value, what was expected, and
    what to do.

    Examples:
        >>> from gnnkit import UserError
        >>> from gnnkit.partition import make_grid
        >>> try:
        ...     make_grid([4, 1, 1], world_size=6)
        ... except UserError as error:
        ...     print(error)
        partition.grid=[4,1,1] needs 4 workers, got workers=6: use workers=4
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(for_people(str(message)))


class Interrupted(KeyboardInterrupt):
    """Raised when a run is interrupted, with a hint how to resume."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted: {self}"]


def of_disk(error: OSError) -> UserError | None:
    """Converts a disk error to a `UserError` with the file and a remedy.

    Returns None for other errors, and for those that do not name a file.
    """
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None or error.filename is None:
        return None
    return UserError(f"{error.filename}: {error.strerror}: {remedy}")


_ROOM = "free some, or name a folder on another disk with output=FOLDER; on_exists=resume goes on from a checkpoint"
_WRITABLE = "change its permissions, or name a folder that you may write with output=FOLDER"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EIO: "check the disk or its network, or name a folder on another disk with output=FOLDER",
}
