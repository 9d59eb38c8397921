"""The run folder: a new one or an earlier run's, its lock, and its copy at a URL."""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import re
import shlex
import socket
import sys
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gnnkit.config import RECORD, key_of
from gnnkit.config.settings import Settings, in_ipython
from gnnkit.config.settings.fields import UPLOADED
from gnnkit.errors import Interrupted, UserError, of_disk
from gnnkit.jobs.order import CONFIG_FILE, Order, redact_override, write_configuration, write_record
from gnnkit.launch.progress import say
from gnnkit.launch.signals import if_forced
from gnnkit.partition.store.manifest import FILE as STORE
from gnnkit.plugins import load, names, unknown_plugin
from gnnkit.result.result import INPUTS, PREPARED, WORK
from gnnkit.utils.ranges import local_path
from gnnkit.utils.redaction import without_credentials
from gnnkit.utils.storage import naming

LOCK = ".lock"  # present while a process writes
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # raised by some network file systems


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates a folder and locks it for this process and its forks.

    The operating system releases the lock when they end, even after a crash. If another
    process holds the lock, raises a `UserError` with its process id.
    """
    path = folder / LOCK
    descriptor = _open_locked(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave the lock to forked processes
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """Opens and locks the file. Returns the file descriptor."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {path.parent}: {error.strerror}: set output=FOLDER to a writable folder"
            ) from error
        if descriptor is None:
            continue
        _lock(descriptor, path)
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(descriptor)  # the previous holder has just removed this file


def _open(path: Path) -> int | None:
    """Opens the file. Returns None if another process has just removed its folder."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise
        return None


def _lock(descriptor: int, path: Path) -> None:
    """Locks an open file. Raises `UserError` with the current holder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            say(
                f"{path.parent}: the file system has no locks, so another run can write to this folder at the same time"
            )
            return
        holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise UserError(
            f"cannot use the run folder {path.parent}: {holder} is writing there: wait until it ends, or choose another "
            "folder"
        ) from error


