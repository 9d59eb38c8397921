"""An import's journal, and its progress lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.progress import progress
from gnnkit.utils.documents import Json, read_json
from gnnkit.utils.storage import write_atomically

_FILE = "progress.json"
_INTERVAL = 1.0  # seconds between two lines on a terminal
_FILE_INTERVAL = 60.0  # the same in a log file


class Journal:
    """Entries about finished passes, from which a later process continues.

    An entry is written after the bytes that it describes. An interrupted pass is
    repeated.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """Reads a folder's journal.

        Args:
            folder: the folder in which the import works.
            key: identifies the import and its data.
        """
        self.folder, self._path = folder, folder / _FILE
        self._key = key
        self._entries: Json = {}
        stored = self._read()
        self.changed = stored is not None and stored.get("asked") != key  # the folder has another import's journal
        if stored is not None and not self.changed:
            self._entries = dict(stored["facts"])

    def __getitem__(self, name: str) -> Any:
        """Returns an entry, or None for an unfinished pass."""
        return self._entries.get(name)

    def note(self, **entries: Any) -> None:
        """Adds entries, which are written with the next `write`."""
        self._entries |= entries

    def write(self, **entries: Any) -> None:
        """Adds entries and writes the journal, atomically."""
        self._entries |= entries
        write_atomically(self._path, json.dumps({"asked": self._key, "facts": self._entries}).encode())

    def _read(self) -> Mapping[str, Any] | None:
        try:
            stored = read_json(self._path)
        except UserError:
            return None
        return stored if isinstance(stored, dict) and isinstance(stored.get("facts"), dict) else None


class ProgressReporter:
    """Prints the phase, its progress, and the seconds that are left."""

    def __init__(self, *, quiet: bool = False, size: int = 1) -> None:
        """Stores what is printed.

        Args:
            quiet: print nothing.
            size: processes that do about as much work as this one.
        """
        self._quiet, self._size = quiet, size
        self._terminal = bool(sys.stderr) and sys.stderr.isatty()
        self._phase, self._begun, self._printed = "", 0.0, 0.0

    def of(self, rank: int, size: int) -> ProgressReporter:
        """Returns a reporter for one process among several. Rank 0 prints for all."""
        return ProgressReporter(quiet=self._quiet or rank > 0, size=size)

    def begin(self, phase: str) -> None:
        """Starts a phase."""
        self._phase = phase
        progress(phase)
        if not self._quiet:
            print(phase, file=sys.stderr, flush=True)
        self._begun = self._printed = time.monotonic()

    def update(self, done: int, total: int | None, items: str) -> None:
        """Reports a phase's progress, at most once a second.

        Args:
            total: Number of all items, None if unknown.
            items: Name of the items, for the line.
        """
        progress(self._phase)
        now = time.monotonic()
        if self._quiet or now - self._printed < (_INTERVAL if self._terminal else _FILE_INTERVAL):
            return
        self._printed = now
        of = "" if total is None else f" of {total:,}"
        done *= self._size
        pace = done / (now - self._begun)
        left = "" if total is None or not pace else f", {max(total - done, 0) / pace:,.0f} s left"
        end = "\r" if self._terminal else "\n"
        print(f"{self._phase}: {done:,}{of} {items}{left}".ljust(79), end=end, file=sys.stderr, flush=True)
