"""The error that users can mend."""

from __future__ import annotations


class UserError(ValueError):
    """An error that the user can mend: in input, configuration or data.

    The command prints one line and exits with 2.
    """
