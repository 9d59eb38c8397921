"""Copies run folders to object stores, for gnnkit's key `upload`."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from pathlib import Path

import fsspec

from gnnkit.errors import UserError
from gnnkit.jobs.folder import FolderCopy, files_of, is_of_run, locked
from gnnkit.launch.progress import phase, say
from gnnkit.partition.store.manifest import FILE as STORE
from gnnkit.result.result import INPUTS
from gnnkit.training import checkpoint
from gnnkit.utils.redaction import redact, without_credentials
from gnnkit.utils.storage import write_atomically

RESULT = "result.json"
_FIRST = "config.yaml"  # identifies the folder as a run's
_LAST = (STORE, RESULT)  # in this order. A copy without them is incomplete
_CHECKPOINTS, _NEWEST = "checkpoints/last*", "checkpoints/last.json"
_PROBE = ".gnnkit"  # written and removed before the job starts


class ObjectStoreCopy(FolderCopy):
    """A folder of an object store, or of another file system that fsspec supports."""

    def __init__(self, url: str) -> None:
        self.url = without_credentials(url)
        with _as_user_errors(self.url):
            self.system, root = fsspec.core.url_to_fs(url)
            self.root = root.rstrip("/")

    def check(self, on_exists: str) -> None:
        phase("checking the folder of upload")
        with _as_user_errors(self.url):
            self.system.pipe_file(self._at(_PROBE), b"")
            self.system.rm_file(self._at(_PROBE))
            names = self._names()
        if names and _FIRST not in names:
            raise UserError(f"upload={self.url} contains files that do not belong to a run: choose another folder")
        if (RESULT in names or _NEWEST in names) and on_exists == "refuse":
            raise UserError(
                f"upload={self.url} contains a run: choose another folder, or set on_exists=resume or replace"
            )

    def fetch_checkpoint(self, folder: Path, *, alone: bool = True) -> None:
        with _as_user_errors(self.url):
            names = _checkpoints(self._names())
            if _NEWEST not in names:
                return
            newest = self.system.cat_file(self._at(_NEWEST))
            if (folder / _NEWEST).exists():
                self._check_not_newer(folder, newest)
                return
            if not alone:
                raise UserError(
                    f"upload={self.url} has a checkpoint, but {folder} has none, and externally started ranks "
                    "need it at once: copy the remote folder to output first"
                )
            phase(f"copying the last checkpoint of {self.url}")
            with locked(folder):
                for name in (_FIRST, INPUTS, *sorted(names, key=lambda name: name.endswith(".json"))):
                    if name != _NEWEST and self.system.exists(self._at(name)):
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        self.system.get_file(self._at(name), str(folder / name))
                write_atomically(folder / _NEWEST, newest)  # last, since it marks the folder as one to resume

    def _check_not_newer(self, folder: Path, newest: bytes) -> None:
        step, store_step = checkpoint.whole_numbers(folder / _NEWEST).get("global_step", 0), checkpoint.step_of(newest)
        if store_step > step:
            raise UserError(
                f"upload={self.url} has a checkpoint of step {store_step}, but {folder} an older one of step {step}: set "
                "another output, to which the newer one is copied"
            )

    def put_checkpoints(self, folder: Path, writer: Path | None) -> None:
        with _as_user_errors(self.url):
            self._put_checkpoints(folder, writer)

    def _put_checkpoints(self, folder: Path, writer: Path | None) -> None:
        local_names = [path.relative_to(folder).as_posix() for path in sorted(folder.glob(_CHECKPOINTS), reverse=True)]
        store_names = self._names()
        if RESULT in store_names:
            self.system.rm_file(self._at(RESULT))  # the run continues, so the copy is incomplete
        for name in (_FIRST, INPUTS, *sorted(local_names, key=lambda name: (name == _NEWEST, name.endswith(".json")))):
            if writer is not None and not writer.exists():
                return
            path = folder / name
            is_hashed = name in store_names and name.endswith(".safetensors")  # the name contains a hash
            if path.exists() and not (is_hashed and self.system.size(self._at(name)) == path.stat().st_size):
                self.system.put_file(str(path), self._at(name))
        for name in _checkpoints(store_names).difference(local_names):
            self.system.rm_file(self._at(name))

    def put_folder(self, folder: Path) -> None:
        order = [_FIRST, "", *_LAST]  # "" stands for all other files
        names = sorted(files_of(folder), key=lambda name: (order.index(name if name in order else ""), name))
        size = sum((folder / name).stat().st_size for name in names)
        phase(f"copying {len(names)} files, {size / 1e6:.1f} MB, to {self.url}")
        with _as_user_errors(self.url, f": {folder} has all files, but the copy is incomplete"):
            store_names = self._names()
            for name in (*reversed(_LAST), *sorted(store_names.difference(names, _LAST))):
                if name in store_names and is_of_run(name):
                    self.system.rm_file(self._at(name))
            for name in names:
                self.system.put_file(str(folder / name), self._at(name))
        say(f"copied to {self.url}")

    def _names(self) -> set[str]:
        """Lists the files at the URL, relative to it."""
        self.system.invalidate_cache()
        try:
            paths = self.system.find(self.root)
        except FileNotFoundError:
            return set()
        return {path.removeprefix(self.root).lstrip("/") for path in paths} - {""}

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"


def _checkpoints(names: set[str]) -> set[str]:
    """Returns the names of checkpoint files. None of them leads to another folder."""
    return {name for name in fnmatch.filter(names, _CHECKPOINTS) if name.count("/") == 1}


@contextlib.contextmanager
def _as_user_errors(url: str, consequence: str = "") -> Iterator[None]:
    """Raises `UserError` for any error, since each file system has its own classes."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"upload={url}: {error}") from error
    except Exception as error:
        reason = redact(" ".join(str(error).split())) or type(error).__name__
        raise UserError(f"upload={url}: {reason}{consequence}") from error
