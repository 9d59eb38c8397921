"""Memory available on this machine."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.utils.documents import read_or_empty

_MEMORY = Path("/proc/meminfo")
_JOINED = Path("/proc/self/cgroup")  # lines "number:controllers:/path", one per control group of this process
_GROUPS = Path("/sys/fs/cgroup")
_ADDRESSES = Path("/proc/self/statm")  # pages of this process's address space
_LIMIT = ("memory.max", "memory.limit_in_bytes")  # by cgroup version
_SMALL = 2**27  # bytes assumed to be available, because reading the limits takes a millisecond
_USED = ("memory.current", "memory.usage_in_bytes")


def available_memory() -> float:
    """Returns the bytes that processes on this host may still allocate.

    Respects the limits of containers, of schedulers' control groups, and of this
    process (`ulimit -v`). Infinite if unknown.
    """
    available = math.inf
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and (num_pages := read_or_empty(_ADDRESSES).split()[:1]):
        available = addresses - int(num_pages[0]) * resource.getpagesize()
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        available = min(available, int(lines["MemAvailable"].split()[0]) * 1024)
    for group in _groups():
        for limit, usage in zip(_LIMIT, _USED, strict=True):
            with suppress(OSError, ValueError):  # the file is missing, or contains "max"
                maximum, now = (int((group / name).read_text(encoding="ascii")) for name in (limit, usage))
                files = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                pages = files.get("total_inactive_file", files.get("inactive_file", 0))  # reclaimable by the system
                available = min(available, maximum - now + int(pages))
    return max(available, 0)


def check_memory(setting: str, num_bytes: float) -> None:
    """Raises `UserError` if `setting`, a key with its value, needs too much memory."""
    if num_bytes < _SMALL:
        return
    available = available_memory()
    if num_bytes > available:
        raise UserError(
            f"{setting} needs {num_bytes / 1e9:.3g} GB of memory, but {available / 1e9:.3g} GB are available"
        )


def _groups() -> Iterator[Path]:
    """Yields the folders of this process's control groups, and their parents."""
    for line in ["0::/", "1:memory:/", *read_or_empty(_JOINED).splitlines()]:  # the roots are a container's own groups
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        group = Path(path.strip("/"))
        yield from (_GROUPS / controllers / folder for folder in (group, *group.parents))
