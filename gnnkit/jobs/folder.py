"""The run folder: a new one, or an earlier run's according to `on_exists`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gnnkit.config import RECORD, key_of
from gnnkit.config.settings import Settings, in_ipython
from gnnkit.config.settings.values import UPLOADED
from gnnkit.errors import Interrupted, UserError
from gnnkit.jobs.lock import NAME as LOCK
from gnnkit.jobs.lock import locked
from gnnkit.jobs.order import CONFIG_FILE, Order, redact_override, write_configuration, write_record
from gnnkit.launch.phases import say
from gnnkit.launch.signals import if_forced
from gnnkit.partition.store.manifest import FILE as STORE
from gnnkit.result.folder import INPUTS, LABELS, TOP, VECTORS, WORDS, WORK
from gnnkit.utils.ranges import local_path
from gnnkit.utils.storage import naming, of_disk

EARLIER = "earlier"  # prefix of numbered folders with the files that a resumed run has moved away
_CONFIG, _CHECKPOINT, _STEPS = CONFIG_FILE, "checkpoints/last.json", "workers.jsonl"
_CHECKPOINTS = "checkpoints/last*.json"  # the newest and its predecessors
_KEPT = (INPUTS, "checkpoints/", "tensorboard/", "wandb/", "mlflow/")  # continued by a resumed run
_TABLES = ("predictions", "values", "logits", "probabilities", "embeddings", "explained_*")
# All files that a run writes. A test compares the list with a run that writes
# everything.
WRITTEN = (
    STORE,  # first, because a store is invalid without its manifest
    _CONFIG,
    "result.json",
    "results.json",  # this and the next one: written by comparisons
    "results.csv",
    "*.safetensors",
    *(f"{name}.{suffix}" for name in _TABLES for suffix in ("npy", "parquet", "csv")),
    "node_ids.npy",
    "embedding.npy",
    TOP,
    f"{VECTORS}/*.npy",
    WORDS,
    "classes.json",
    INPUTS,
    LABELS,
    "coordination.json",
    _STEPS,
    "epochs.jsonl",
    "partition.json",
    "trace.json",
    "failure-*.txt",
    "report.html",
    "figures/*.svg",
    "figures/*.png",  # written by earlier versions
    f"{RECORD}/*.yaml",
    "checkpoints/last*",
    "checkpoints/.writer-*/*",
    "csv/*.csv",
    "csv/hparams.yaml",
    "tensorboard/events.*",
    "tensorboard/hparams.yaml",
    "wandb/**/*",
    "mlflow/**/*",
    "partition/**/*.npy",
    "partition/**/meta.json",
    "parts/**/*.npy",
    "parts/**/meta.json",
    f"{WORK}/**/*.npy",
    f"{WORK}/**/*.json",
    f"{WORK}/**/*.records",
    f"{WORK}/**/*.read",
    "prepared/**/*.npy",
    "prepared/**/meta.json",
)


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
