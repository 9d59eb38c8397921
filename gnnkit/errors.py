"""Errors that users can fix, and interruption."""

from __future__ import annotations

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
