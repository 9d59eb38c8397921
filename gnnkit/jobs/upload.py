"""The key `upload`, and the interface of plugins that copy run folders."""

from __future__ import annotations

import fnmatch
import sys
import typing
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

from gnnkit.errors import UserError
from gnnkit.jobs.folder import WRITTEN
from gnnkit.jobs.lock import NAME as LOCK
from gnnkit.plugins import load, names, unknown_plugin
from gnnkit.result.folder import PREPARED, WORK
from gnnkit.utils.redaction import without_credentials

_PLUGIN = "fsspec"


class FolderCopy(ABC):
    """A copy of a run folder at a URL, made by the leader.

    Errors are `UserError`s that begin with `upload=URL`, without credentials.
    """

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Connects to the URL."""

    @abstractmethod
    def check(self, on_exists: str) -> None:
        """Raises `UserError` before a job whose folder could not be copied.

        Writes a test file, and rejects a URL with files that are not a run's. If
        `on_exists` is "refuse", it also rejects a run or a checkpoint.
        """

    @abstractmethod
    def fetch_checkpoint(self, folder: Path, *, alone: bool = True) -> None:
        """Fetches the last checkpoint into a run folder without one.

        Raises `UserError` if both have one, and the one at the URL is newer.

        Args:
            folder: The run folder.
            alone: Whether no other process reads the folder at the same time. If false,
                raises `UserError` instead of fetching. Default: true.
        """

    @abstractmethod
    def put_checkpoints(self, folder: Path, writer: Path | None) -> None:
        """Copies the checkpoints of a running job, the newest one last.

        Args:
            folder: The run folder.
            writer: A folder that disappears when another process takes over the run.
                Nothing is copied from then on.
        """

    @abstractmethod
    def put_folder(self, folder: Path) -> None:
        """Copies all `files_of` the run folder, and deletes an earlier run's files.

        `store.json` and `result.json` are copied last, so that an interrupted copy has
        neither.
        """


def copy_to(url: str) -> FolderCopy:
    """Connects to the URL of `upload`. Raises `UserError` without a plugin."""
    if _PLUGIN not in names("upload"):
        raise unknown_plugin("upload", _PLUGIN, (), f"upload={without_credentials(url)}")
    return typing.cast("FolderCopy", load("upload", _PLUGIN)(url))


def copy_checkpoints(url: str, folder: Path, writer: Path | None) -> None:
    """Copies the checkpoints of a run folder to a URL, or prints the error.

    The run continues after an error, and the upload is retried with the next
    checkpoint. Takes the arguments of `FolderCopy.put_checkpoints`.
    """
    try:
        copy_to(url).put_checkpoints(folder, writer)
    except UserError as error:
        print(f"a checkpoint was not copied, the run continues: {error}", file=sys.stderr, flush=True)


def files_of(folder: Path) -> list[str]:
    """Lists the files of a run folder that are copied, as relative paths."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if path.parts[0] not in (LOCK, WORK, PREPARED)]


def is_of_run(name: str) -> bool:
    """Returns whether a run writes a file with this relative path."""
    depth = len(PurePosixPath(name).parts)
    return any(
        fnmatch.fnmatchcase(name, pattern.replace("**/", "")) and ("**" in pattern or depth == pattern.count("/") + 1)
        for pattern in WRITTEN
    )
