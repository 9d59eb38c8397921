"""The C library's allocator in ranks. Does nothing without glibc."""

from __future__ import annotations

import ctypes
import os
import sys

# Options of glibc's `mallopt`, by the environment variable that sets the same one.
_ARENAS = {"MALLOC_ARENA_MAX": (-8, 1)}
_THRESHOLDS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 30),
    "MALLOC_TRIM_THRESHOLD_": (-1, (1 << 31) - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
}

FIRST_STEPS = 3  # steps of training whose freed memory is given back


def share_one_arena() -> None:
    """Lets threads that start from now on allocate in the main arena.

    So do processes that such a thread forks. Other arenas map large arrays anew each
    time, whatever the thresholds.
    """
    _set(_ARENAS)


def keep_freed_memory() -> None:
    """Lets this process use freed memory again, without returning it to the system.

    A step frees and allocates the same large arrays again and again. Otherwise the
    system clears each page in each step, which takes up to 40 % of the time. The
    process then holds as much memory as at its peak.
    """
    _set(_ARENAS | _THRESHOLDS)
    ask_for_large_pages()


def give_back_freed_memory() -> None:
    """Returns freed memory to the system. What is kept is between arrays in use."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def ask_for_large_pages() -> None:
    """Lets torch ask for pages of 2 MiB, unless it has made an array before.

    Rows that edges name are then found with fewer misses in the processor's table of
    pages. A choice of the user in the environment stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _set(options: dict[str, tuple[int, int]]) -> None:
    """Sets options, but for those that the user has set in the environment."""
    library = _glibc()
    if library is None:
        return
    for name, option in options.items():
        if name not in os.environ:
            library.mallopt(*option)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None