def _is_at(path: Path, descriptor: int) -> bool:
    """Returns whether the open file still has this path."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


_OTHERS = 0o077  # permissions of group and others


@contextmanager
def apply_permissions(permissions: str) -> Iterator[None]:
    """Creates folders as 0700 and files as 0600 under `permissions=private`.

    Under `shared`, the user's umask applies. The umask is a process setting, so it also
    applies to child processes and other threads.
    """
    if permissions == "shared":
        yield
        return
    before = os.umask(_OTHERS)
    os.umask(before | _OTHERS)
    try:
        yield
    finally:
        os.umask(before)


EARLIER = "earlier"  # prefix of numbered folders with the files that a resumed run has moved away
_CONFIG, _CHECKPOINT, _STEPS = CONFIG_FILE, "checkpoints/last.json", "workers.jsonl"
_CHECKPOINTS = "checkpoints/last*.json"  # the newest and its predecessors
_KEPT = (INPUTS, "checkpoints/", "tensorboard/", "wandb/", "mlflow/")  # continued by a resumed run
# Patterns of all files that a run writes. A test compares the list with a run that
# writes everything.
_LINES = Path(__file__).with_name("written.txt").read_text(encoding="utf-8").splitlines()
WRITTEN = tuple(line.partition("  #")[0] for line in _LINES if line[0] != "#")


def named(order: Order) -> Path:
    """Returns the absolute run folder. Raises `UserError` if `output` is not set."""
    if order.named_folder is None:
        raise UserError("on_exists=resume with upload needs output=FOLDER for the fetched checkpoint")
    return local_path("output", order.named_folder, UPLOADED).absolute()


def resume_order(order: Order) -> Order:
    """Returns the order that resumes from the checkpoint in the run folder.

    Applies under `on_exists=resume` if there is a checkpoint. Raises `UserError` for a
    job without checkpoints.
    """
    settings, path = order.settings, order.named_folder
    if path is not None:
        local_path("output", path, UPLOADED)
    if settings.on_exists != "resume" or settings.job.goes_on:
        return order
    if not settings.job.trains:
        raise UserError(f"on_exists=resume: job={settings.job.name} has no checkpoints: use on_exists=replace")
    if settings.trainer.resume is not None:
        raise UserError("on_exists=resume and trainer.resume exclude each other: remove one of them")
    if path is None or not any(local_path("output", path, UPLOADED).glob(_CHECKPOINTS)):
        return order
    trainer = replace(settings.trainer, resume=str(Path(path).absolute()))
    return replace(order, settings=replace(settings, trainer=trainer))


@contextmanager
def lock_folder(order: Order) -> Iterator[Path]:
    """Creates and locks the run folder, and writes nothing.

    If a job fails before its first step, the folder is restored, except for files that
    `on_exists=replace` has deleted.
    """
    path = order.named_folder
    folder = new_folder(Path("outputs")) if path is None else local_path("output", path, UPLOADED).absolute()
    is_new = path is None or not os.path.lexists(folder)
    try:
        with locked(folder):
            _end_writers(folder, order.settings)
            backup = _clear(folder, order.settings)
            try:
                with naming(folder):
                    yield folder
            except (UserError, OSError) as error:
                user_error = of_disk(error) if isinstance(error, OSError) else error
                if user_error is not None and not _took_steps(folder, backup):
                    with suppress(OSError):  # the failing disk may not allow moves either
                        _undo(folder, backup)
                if user_error in (None, error):
                    raise
                raise user_error from error
    except UserError:
        if is_new:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
        raise


@contextmanager
def open_folder(order: Order) -> Iterator[Path]:
    """Creates and locks the run folder, and writes the configuration.

    If training is interrupted, prints the command that resumes it.
    """
    with lock_folder(order) as folder:
        write_configuration(folder, order.settings.composed)
        write_record(folder, order.settings.composed, [redact_override(text) for text in order.overrides])
        try:
            with if_forced(lambda: _report_interrupt(folder, order)):
                yield folder
        except (KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, KeyboardInterrupt) and in_ipython():
                hint = _how_to_go_on(folder, order) if order.settings.job.trains else f"job={order.settings.job.name}"
                raise Interrupted(hint) from None
            _report_interrupt(folder, order)
            raise


def _report_interrupt(folder: Path, order: Order) -> None:
    if order.settings.job.trains:
        print(f"gnnkit: interrupted: {_how_to_go_on(folder, order)}", file=sys.stderr, flush=True)


def _how_to_go_on(folder: Path, order: Order) -> str:
    if order.settings.job.several:
        return f"{folder} keeps the runs: output={shlex.quote(str(folder))} on_exists=resume runs what is missing"
    if not (folder / _CHECKPOINT).is_file():
        return f"no checkpoint was written to {folder} yet"
    from gnnkit.training import resume

    position = resume.position(folder / _CHECKPOINT)
    suffix = "" if position is None else f", of step {position[2]} (epoch {position[0]} done)"
    again = f"output={shlex.quote(str(folder))} on_exists=resume"
    if order.program == "gnnkit":
        folder_keys = ("output", "on_exists", "trainer.resume")
        again = f"{order.command([text for text in order.overrides if key_of(text) not in folder_keys])} {again}"
    return f"{folder} keeps the last checkpoint{suffix}: {again} goes on from there"


def new_folder(base: Path) -> Path:
    """Creates `base/<date>/<time>`, with a suffix if the name is taken."""
    parent = base / time.strftime("%Y-%m-%d")
    stem = time.strftime("%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number, folder = 0, parent / stem
        while True:
            try:
                folder.mkdir()
                return folder.absolute()
            except FileExistsError:
                number += 1
                folder = parent / f"{stem}-{number}"
    except OSError as error:
        raise UserError(f"cannot make a run folder in {parent.absolute()}: {error.strerror}") from error


def _clear(folder: Path, settings: Settings) -> Path | None:
    """Clears an earlier run's folder. Returns the moved files' folder, or None."""
    try:
        if _is_empty(folder) or _goes_on(folder, settings):
            return None
        check_free(folder, settings)
        if settings.on_exists == "resume" and settings.trainer.resume is not None:
            _use_whole_checkpoint(folder)
            _check_unfinished(folder, settings)
            return _move_away(folder)
        if settings.on_exists == "refuse" and _took_steps(folder, None):
            target = _set_aside(folder, list(_list_outputs(folder)))
            say(f"the earlier run in {folder} left no checkpoint and no result: its files are in {target}")
            return target
        _delete(folder)
        if settings.on_exists == "replace":
            say(f"on_exists=replace: deleted the files of the earlier run in {folder}")
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return None


def _goes_on(folder: Path, settings: Settings) -> bool:
    """Returns whether the folder holds an interrupted job that this one continues."""
    if not settings.job.goes_on or settings.on_exists == "replace" or (folder / STORE).exists():
        return False
    config = folder / _CONFIG
    return (
        config.is_file()
        and re.search(rf"^job: {settings.job.name}\b", config.read_text(encoding="utf-8"), re.M) is not None
    )


def _is_empty(folder: Path) -> bool:
    return all(path.name == LOCK for path in folder.iterdir())


def _end_writers(folder: Path, settings: Settings) -> None:
    """Prevents surviving ranks of an earlier run from saving checkpoints.

    Raises `UserError` if one has saved since `resume_order` was called.
    """
    if not any((folder / _CHECKPOINT).parent.glob(".writer-*")):
        return
    from gnnkit.training import checkpoint

    checkpoint.end_writers(folder / _CHECKPOINT)
    if settings.on_exists == "resume" and settings.trainer.resume is None and any(folder.glob(_CHECKPOINTS)):
        raise UserError(f"on_exists=resume: an earlier run has just saved its first checkpoint in {folder}: try again")


def _use_whole_checkpoint(folder: Path) -> None:
    """Skips damaged checkpoints that are newer than a valid one, and prints them."""
    from gnnkit.training import checkpoint

    is_whole, problems = checkpoint.use_newest_whole(folder / _CHECKPOINT)
    for problem in problems if is_whole else ():
        say(f"on_exists=resume: {problem}, resuming from the previous checkpoint")


def _check_unfinished(folder: Path, settings: Settings) -> None:
    """Raises `UserError` for a finished run with no step left."""
    from gnnkit.training import resume

    keys = settings.trainer
    assert keys.resume is not None
    reason = resume.nothing_left(resume.load(keys.resume), keys.max_epochs, keys.monitor, keys.patience)
    if reason is not None and (folder / "result.json").is_file():
        raise UserError(
            f"on_exists=resume: the run in {folder} is finished and its results stay: {reason}, ask for more to go on, or "
            "choose on_exists=replace"
        )


def check_free(folder: Path, settings: Settings) -> None:
    """Raises `UserError` for a folder that must not be overwritten."""
    if not folder.is_dir() or _is_empty(folder):
        return
    if not (folder / _CONFIG).is_file():
        raise UserError(f"cannot make the run folder {folder}: it holds files that are not a run's")
    if settings.on_exists == "refuse" and _is_kept(folder):
        resumes = settings.job.trains or settings.job.goes_on
        resume = "on_exists=resume to go on from the last checkpoint there, " if resumes else ""
        raise UserError(
            f"cannot make the run folder {folder}: it holds a run: choose another folder, {resume}or on_exists=replace"
        )


def _is_kept(folder: Path) -> bool:
    """Returns whether a run left files that another run or job can use."""
    patterns = ("result.json", "results.json", STORE, _CHECKPOINTS, f"{WORK}/*.json")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _list_outputs(folder: Path) -> Iterator[Path]:
    """Yields the files in a run folder that match `WRITTEN`."""
    for pattern in WRITTEN:
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_symlink() or not path.is_dir())


def _delete(folder: Path) -> None:
    """Deletes a run's files, and folders that become empty."""
    for run_folder in (folder, *sorted(folder.glob(f"{EARLIER}-*"))):
        paths = list(_list_outputs(run_folder))
        for path in paths:
            path.unlink()
        _remove_empty(run_folder, paths)


