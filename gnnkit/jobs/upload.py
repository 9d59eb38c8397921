"""A copy of the run folder at a URL: checkpoints as they come, all else at the end."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gnnkit.errors import UserError
from gnnkit.jobs.folder import WRITTEN
from gnnkit.jobs.lock import NAME as LOCK
from gnnkit.jobs.lock import locked
from gnnkit.launch.phases import phase, say
from gnnkit.redaction import redact, without_credentials
from gnnkit.result.folder import INPUTS, PREPARED, WORK
from gnnkit.storage import write_atomically
from gnnkit.store.manifest import FILE as STORE

RESULT = "result.json"
_FIRST = "config.yaml"  # says that the folder is a run's
_LAST = (STORE, RESULT)  # in this order. Without these a copy is not whole
_CHECKPOINTS, _NEWEST = "checkpoints/last*", "checkpoints/last.json"
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
        folder that must not be written to, and for one that holds a run or its
        checkpoint, if `on_exists` is "refuse".
        """
        phase("asking for the folder of upload")
        upload = Upload._at_url(url)
        told = upload.url
        with _told(told):
            upload.system.pipe_file(upload._at(_PROBE), b"")
            upload.system.rm_file(upload._at(_PROBE))
            names = upload._names()
        if names and _FIRST not in names:
            raise UserError(f"upload={told} holds other files than those of a run: choose another folder")
        if (RESULT in names or _NEWEST in names) and on_exists == "refuse":
            raise UserError(f"upload={told} holds a run: choose another folder, or on_exists=resume or replace")
        return upload

    @staticmethod
    def _at_url(url: str) -> Upload:
        told = without_credentials(url)
        with _told(told):
            import fsspec

            system, root = fsspec.core.url_to_fs(url)
            return Upload(told, system, root.rstrip("/"))

    def bring(self, folder: Path, *, alone: bool = True) -> None:
        """Brings the checkpoints there to a run folder that has none.

        Raises `UserError` where both have some, and those there are newer.

        Args:
            folder: The run folder.
            alone: Whether no other process looks into the folder meanwhile. False:
                raises `UserError` in place of a copy. Default: true.
        """
        with _told(self.url):
            there = _checkpoints(self._names())
            if _NEWEST not in there:
                return None
            newest = self.system.cat_file(self._at(_NEWEST))
            if (folder / _NEWEST).exists():
                return self._check_newer(folder / _NEWEST, newest)
            if not alone:
                raise UserError(
                    f"upload={self.url} has a checkpoint, and {folder} none. These ranks were started from outside and "
                    "look for it at once: copy the folder there to output before"
                )
            phase(f"copying the last checkpoint of {self.url}")
            with locked(folder):
                for name in (_FIRST, INPUTS, *sorted(there, key=lambda name: name.endswith(".json"))):
                    if name != _NEWEST and self.system.exists(self._at(name)):
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        self.system.get_file(self._at(name), str(folder / name))
                write_atomically(folder / _NEWEST, newest)  # last, as it makes the folder that of a run to go on with
        return None

    def _check_newer(self, here: Path, there: bytes) -> None:
        from gnnkit.training import checkpoint

        steps = checkpoint.whole_numbers(here).get("global_step", 0), checkpoint.step_of(there)
        if steps[1] > steps[0]:
            raise UserError(
                f"upload={self.url} has a checkpoint of step {steps[1]}, and {here.parent.parent} an older one of step "
                f"{steps[0]}: name another output, which gets the newer one"
            )

    def put_checkpoints(self, folder: Path, writer: Path | None) -> None:
        """Copies the checkpoints of a run that goes on, the newest last.

        Args:
            folder: The run folder.
            writer: Folder of `checkpoint.writing`. Nothing changes where it is gone.
        """
        own = [path.relative_to(folder).as_posix() for path in sorted(folder.glob(_CHECKPOINTS), reverse=True)]
        there = self._names()
        if RESULT in there:
            self.system.rm_file(self._at(RESULT))  # the run goes on, so the copy is not whole
        for name in (_FIRST, INPUTS, *sorted(own, key=lambda name: (name == _NEWEST, name.endswith(".json")))):
            if writer is not None and not writer.exists():
                return
            path = folder / name
            same = name in there and name.endswith(".safetensors")  # named by its hash
            if path.exists() and not (same and self.system.size(self._at(name)) == path.stat().st_size):
                self.system.put_file(str(path), self._at(name))
        for name in _checkpoints(there).difference(own):
            self.system.rm_file(self._at(name))

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


def copy_checkpoints(url: str, folder: Path, writer: Path | None) -> None:
    """Copies the checkpoints of a run folder to a URL, or says in a line why not.

    The run goes on, and the next checkpoint is tried again. Arguments as those of
    `Upload.put_checkpoints`.
    """
    told = without_credentials(url)
    try:
        with _told(told):
            Upload._at_url(url).put_checkpoints(folder, writer)
    except UserError as problem:
        print(f"a checkpoint was not copied, the run goes on: {problem}", file=sys.stderr, flush=True)


def _checkpoints(names: set[str]) -> set[str]:
    """Returns the names of the files of checkpoints, none of which leads elsewhere."""
    return {name for name in fnmatch.filter(names, _CHECKPOINTS) if name.count("/") == 1}


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
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"upload={url}: {error}") from error
    except Exception as error:
        why = redact(" ".join(str(error).split())) or type(error).__name__
        raise UserError(f"upload={url}: {why}{kept}") from error
