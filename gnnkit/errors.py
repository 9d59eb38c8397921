"""The error that users can mend, and the end by an interrupt."""

from __future__ import annotations

from gnnkit.redaction import redact

MAX_MESSAGE = 10_000  # characters; a longer message is cut in the middle


def for_people(text: str) -> str:
    """Returns a message without secrets, cut in the middle where it is very long."""
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 2 :]}"
    return redact(text)


class UserError(ValueError):
    """An error that the user can mend: in input, configuration or data.

    The command prints one line and exits with 2. The message shows no secrets and has a
    bounded length, whatever names and values are put into it.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(for_people(str(message)))


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted, with the way to go on. Notebooks show one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted: {self}"]
