"""The memory of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_JOINED = Path("/proc/self/cgroup")  # lines "number:controllers:/path" of the groups of this process
_GROUPS = Path("/sys/fs/cgroup")
_LIMIT = ("memory.max", "memory.limit_in_bytes")  # by version
_USED = ("memory.current", "memory.usage_in_bytes")


def available_memory() -> float:
    """Returns the bytes that processes of this host may still take.

    Heeds the limits of a container, and of a scheduler's control group. Infinite where
    the system does not say.
    """
    found = math.inf
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        found = int(lines["MemAvailable"].split()[0]) * 1024
    for group in _groups():
        for limit, used in zip(_LIMIT, _USED, strict=True):
            with suppress(OSError, ValueError):  # no such file, or the text "max"
                room = int((group / limit).read_text(encoding="ascii")) - int(
                    (group / used).read_text(encoding="ascii")
                )
                files = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                pages = files.get("total_inactive_file", files.get("inactive_file", 0))  # that the system gives back
                found = min(found, room + int(pages))
    return max(found, 0)


def _groups() -> Iterator[Path]:
    """Names the folders of the groups that this process is in, and of those around."""
    lines: list[str] = []
    with suppress(OSError):
        lines = _JOINED.read_text(encoding="utf-8").splitlines()
    for line in ["0::/", "1:memory:/", *lines]:  # the roots are those of a container
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        group = Path(path.strip("/"))
        yield from (_GROUPS / controllers / each for each in (group, *group.parents))
