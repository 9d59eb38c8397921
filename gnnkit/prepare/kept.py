"""A cache of partitions and shards in a user's folder, addressed by content.

An entry is a folder named by a hash of everything that its files depend on. Entries
appear atomically, by a rename, and never change. A run links their files into its own
folder, so an entry may be removed at any time. Errors in the cache never fail a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gnnkit.config.settings import Choice, Settings
from gnnkit.graph import Graph
from gnnkit.graph.edge_columns import RULES
from gnnkit.partition.base import Partition
from gnnkit.prepare.run_partition import assign, load_partition, save_partition
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.utils.documents import json_digest, read_object
from gnnkit.utils.storage import passing, sync_files

T = TypeVar("T")

WORTH = 1.0  # seconds. Results computed faster are not cached
MOST = 16 << 30  # maximum bytes of all entries
SHARE = 10  # the cache takes at most 1/SHARE of the disk
_META = "entry.json"
_READ = 1 << 14  # rows of an array hashed at once
_FIRST_COLUMNS = ("weight", "features", "relation", "position")  # of edges
_STALE = 24 * 3600.0  # seconds after which a temporary folder is considered abandoned


@dataclass(eq=False)
class ResultCache:
    """The cached results that earlier runs computed from a graph."""

    folder: Path | None  # None: the cache is disabled
    graph: Graph
    notes: list[str] = field(default_factory=list)  # lines on used entries and on errors

    def recall(
        self,
        kind: str,
        depends: Mapping[str, object],
        make: Callable[[], T],
        write: Callable[[T, Path], object],
        read: Callable[[Path, Any], T],
    ) -> T:
        """Returns an earlier run's result for the same graph, or computes it.

        Args:
            kind: The result's name, shown in messages.
            depends: Plain data that the result depends on, in addition to the graph.
            make: Computes the result.
            write: Writes the result into an empty folder, and returns facts for JSON.
            read: Reads the result from the folder and the facts.
        """
        if self.folder is None:
            return make()
        entry: Path | None = None
        try:
            if any(self.folder.glob(f"{self._stem(kind)}-*")):  # a full hash is slow, so first match the fingerprint
                entry = self._entry_folder(kind, depends)
                if entry.is_dir():  # not one of the same graph that depends on something else
                    result = read(entry, _read_facts(entry))
                    os.utime(entry)  # marks the entry as recently used
                    self.notes.append(f"{kind}: made by an earlier run, cached in {self.folder}")
                    return result
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.notes.append(f"{kind}: not read from {entry or self.folder}: {error}")
            if entry is not None:
                shutil.rmtree(entry, ignore_errors=True)
        start = time.perf_counter()
        result = make()
        if time.perf_counter() - start > WORTH:
            self._store_entry(kind, depends, lambda folder: write(result, folder))
        return result

    @cached_property
    def fingerprint(self) -> str:
        """The hash of a sample of the graph's numbers."""
        return fingerprint(self.graph)

    @cached_property
    def _content(self) -> str:
        return content(self.graph)

    def _stem(self, kind: str) -> str:
        return f"{kind}-{self.fingerprint[:16]}"

    def _entry_folder(self, kind: str, depends: Mapping[str, object]) -> Path:
        assert self.folder is not None
        digest = json_digest([self._content, depends, _code_version()])
        return self.folder / f"{self._stem(kind)}-{digest}"

    def _store_entry(self, kind: str, depends: Mapping[str, object], write: Callable[[Path], object]) -> None:
        """Adds an entry, after removing least recently used ones if space is needed."""
        assert self.folder is not None
        entry, temporary = self._entry_folder(kind, depends), self.folder / f".{kind}-{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.mkdir(mode=0o700)
            with passing():
                facts = write(temporary)
            body = {"files": _files(temporary), "facts": facts}
            (temporary / _META).write_text(json.dumps({**body, "sha256": json_digest(body)}), encoding="utf-8")
            sync_files(temporary)
            _make_room(self.folder, _entry_size(temporary))
            temporary.rename(entry)
        except (OSError, ValueError) as error:
            if not entry.is_dir():  # otherwise another run added the same entry first
                self.notes.append(f"{kind}: not cached in {self.folder}: {error}")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def kept_partition(cache: ResultCache, settings: Settings) -> Partition:
    """Creates the configured partition, or reads it from the cache."""

    def write(partition: Partition, folder: Path) -> None:
        save_partition(folder, partition, {})

    def read(folder: Path, _: None) -> Partition:
        return load_partition(folder)[0]

    section, nodes = settings.partition, settings.partition.nodes
    depends = {"workers": settings.workers, "partition": asdict(section), "nodes": origin(nodes)}
    return cache.recall("partition", depends, lambda: assign(cache.graph, section, settings.workers), write, read)


