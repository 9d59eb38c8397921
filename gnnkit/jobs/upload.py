"""What the key `upload` needs of a package that copies run folders: `gnnkit.upload`."""

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
from gnnkit.redaction import without_credentials
from gnnkit.result.folder import PREPARED, WORK

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
        """Raises `UserError` before a job that could not be copied there.

        Tries to write, and refuses files that no run has written. If `on_exists` is
        "refuse", it also refuses a run or a checkpoint.
        """

    @abstractmethod
    def fetch_checkpoint(self, folder: Path, *, alone: bool = True) -> None:
        """Fetches the last checkpoint into a run folder that has none.

        Raises `UserError` if both have one, and the one at the URL is newer.

        Args:
            folder: The run folder.
            alone: Whether no other process reads the folder meanwhile. False: raises
                `UserError` instead of fetching. Default: true.
        """

    @abstractmethod
    def put_checkpoints(self, folder: Path, writer: Path | None) -> None:
        """Copies the checkpoints of a run that goes on, the newest one last.

        Args:
            folder: The run folder.
            writer: A folder that is removed when another process takes over the run.
                Nothing changes from then on.
        """

    @abstractmethod
    def put_folder(self, folder: Path) -> None:
        """Copies all `files_of` the run folder, and removes those of an earlier run.

        `store.json` and `result.json` are copied last, so that an interrupted copy has
        none.
        """


def copy_to(url: str) -> FolderCopy:
    """Connects to the URL of the key `upload`. Raises `UserError` if no plugin does."""
    if _PLUGIN not in names("upload"):
        raise unknown_plugin("upload", _PLUGIN, (), f"upload={without_credentials(url)}")
    return typing.cast("FolderCopy", load("upload", _PLUGIN)(url))


def copy_checkpoints(url: str, folder: Path, writer: Path | None) -> None:
    """Copies the checkpoints of a run folder to a URL, or prints why it failed.

    The run goes on, and the next checkpoint is tried again. Arguments:
    `FolderCopy.put_checkpoints`.
    """
    try:
        copy_to(url).put_checkpoints(folder, writer)
    except UserError as error:
        print(f"a checkpoint was not copied, the run goes on: {error}", file=sys.stderr, flush=True)


def files_of(folder: Path) -> list[str]:
    """Lists the files of a run folder that a copy has, relative to the folder."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if path.parts[0] not in (LOCK, WORK, PREPARED)]


def is_of_run(name: str) -> bool:
    """Returns whether a run writes a file of this name, relative to its folder."""
    depth = len(PurePosixPath(name).parts)
    return any(
        fnmatch.fnmatchcase(name, pattern.replace("**/", "")) and ("**" in pattern or depth == pattern.count("/") + 1)
        for pattern in WRITTEN
    )
