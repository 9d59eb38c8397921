"""Reads folders of GraphBolt's `OnDiskDataset` in pieces. Sets are read at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from gnnkit_formats.pieces import EdgePiece, GraphPieces, NodeFields, Room, list_positions, pieces_of
from gnnkit_import.readers import ArraySource, Columns, CsvSource, read_mapping, unlabelled, warn_unread

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.utils.checks import Array, array, check_range, int64s
from gnnkit.utils.ranges import unknown
from gnnkit.utils.storage import forget_pages, read_npy

if TYPE_CHECKING:
    from gnnkit_graphbolt import GraphBolt

FILE = "metadata.yaml"
_SETS = {"train_set": Split.TRAIN, "validation_set": Split.VAL, "test_set": Split.TEST}
_SEEDS = ("seeds", "seed_nodes")  # names of a set's node ids, in newer and older releases
_HINT = "use Graph.from_dgl(graph).save(DIR) and dataset=saved"
_ONE_TYPE = (None, "_N", "_N:_E:_N")  # entry types that denote a graph with one type


class GraphBoltPieces(GraphPieces):
    """The files listed in a `metadata.yaml`."""

    def __init__(self, dataset: GraphBolt) -> None:
        super().__init__(dataset.root)
        self._task, self._ignore = dataset.task, dataset.ignore
        self.symmetrize, self.row_normalize = dataset.symmetrize, dataset.row_normalize

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        metadata = read_mapping(self.root / FILE)
        if "graph_topology" in metadata:
            raise UserError(f"{FILE} lists preprocessed files, which contain pickled objects: use the parent folder")
        graph = metadata.get("graph")
        if not isinstance(graph, dict) or not all(_has_one_entry(graph.get(kind)) for kind in ("nodes", "edges")):
            raise UserError(f"{FILE}: graph must list nodes and edges of one type: {_HINT}")
        return {"tasks": [], "feature_data": [], **metadata}

    @property
    def files(self) -> Sequence[Path]:
        features = [path for _, path in (*self._features("node"), *self._features("edge"))]
        sets = [self.root / entry["path"] for entries in self._sets.values() for entry in entries.values()]
        return [self.root / FILE, *self._edges.files, *features, *sets]

    @cached_property
    def _edges(self) -> Columns:
        (entry,) = self._metadata["graph"]["edges"]
        path = self._path(entry)
        if entry["format"] == "numpy":
            return ArraySource(path, self.root)
        return CsvSource([path], self.root, {}, names=("src", "dst"))

    def _path(self, entry: Any, formats: Sequence[str] = ("numpy", "csv")) -> Path:
        """Returns an entry's path. Raises `UserError` for unsupported formats."""
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise UserError(f"{FILE}: {entry!r} has no path")
        if entry.get("type") not in _ONE_TYPE:
            raise UserError(f"{FILE}: type {entry['type']!r}: several types are not supported: {_HINT}")
        form = entry.get("format")
        if form not in formats:
            pickled = "; it contains pickled objects: save it with np.save, with format numpy"
            hint = pickled if form == "torch" else ""
            raise UserError(f"{FILE}: {entry['path']} has format {form}, expected {' or '.join(formats)}{hint}")
        return Path(self.root, entry["path"])

    def _features(self, domain: str) -> list[tuple[str, Path]]:
        """Returns the names and files of node or edge features."""
        entries = [entry for entry in self._metadata["feature_data"] if entry.get("domain") == domain]
        read = [entry for entry in entries if entry.get("name") not in self._ignore]
        return [(str(entry.get("name")), self._path(entry, ("numpy",))) for entry in read]

    def open(self, room: Room) -> int:
        graph = self._metadata["graph"]
        unread = [str(entry.get("name")) for entry in graph.get("feature_data") or []]
        warn_unread(f"{FILE}: graph.feature_data", unread)
        (nodes,) = graph["nodes"]
        if not isinstance(nodes, dict) or not isinstance(nodes.get("num"), int) or nodes["num"] < 0:
            raise UserError(f"{FILE}: graph.nodes must give num, the number of nodes")
        return int(nodes["num"])

    @property
    def num_edges(self) -> int | None:
        return self._edges.num_rows

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        first, features = 0, [_with_two_axes(read_npy(path)) for _, path in self._features("edge")]
        for table in self._edges.pieces(rows, ("src", "dst"), {"src": pa.string(), "dst": pa.string()}):
            src, dst = (table.positions(name, None) for name in ("src", "dst"))
            last = first + len(src)
            values = _join_columns(features, first, last) if features else None
            yield EdgePiece(table.name, src, dst, None, values, list_positions(first, len(src)))
            first = last
        if any(len(part) != first for part in features):
            raise UserError(f"{FILE}: edge features have {[len(part) for part in features]} rows for {first} edges")
        if not first:
            none, values = np.empty(0, np.int64), _join_columns(features, 0, 0) if features else None
            yield EdgePiece(FILE, none, none, None, values, list_positions(0, 0))

    def edge_feature_names(self) -> Sequence[str] | None:
        return _column_names(self._features("edge"))

    @cached_property
    def _sets(self) -> dict[Split, dict[str, Any]]:
        """Each set's entries for seeds and labels."""
        tasks = {str(task.get("name")): task for task in self._metadata["tasks"] or []}
        name = self._task
        if name is None and len(tasks) > 1:
            raise UserError(f"{FILE} has several tasks: set dataset.task=NAME to one of {', '.join(tasks)}")
        if name is not None and name not in tasks:
            raise unknown(f"dataset.task={name}", name, list(tasks))
        task = next(iter(tasks.values()), {}) if name is None else tasks[name]
        return {value: _seeds_and_labels(key, task[key]) for key, value in _SETS.items() if task.get(key)}

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        labels: Array | None = None
        split = np.zeros(num_nodes, np.int8)
        for value, entries in self._sets.items():
            seeds_file, labels_file = entries["seeds"]["path"], entries["labels"]["path"]
            seeds = int64s(seeds_file, read_npy(self._path(entries["seeds"], ("numpy",))))
            check_range(seeds_file, seeds, 0, num_nodes)
            if np.any(split[seeds]):
                raise UserError(f"{seeds_file}: node {seeds[split[seeds] != 0][0]} is also in another set")
            split[seeds] = value
            set_labels = array(labels_file, read_npy(self._path(entries["labels"], ("numpy",))))
            if len(set_labels) != len(seeds):
                raise UserError(f"{labels_file} has {len(set_labels)} labels for {len(seeds)} seeds")
            labels = unlabelled(set_labels, num_nodes) if labels is None else labels
            labels[seeds] = set_labels
        return NodeFields(labels, split)

    def features(self, room: Room) -> Iterator[Array] | None:
        parts = [_with_two_axes(read_npy(path)) for _, path in self._features("node")]
        if len(parts) < 2:
            return pieces_of(parts[0]) if parts else None
        if len({len(part) for part in parts}) > 1:
            raise UserError(f"{FILE}: node features have {[len(part) for part in parts]} rows")
        step = room.rows(sum(part.shape[1] for part in parts))
        return (_join_columns(parts, first, first + step) for first in range(0, max(len(parts[0]), 1), step))

    def feature_names(self) -> Sequence[str] | None:
        return _column_names(self._features("node"))


