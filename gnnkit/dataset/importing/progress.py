"""What an import has done so far, on disk, and what it says about that."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.documents import read_json
from gnnkit.errors import UserError
from gnnkit.storage import write_atomically

_FILE = "progress.json"
_TELL = 1.0  # seconds between two lines of a terminal
_TELL_FILE = 60.0  # the same where nobody looks


class Journal:
    """Facts about finished work, that a later process goes on from.

    A fact is written after the bytes that it speaks of.
    """

    def __init__(self, folder: Path, asked: str, *, keeps: bool = True) -> None:
        """Opens the journal of a folder.

        Args:
            folder: where the import works.
            asked: tells this import and its sources apart from others.
            keeps: whether facts go to disk. Otherwise another process writes the same.
        """
        self.folder, self._keeps = folder, keeps
        self._path = folder / _FILE
        self._asked = asked
        self._facts: dict[str, Any] = {}
        found = self._read()
        self.changed = found is not None and found.get("asked") != asked  # another import was here
        if found is not None and not self.changed:
            self._facts = dict(found["facts"])

    def __getitem__(self, name: str) -> Any:
        """Returns a fact, None for work that is not begun."""
        return self._facts.get(name)

    def note(self, **facts: Any) -> None:
        """Adds facts that the next write brings to disk."""
        self._facts |= facts

    def write(self, **facts: Any) -> None:
        """Adds facts, all at once."""
        self._facts |= facts
        if self._keeps:
            write_atomically(self._path, json.dumps({"asked": self._asked, "facts": self._facts}).encode())

    def of(self, name: str) -> Journal:
        """Returns the journal of a part of the import, in a folder below."""
        (self.folder / name).mkdir(exist_ok=True)
        return Journal(self.folder / name, self._asked)

    def _read(self) -> Mapping[str, Any] | None:
        try:
            found = read_json(self._path)
        except UserError:
            return None
        return found if isinstance(found, dict) and isinstance(found.get("facts"), dict) else None


class Teller:
    """Lines about the phase, how far it is, and the seconds that are left."""

    def __init__(self, sign: Callable[[str], None] = lambda phase: None, *, quiet: bool = False, size: int = 1) -> None:
        """Keeps where to tell.

        Args:
            sign: called with the phase, often, as a sign of progress.
            quiet: whether to print nothing.
            size: processes, each of which does about as much as this one.
        """
        self._sign, self._quiet, self._size = sign, quiet, size
        self._terminal = bool(sys.stderr) and sys.stderr.isatty()
        self._phase, self._begun, self._told, self._from = "", 0.0, 0.0, 0

    def of(self, member: int, size: int) -> Teller:
        """Returns what one of several processes tells with. The first tells for all."""
        return Teller(self._sign, quiet=self._quiet or member > 0, size=size)

    def begin(self, phase: str, done: int = 0) -> None:
        """Begins a phase, of which some is done already."""
        self._phase, self._from = phase, done
        self._sign(phase)
        if not self._quiet:
            print(phase, file=sys.stderr, flush=True)
        self._begun = self._told = time.monotonic()

    def tell(self, done: int, total: int | None, what: str) -> None:
        """Says how far the phase is, at most once a second.

        Args:
            done: things that are done.
            total: all things, or None where nobody knows.
            what: the things.
        """
        self._sign(self._phase)
        now = time.monotonic()
        if self._quiet or now - self._told < (_TELL if self._terminal else _TELL_FILE):
            return
        self._told = now
        of = "" if total is None else f" of {total:,}"
        done *= self._size
        pace = (done - self._from * self._size) / (now - self._begun)
        left = "" if total is None or not pace else f", {max(total - done, 0) / pace:,.0f} s left"
        end = "\r" if self._terminal else "\n"
        print(f"{self._phase}: {done:,}{of} {what}{left}".ljust(79), end=end, file=sys.stderr, flush=True)
