"""The memory of this machine."""

from __future__ import annotations

import math
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))  # of a container, by version
_LIMIT = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")


def available_memory() -> float:
    """Returns the bytes that processes of this host may still take.

    Heeds the limit of a container. Infinite where the system does not say.
    """
    found = math.inf
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        found = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    for group, limit, used in zip(_GROUPS, _LIMIT, _USED, strict=True):
        try:
            room = int((group / limit).read_text(encoding="ascii")) - int((group / used).read_text(encoding="ascii"))
            files = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            found = min(found, room + int(files.get("inactive_file", 0)))  # pages that the system gives back
        except (OSError, ValueError):  # no container, or the text "max"
            continue
    return max(found, 0)
