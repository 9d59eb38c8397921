"""The C library's allocator in ranks. Does nothing without glibc."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

# Options of glibc's `mallopt`, by the environment variable that sets the same one.
_ARENAS = {"MALLOC_ARENA_MAX": (-8, 1)}
_CHUNK = 1 << 30  # bytes from which on arrays are mapped on their own
_THRESHOLDS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, _CHUNK),
    "MALLOC_TRIM_THRESHOLD_": (-1, -1),  # never
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
}
_SHARE = 0.75  # of the machine's memory. The kernel refuses to fork a process with a larger piece than all of it
_MADV_HUGEPAGE = 14
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"  # the kernel counts memory that is asked for, used or not


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

    New memory comes in pages of 2 MiB, where the kernel gives these on demand. Rows
    that edges name are then found with fewer misses in the processor's table of pages.
    torch does so too, but only where it finds THP_MEM_ALLOC_ENABLE=1 before its first
    array. THP_MEM_ALLOC_ENABLE=0 leaves large pages out.
    """
    _set(_ARENAS | _THRESHOLDS)
    library = _glibc()
    if library is not None and os.environ.get("THP_MEM_ALLOC_ENABLE") != "0" and _may_reserve():
        _advise_heap(library, int(_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _advise_heap(library: ctypes.CDLL, num_bytes: int) -> None:
    """Grows the heap by addresses without memory, and asks for large pages there.

    The kernel keeps advice for addresses that are mapped, and forgets it for what is
    mapped later. So the heap gets all addresses of the run at once.
    """
    library.sbrk.restype = library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    begin = end = library.sbrk(0)
    chunks = []
    while end - begin < num_bytes:
        chunks.append(library.malloc(_CHUNK // 2))
        before, end = end, library.sbrk(0)
        if end == before:  # the chunk is elsewhere, or there is none
            break
    for chunk in reversed(chunks):  # back to the end of the heap
        library.free(chunk)
    page = os.sysconf("SC_PAGE_SIZE")
    first = -(-begin // page) * page
    if library.sbrk(0) == end > first:  # a kernel without large pages refuses, and all goes on
        library.madvise(first, end - first, _MADV_HUGEPAGE)


def _may_reserve() -> bool:
    """Says whether addresses without memory are free."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    if any(limit != resource.RLIM_INFINITY for limit in limits):
        return False
    try:
        return _OVERCOMMIT.read_text().strip() != _STRICT
    except OSError:
        return False


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if library is not None and hasattr(library, "gnu_get_libc_version") else None


def _set(options: dict[str, tuple[int, int]]) -> None:
    """Sets options, but for those that the user has set in the environment."""
    library = _glibc()
    if library is None:
        return
    for name, option in options.items():
        if name not in os.environ:
            library.mallopt(*option)
