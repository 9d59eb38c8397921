"""An import's journal, and its progress lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.utils.documents import Json, read_json
from gnnkit.utils.storage import write_atomically

_FILE = "progress.json"
_INTERVAL = 1.0  # seconds between two lines on a terminal
_FILE_INTERVAL = 60.0  # the same in a log file


class Journal:
    """Entries about finished work, from which a later process continues.

    An entry is written after the bytes that it describes.
    """

    def __init__(self, folder: Path, key: str, *, writes: bool = True) -> None:
        """Reads a folder's journal.

        Args:
            folder: the folder in which the import works.
            key: identifies the import and its data.
            writes: whether entries go to disk. False: another process writes the same.
        """
        self.folder, self._writes = folder, writes
        self._path = folder / _FILE
        self._key = key
        self._entries: Json = {}
        stored = self._read()
        self.changed = stored is not None and stored.get("asked") != key  # the folder has another import's journal
        if stored is not None and not self.changed:
            self._entries = dict(stored["facts"])

    def __getitem__(self, name: str) -> Any:
        """Returns an entry, None for work that has not begun."""
        return self._entries.get(name)

    def note(self, **entries: Any) -> None:
        """Adds entries, which are written with the next `write`."""
        self._entries |= entries

    def write(self, **entries: Any) -> None:
        """Adds entries and writes the journal, atomically."""
        self._entries |= entries
        if self._writes:
            write_atomically(self._path, json.dumps({"asked": self._key, "facts": self._entries}).encode())

    def part(self, name: str) -> Journal:
        """Returns the journal for a part of the import, in a subfolder."""
        (self.folder / name).mkdir(exist_ok=True)
        return Journal(self.folder / name, self._key)

    def _read(self) -> Mapping[str, Any] | None:
        try:
            stored = read_json(self._path)
        except UserError:
            return None
        return stored if isinstance(stored, dict) and isinstance(stored.get("facts"), dict) else None


class ProgressReporter:
    """Prints the phase, its progress, and the seconds that are left."""

    def __init__(
        self, heartbeat: Callable[[str], None] = lambda phase: None, *, quiet: bool = False, size: int = 1
    ) -> None:
        """Stores where progress is reported.

        Args:
            heartbeat: called often, with the phase, to report progress.
            quiet: print nothing.
            size: processes that do about as much work as this one.
        """
        self._heartbeat, self._quiet, self._size = heartbeat, quiet, size
        self._terminal = bool(sys.stderr) and sys.stderr.isatty()
        self._phase, self._begun, self._printed, self._done = "", 0.0, 0.0, 0

    def of(self, rank: int, size: int) -> ProgressReporter:
        """Returns a reporter for one process among several. Rank 0 prints for all."""
        return ProgressReporter(self._heartbeat, quiet=self._quiet or rank > 0, size=size)

    def begin(self, phase: str, done: int = 0) -> None:
        """Starts a phase with `done` finished items."""
        self._phase, self._done = phase, done
        self._heartbeat(phase)
        if not self._quiet:
            print(phase, file=sys.stderr, flush=True)
        self._begun = self._printed = time.monotonic()

    def update(self, done: int, total: int | None, items: str) -> None:
        """Reports a phase's progress, at most once a second.

        Args:
            total: Number of all items, None if unknown.
            items: Name of the items, for the line.
        """
        self._heartbeat(self._phase)
        now = time.monotonic()
        if self._quiet or now - self._printed < (_INTERVAL if self._terminal else _FILE_INTERVAL):
            return
        self._printed = now
        of = "" if total is None else f" of {total:,}"
        done *= self._size
        pace = (done - self._done * self._size) / (now - self._begun)
        left = "" if total is None or not pace else f", {max(total - done, 0) / pace:,.0f} s left"
        end = "\r" if self._terminal else "\n"
        print(f"{self._phase}: {done:,}{of} {items}{left}".ljust(79), end=end, file=sys.stderr, flush=True)
