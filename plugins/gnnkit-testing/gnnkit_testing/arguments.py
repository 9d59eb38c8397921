"""Checks of the arguments passed to plugin checks."""

from __future__ import annotations

from gnnkit.errors import UserError


def check_maker(make: object, kind: type) -> None:
    """Raises `UserError` unless `make` can be called to create a plugin.

    Args:
        make: The argument of a check.
        kind: The plugin's interface.
    """
    if isinstance(make, kind) or not callable(make):
        raise UserError(
            f"make is an instance of {type(make).__name__}: expected the class, or a function that makes a {kind.__name__}"
        )


def check_instance(value: object, kind: type) -> None:
    """Raises `UserError` unless `value` is a plugin, rather than its class.

    Args:
        value: The argument of a check.
        kind: The plugin's interface.
    """
    if isinstance(value, type) or not isinstance(value, kind):
        name = value.__name__ if isinstance(value, type) else f"an instance of {type(value).__name__}"
        raise UserError(f"found {name}: expected a {kind.__name__}, such as the class makes when called")
