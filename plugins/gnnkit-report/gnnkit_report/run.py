"""Reads and checks a run folder's files, none of which is trusted."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.result.folder import CLASSES, COORDINATION, EPOCHS, PICTURE, WORDS
from gnnkit.utils.documents import (
    MAX_JSON,
    check_regular,
    number,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_object,
)
from gnnkit.utils.storage import Array, read_npy

RESULT, CONFIG, PREDICTIONS = "result.json", "config.yaml", "predictions.npy"
MAX_NAME = 100  # characters of a class name
MAX_WORDS = 1 << 16  # entries in the matrix of words
MAX_BYTES = MAX_JSON  # limit for reading `epochs.jsonl`
KINDS = ("wait", "compute", "exchange", "sync")


@dataclass(frozen=True, slots=True, eq=False)
class RunFiles:
    """A run folder's content."""

    folder: Path
    result: Mapping[str, Any]
    config: str  # YAML
    epochs: tuple[Mapping[str, Any], ...]  # one per epoch, from `epochs.jsonl`
    evaluations: tuple[Mapping[str, Any], ...]
    partition: Mapping[str, Any]  # empty if the file does not exist
    notes: tuple[str, ...] = ()  # read errors
    decision: Mapping[str, Any] = field(default_factory=dict)  # the leader's decision on the layout
    predictions: tuple[int, ...] = ()  # predicted class of each sampled node, or empty
    class_names: tuple[str, ...] = ()  # empty: classes are numbers
    words: list[list[float]] = field(default_factory=list)  # [from][to], or empty

    def number(self, *path: str) -> float | None:
        """Returns a figure from `result.json`, or None if it is not a finite number."""
        node: Any = self.result
        for key in path:
            node = node.get(key) if isinstance(node, Mapping) else None
        return number(node)


def settings(run: RunFiles) -> Any:
    """Returns the configuration as plain data, or None if it cannot be read."""
    return _parse(run.config)


@functools.lru_cache(maxsize=1)  # called several times per page
def _parse(config: str) -> Any:
    try:
        return parse_yaml(config, CONFIG)
    except UserError:
        return None


def section(run: RunFiles, name: str) -> Mapping[str, Any]:
    """Returns a configuration section, or an empty one."""
    config = settings(run)
    values = config.get(name) if isinstance(config, Mapping) else None
    return values if isinstance(values, Mapping) else {}


def numbers(value: object) -> list[float]:
    """Returns a list of finite numbers, empty for anything else."""
    items = [number(item) for item in value] if isinstance(value, list) else []
    return [item for item in items if item is not None] if None not in items else []


def matrix(value: object) -> list[list[float]]:
    """Returns a square table of finite numbers, empty for anything else."""
    rows = [numbers(row) for row in value] if isinstance(value, list) else []
    return rows if rows and all(len(row) == len(rows) for row in rows) else []


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder. Raises `UserError` if there is no result.

    Other files may be missing or damaged, which is reported in `RunFiles.notes`.
    """
    result = _mapping(folder, RESULT)
    if result is None:
        raise UserError(f"runs={folder}: there is no {RESULT}: choose the folder of a completed run")
    return read_folder(folder, result)


def read_folder(folder: Path, result: Mapping[str, Any]) -> RunFiles:
    """Reads all other files in a run folder.

    Args:
        folder: The folder of a run, possibly an unfinished one.
        result: The known figures.
    """
    notes: list[str] = []
    lines = list(_lines(folder, notes))
    epochs = {int(line["epoch"]): line for line in lines if "train_loss" in line}  # of a repeated epoch, the last
    evaluations = {int(line["epoch"]): line for line in lines if isinstance(line.get("figures"), Mapping)}
    partition = _read_object(folder, PICTURE, notes)
    decision = _read_object(folder, COORDINATION, notes).get("decision")
    predictions = _predictions(folder, partition, notes)
    config = _config(folder, notes)
    return RunFiles(
        folder,
        result,
        config,
        tuple(epochs[key] for key in sorted(epochs)),
        tuple(evaluations[key] for key in sorted(evaluations)),
        partition,
        tuple(notes),
        decision if isinstance(decision, Mapping) else {},
        predictions,
        _class_names(folder),
        matrix(_array(folder / WORDS, notes, MAX_WORDS).tolist()),
    )


def _read_object(folder: Path, name: str, notes: list[str]) -> Mapping[str, Any]:
    """Reads a JSON object, or an empty one. A damaged file adds a note."""
    try:
        return _mapping(folder, name) or {}
    except UserError as error:
        notes.append(str(error))
        return {}


def _predictions(folder: Path, partition: Mapping[str, Any], notes: list[str]) -> tuple[int, ...]:
    """Reads the sampled nodes' predicted classes. Raises nothing."""
    sample, path = partition.get("sample"), folder / PREDICTIONS
    nodes = numbers(sample.get("nodes")) if isinstance(sample, Mapping) else []
    if not nodes or not path.exists():
        return ()
    classes = _array(path, notes)
    if classes.ndim != 1 or classes.dtype.kind != "i" or not all(0 <= node < len(classes) for node in nodes):
        return ()
    return tuple(int(classes[int(node)]) for node in nodes)


def _array(path: Path, notes: list[str], max_size: float = math.inf) -> Array:
    """Reads an array, or an empty one without a file or above `max_size` entries.

    Raises nothing. A damaged file adds a note.
    """
    empty = np.zeros(0)
    if not path.exists():
        return empty
    try:
        array = read_npy(path)
    except (UserError, OSError) as error:
        notes.append(str(error))
        return empty
    return array if array.size <= max_size else empty


def _class_names(folder: Path) -> tuple[str, ...]:
    path = folder / CLASSES
    try:
        names = read_json(path) if path.exists() else []
    except UserError:
        return ()
    return tuple(_short(str(name)) for name in names) if isinstance(names, list) else ()


def _short(name: str) -> str:
    """Cuts a long name."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."


def _mapping(folder: Path, name: str) -> Mapping[str, Any] | None:
    """Reads a JSON object, or None without a file. Raises `UserError`."""
    path = folder / name
    if not path.exists():
        return None
    return read_object(path, f"runs={folder}: {name}")


def _config(folder: Path, notes: list[str]) -> str:
    try:
        return read_bytes(folder / CONFIG).decode(errors="replace")
    except UserError as error:
        notes.append(str(error))
        return ""


def _lines(folder: Path, notes: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the lines in `epochs.jsonl` that have an epoch number."""
    path = folder / EPOCHS
    if not path.exists():
        notes.append(f"there is no {EPOCHS}, so there are no curves")
        return
    try:
        check_regular(path)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except (OSError, UserError) as error:
        notes.append(str(error))
        return
    lines = [_line(text) for text in content.splitlines()]
    yield from (line for line in lines if line is not None)
    num_damaged = lines.count(None)
    if num_damaged:
        notes.append(f"{EPOCHS}: {num_damaged} lines cannot be read")
    if len(content) == MAX_BYTES:
        notes.append(f"{EPOCHS}: only the first {MAX_BYTES:,} bytes are shown")


def _line(text: bytes) -> Mapping[str, Any] | None:
    """Parses a JSON object with an epoch number, or returns None."""
    try:
        line = parse_json(text, EPOCHS)
    except UserError:
        return None
    return line if isinstance(line, dict) and number(line.get("epoch")) is not None else None
