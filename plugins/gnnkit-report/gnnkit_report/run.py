"""Reads and checks a run folder's files, none of which is trusted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.result.result import CLASSES, COORDINATION, EPOCHS, PICTURE, WORDS
from gnnkit.utils.documents import (
    MAX_JSON,
    check_regular,
    number,
    parse_json,
    read_bytes,
    read_json,
    read_object,
    read_yaml,
)
from gnnkit.utils.storage import Array, read_npy
from gnnkit_report.page import clipped

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
    settings: Mapping[str, Any] = field(default_factory=dict)  # the configuration, or empty

    def number(self, *path: str) -> float | None:
        """Returns a figure from `result.json`, or None if it is not a finite number."""
        return number(at(self.result, *path))


def at(node: Any, *path: str) -> Any:
    """Returns the value at a path of keys, or None if there is none."""
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def section(run: RunFiles, name: str) -> Mapping[str, Any]:
    """Returns a configuration section, or an empty one."""
    values = run.settings.get(name)
    return values if isinstance(values, Mapping) else {}


def numbers(value: object) -> list[float]:
    """Returns a list of finite numbers, empty for anything else."""
    items = [number(item) for item in value] if isinstance(value, list) else []
    return [item for item in items if item is not None] if None not in items else []


def square(value: object) -> list[list[float]]:
    """Returns a square table of finite numbers, empty for anything else."""
    rows = [numbers(row) for row in value] if isinstance(value, list) else []
    return rows if rows and all(len(row) == len(rows) for row in rows) else []


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder. Raises `UserError` if there is no result.

    Other files may be missing or damaged, which is reported in `RunFiles.notes`.
    """
    if not (folder / RESULT).exists():
        raise UserError(f"runs={folder}: there is no {RESULT}: choose the folder of a completed run")
    result, notes = read_object(folder / RESULT, f"runs={folder}: {RESULT}"), list[str]()
    for name, part in ((EPOCHS, "curves"), (CONFIG, "settings")):
        if not (folder / name).exists():
            notes.append(f"there is no {name}, so there are no {part}")
    read = functools.partial(_read, folder, notes)
    lines = list(_lines(read(EPOCHS, _head, b""), notes))
    epochs = {int(line["epoch"]): line for line in lines if "train_loss" in line}  # of a repeated epoch, the last
    evaluations = {int(line["epoch"]): line for line in lines if isinstance(line.get("figures"), Mapping)}
    partition = read(PICTURE, read_object, {})
    decision = read(COORDINATION, read_object, {}).get("decision")
    config = read(CONFIG, read_bytes, b"").decode(errors="replace")
    predictions, words = (read(name, read_npy, np.zeros(0)) for name in (PREDICTIONS, WORDS))
    names, settings = read(CLASSES, read_json, []), read(CONFIG, read_yaml, {})
    return RunFiles(
        folder,
        result,
        config,
        tuple(epochs[key] for key in sorted(epochs)),
        tuple(evaluations[key] for key in sorted(evaluations)),
        partition,
        tuple(dict.fromkeys(notes)),
        decision if isinstance(decision, Mapping) else {},
        _sampled_classes(predictions, partition),
        tuple(clipped(str(name), MAX_NAME) for name in names) if isinstance(names, list) else (),
        square(words.tolist()) if words.size <= MAX_WORDS else [],
        settings if isinstance(settings, Mapping) else {},
    )


def _read(folder: Path, notes: list[str], name: str, read: Callable[[Path], Any], missing: object) -> Any:
    """Reads a file, or returns `missing`. A damaged file adds a note."""
    try:
        return read(folder / name) if (folder / name).exists() else missing
    except (UserError, OSError) as error:
        notes.append(str(error))
        return missing


def _sampled_classes(classes: Array, partition: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the predicted class of each node of the picture, or none of them."""
    nodes = numbers(at(partition, "sample", "nodes"))
    if classes.ndim != 1 or classes.dtype.kind != "i" or not all(0 <= node < len(classes) for node in nodes):
        return ()
    return tuple(int(classes[int(node)]) for node in nodes)


def _head(path: Path) -> bytes:
    """Returns the first `MAX_BYTES` bytes of a regular file."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def _lines(content: bytes, notes: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the lines of `epochs.jsonl` that have an epoch number."""
    lines = [_line(text) for text in content.splitlines()]
    yield from (line for line in lines if line is not None)
    if num_damaged := lines.count(None):
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
