"""The error that users can mend."""

from __future__ import annotations


class UserError(ValueError):
    """Raised for what the user can mend: input, configuration, data. The command prints one line and exits with 2."""
