"""Settings of glibc's allocator in ranks, and of Python's garbage collector."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

# Options of glibc's `mallopt`, by the equivalent environment variable.
_ARENAS = {"MALLOC_ARENA_MAX": (-8, 1)}
_THRESHOLDS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 30),
    "MALLOC_TRIM_THRESHOLD_": (-1, (1 << 31) - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
}

FIRST_STEPS = 3  # training steps after which freed memory is returned to the system


def share_one_arena() -> None:
    """Makes threads started from now on allocate in the main arena.

    This includes processes forked from such threads. Other arenas map large arrays
    again each time, regardless of the thresholds.
    """
    _set(_ARENAS)


def keep_freed_memory() -> None:
    """Keeps freed memory in this process instead of returning it to the system.

    Each step frees and allocates the same large arrays. Without this setting, the
    system clears each page in each step, which takes up to 40 % of the time. The
    process's size then stays at its peak.
    """
    _set(_ARENAS | _THRESHOLDS)
    ask_for_large_pages()


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, except gaps between arrays in use."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def ask_for_large_pages() -> None:
    """Makes torch request 2 MiB pages, unless it has allocated an array before.

    This reduces TLB misses in random access to rows. A choice in the environment takes
    precedence.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _set(options: dict[str, tuple[int, int]]) -> None:
    """Sets the options that are not set in the environment."""
    library = _glibc()
    if library is None:
        return
    for name, option in options.items():
        if name not in os.environ:
            library.mallopt(*option)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector while a process only imports, starts and waits.

    Imported modules are never freed, and each collection has to visit them. Worker
    processes enable the collector.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