def link_files(source: Path, target: Path) -> None:
    """Hard-links a folder's files, or copies them to another disk."""
    for name in _files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        link_file(source / name, target / name)


def link_file(source: Path, target: Path) -> None:
    """Hard-links a file, or copies it to another disk."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or a file system without hard links
        shutil.copy2(source, target)


def fingerprint(graph: Graph, task_rows: TaskRows = NODES) -> str:
    """Hashes a graph's sizes and up to about a million numbers per array.

    Args:
        graph: The graph.
        task_rows: The rows to predict, which may have labels of their own.
    """
    digest = hashlib.sha256()
    csc, columns = graph.csc, graph.edge_columns
    # Later columns are hashed only if present, so that other graphs keep their hashes.
    of_edges = [columns.get("features"), columns.get("relation")]
    of_edges += [columns[name] for name in RULES if name in columns and name not in _FIRST_COLUMNS]
    of_edges += [] if graph.node_time is None else [graph.node_time]
    label, split, _ = task_rows.values(graph)
    of_edges += [] if label is graph.labels else [label, split]
    for array in (csc.indptr, csc.indices, csc.weight, graph.features, graph.labels, graph.split, *of_edges):
        if array is None:
            digest.update(b"none")
            continue
        rows = max(2**20 // max(int(np.prod(array.shape[1:])), 1), 1)
        step = max(len(array) // rows, 1)
        digest.update(f"{array.shape} {array.dtype}".encode())
        for start in range(0, len(array), step * _READ):
            digest.update(np.ascontiguousarray(array[start : start + step * _READ : step]).tobytes())
    return digest.hexdigest()


def content(value: object) -> str:
    """Hashes all numbers in a dataclass of arrays."""
    digest = hashlib.sha256()

    def add(value: object) -> None:
        if is_dataclass(value):
            for column in fields(value):
                digest.update(f"{column.name}:".encode())
                add(getattr(value, column.name))
        elif isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        else:
            digest.update(f"{value!r};".encode())

    add(value)
    return digest.hexdigest()


def origin(choice: Choice) -> list[object]:
    """Identifies a plugin's version, including the files that it reads."""
    files = [sys.modules[choice.load().__module__].__file__]
    files += [
        str(value) for name, value in choice.arguments.items() if name in ("path", "root") or os.sep in str(value)
    ]
    return [choice.origin, *(_stamps(Path(file)) for file in files if file)]


def _code_version() -> list[object]:
    """Identifies gnnkit's version by the sizes and times of its source files."""
    return _stamps(Path(__file__).parents[1])


def _stamps(path: Path) -> list[object]:
    """Returns size and time of a file, or of each file in a folder."""
    try:
        if path.is_dir():
            return [[name, *stamp] for name, stamp in _files(path).items() if not name.endswith(".pyc")]
        return [path.stat().st_size, path.stat().st_mtime_ns]
    except OSError:  # not a path, or unreadable
        return []


def _files(folder: Path) -> dict[str, list[int]]:
    """Returns each file's size and time, by its path relative to the folder."""
    stats = {str(path.relative_to(folder)): path.lstat() for path in sorted(folder.rglob("*")) if not path.is_dir()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items() if name != _META}


def _read_facts(entry: Path) -> Any:
    """Returns an entry's facts. Raises `ValueError` for a damaged entry."""
    meta = read_object(entry / _META)
    body = {"files": meta["files"], "facts": meta["facts"]}
    if meta["sha256"] != json_digest(body) or meta["files"] != _files(entry):
        raise ValueError("the entry is damaged")
    return meta["facts"]


def _entry_size(entry: Path) -> int:
    return sum(size for size, _ in _files(entry).values())


def _make_room(folder: Path, size: int) -> None:
    """Removes least recently used entries until `size` more bytes fit.

    Raises `ValueError` for an entry that is too large.
    """
    max_bytes = min(MOST, shutil.disk_usage(folder).total // SHARE)
    if size > max_bytes:
        raise ValueError(f"{size:,} bytes are more than the cache may hold, {max_bytes:,}")
    entries: dict[Path, tuple[float, int]] = {}
    for path in folder.iterdir():
        if path.name.startswith("."):
            if time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)
        elif (path / _META).exists():
            entries[path] = (path.stat().st_mtime, _entry_size(path))
    free = max_bytes - size - sum(size for _, size in entries.values())
    for path in sorted(entries, key=entries.__getitem__):
        if free >= 0:
            return
        shutil.rmtree(path, ignore_errors=True)
        free += entries[path][1]
