"""Who may read the files of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_OTHERS = 0o077  # permissions of the group and of everybody


@contextmanager
def applied(permissions: str) -> Iterator[None]:
    """Creates folders with 0700 and files with 0600, under `permissions=private`.

    Processes that are started meanwhile do so too. Under `shared`, the user's umask
    decides. The umask belongs to the process, so files that other threads create
    meanwhile are private too.
    """
    if permissions == "shared":
        yield
        return
    before = os.umask(_OTHERS)
    os.umask(before | _OTHERS)
    try:
        yield
    finally:
        os.umask(before)
