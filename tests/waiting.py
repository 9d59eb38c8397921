"""Waits whose length a busy machine cannot exceed."""

from __future__ import annotations

import time
from collections.abc import Callable

GUARD = 120.0  # seconds after which a wait that should end has failed, however busy the machine
NEVER = 3600.0  # seconds, more than any test may take: what waits so long fails by the test's time-out


def wait_until(condition: Callable[[], object], *, alive: Callable[[], object] = lambda: True) -> None:
    """Waits until `condition()` holds.

    Fails after `GUARD` seconds, or where `alive()` does not hold.
    """
    end = time.monotonic() + GUARD
    while not condition():
        assert alive(), "what was waited for has ended"
        assert time.monotonic() < end, f"not within {GUARD:.0f} s"
        time.sleep(0.01)