def _has_one_entry(entries: Any) -> bool:
    return isinstance(entries, list) and len(entries) == 1 and isinstance(entries[0], dict)


def _seeds_and_labels(key: str, entries: Any) -> dict[str, Any]:
    """Returns a set's entries `seeds` and `labels`."""
    data = entries[0].get("data") if _has_one_entry(entries) and entries[0].get("type") is None else None
    if not isinstance(data, list):
        raise UserError(f"{FILE}: {key} must be a list with one set of untyped nodes: {_HINT}")
    by_name = {entry.get("name"): entry for entry in data if isinstance(entry, dict)}
    seeds = next((by_name[name] for name in _SEEDS if name in by_name), None)
    if seeds is None or "labels" not in by_name:
        raise UserError(f"{FILE}: {key} has {', '.join(map(str, by_name))}, expected seeds and labels of nodes")
    warn_unread(f"{FILE}: {key}", [str(name) for name in by_name if name not in (*_SEEDS, "labels")])
    return {"seeds": seeds, "labels": by_name["labels"]}


def _with_two_axes(rows: Array) -> Array:
    return rows[:, None] if rows.ndim == 1 else rows


def _join_columns(parts: Sequence[Array], first: int, last: int) -> Array:
    rows = np.concatenate([part[first:last] for part in parts], axis=1)
    for part in parts:
        forget_pages(part)
    return rows


def _column_names(features: Sequence[tuple[str, Path]]) -> list[str] | None:
    """Returns the names of feature columns, such as `feat` or `feat[0]`."""
    names = []
    for name, path in features:
        shape = read_npy(path).shape
        names += [name] if len(shape) == 1 else [f"{name}[{column}]" for column in range(shape[1])]
    return names or None
