"""The error that users can mend, and the end by an interrupt."""

from __future__ import annotations


class UserError(ValueError):
    """An error that the user can mend: in input, configuration or data.

    The command prints one line and exits with 2.
    """


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted, with the way to go on. Notebooks show one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted: {self}"]
