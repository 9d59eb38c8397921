"""A copy of the run folder at a URL, made when the job has ended."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gnnkit.errors import UserError
from gnnkit.jobs.folder import WRITTEN
from gnnkit.jobs.lock import NAME as LOCK
from gnnkit.jobs.redacted import without_credentials
from gnnkit.launch.phases import phase, say
from gnnkit.result.folder import PREPARED, WORK
from gnnkit.store.manifest import FILE as STORE

RESULT = "result.json"
_FIRST = "config.yaml"  # says that the folder is a run's
_LAST = (STORE, RESULT)  # in this order. Without these a copy is not whole
_PROBE = ".gnnkit"  # written and removed before the job starts


@dataclass(frozen=True, slots=True)
class Upload:
    """A folder of an object store, or of another system that fsspec reaches."""

    url: str  # without credentials, for people
    system: Any  # of fsspec
    root: str  # the folder there

    @staticmethod
    def of(url: str, on_exists: str) -> Upload:
        """Connects, and writes and removes a file, so that no job trains in vain.

        Raises `UserError` for a system that is not installed or does not answer, for a
        folder that must not be written to, and for one that holds a run, if `on_exists`
        is "refuse".
        """
        phase("asking for the folder of upload")
        told = without_credentials(url)
        with _told(told):
            import fsspec

            system, root = fsspec.core.url_to_fs(url)
            system.invalidate_cache()
            upload = Upload(told, system, root.rstrip("/"))
            system.pipe_file(upload._at(_PROBE), b"")
            system.rm_file(upload._at(_PROBE))
            names = upload._names()
        if names and _FIRST not in names:
            raise UserError(f"upload={told} holds other files than those of a run: choose another folder")
        if RESULT in names and on_exists == "refuse":
            raise UserError(f"upload={told} holds a run: choose another folder, or on_exists=resume or replace")
        return upload

    def copy(self, folder: Path) -> None:
        """Copies the files of a run folder, and removes those of an earlier run.

        Result and manifest come last, so a copy that was interrupted has none. Raises
        `UserError` that says where the files are.
        """
        order = [_FIRST, "", *_LAST]  # "": all others
        names = sorted(_files(folder), key=lambda name: (order.index(name if name in order else ""), name))
        size = sum((folder / name).stat().st_size for name in names)
        phase(f"copying {len(names)} files, {size / 1e6:.1f} MB, to {self.url}")
        with _told(self.url, f": {folder} has all files, and the copy is not whole"):
            there = self._names()
            for name in (*reversed(_LAST), *sorted(there.difference(names, _LAST))):
                if name in there and _is_written(name):
                    self.system.rm_file(self._at(name))
            for name in names:
                self.system.put_file(str(folder / name), self._at(name))
        say(f"copied to {self.url}")

    def _names(self) -> set[str]:
        """Lists the files that are there, below the folder."""
        self.system.invalidate_cache()
        try:
            found = self.system.find(self.root)
        except FileNotFoundError:
            return set()
        return {path.removeprefix(self.root).lstrip("/") for path in found} - {""}

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"


def _files(folder: Path) -> Iterator[str]:
    """Yields the files of a run folder that a copy has, relative to the folder."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in (LOCK, WORK, PREPARED):
            yield name.as_posix()


def _is_written(name: str) -> bool:
    """Tells whether a run writes a file of this name."""
    depth = len(PurePosixPath(name).parts)
    return any(
        fnmatch.fnmatchcase(name, pattern.replace("**/", "")) and ("**" in pattern or depth == pattern.count("/") + 1)
        for pattern in WRITTEN
    )


@contextlib.contextmanager
def _told(url: str, kept: str = "") -> Iterator[None]:
    """Tells errors of any kind, as each file system has kinds of its own."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"upload={url}: {error}") from error
    except Exception as error:
        why = without_credentials(" ".join(str(error).split())) or type(error).__name__
        raise UserError(f"upload={url}: {why}{kept}") from error