def _took_steps(folder: Path, backup: Path | None) -> bool:
    """Returns whether a job has taken a step or saved. Arguments as in `_undo`."""
    steps = folder / _STEPS
    if any((folder / WORK).glob("*.json")):  # a journal, from which the same job resumes
        return True
    return (steps.is_file() and steps.stat().st_size > 0) or (backup is None and any(folder.glob(_CHECKPOINTS)))


def _undo(folder: Path, backup: Path | None) -> None:
    """Deletes a failed job's files, and moves earlier results back.

    Args:
        folder: The run folder.
        backup: From `_move_away`, or None if the folder was empty.
    """
    if backup is None:
        _delete(folder)
        return
    for path in _results(folder):
        path.unlink()
    _move(backup, folder, list(_list_outputs(backup)))


def _move_away(folder: Path) -> Path:
    """Moves an earlier run's files away, except those that the resumed run needs."""
    target = _set_aside(folder, _results(folder))
    say(f"on_exists=resume: goes on from {folder / _CHECKPOINT}, earlier results are in {target}")
    return target


def _set_aside(folder: Path, paths: Sequence[Path]) -> Path:
    """Moves files to a new folder inside the run folder, and returns it."""
    target = folder / f"{EARLIER}-{1 + sum(1 for _ in folder.glob(f'{EARLIER}-*'))}"
    _move(folder, target, paths)
    return target


def _results(folder: Path) -> list[Path]:
    """Lists a run's files that a resumed run does not continue."""
    return [path for path in _list_outputs(folder) if not path.relative_to(folder).as_posix().startswith(_KEPT)]


def _move(source: Path, target: Path, paths: Sequence[Path]) -> None:
    """Moves files to the same relative paths in another folder."""
    for path in paths:
        destination = target / path.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        path.rename(destination)
    _remove_empty(source, paths)


def _remove_empty(folder: Path, paths: Sequence[Path]) -> None:
    """Removes empty folders next to and above deleted files, innermost first."""
    tops = {folder / path.relative_to(folder).parts[0] for path in paths} | {folder / WORK, folder / RECORD}
    folders = {path for top in tops for path in (top, *top.rglob("*")) if path.is_dir() and not path.is_symlink()}
    folders |= {folder} if folder.name.startswith(f"{EARLIER}-") else set()
    for folder_path in sorted(folders, key=lambda path: -len(path.parts)):
        if not any(folder_path.iterdir()):
            folder_path.rmdir()


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
