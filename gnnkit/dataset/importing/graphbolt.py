"""Folders of GraphBolt's `OnDiskDataset`, read in pieces. Sets are read at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gnnkit.checks import Array, array, check_range, int64s
from gnnkit.dataset.importing.sources import ArraySource, CsvSource, Source, read_keys
from gnnkit.dataset.pieces import EdgePiece, GraphPieces, NodeFields, Room, list_positions, pieces_of
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.graph.attributes import tell_unread
from gnnkit.graph.labels import unlabelled
from gnnkit.ranges import unknown
from gnnkit.storage import forget_pages, read_npy

if TYPE_CHECKING:
    from gnnkit.dataset.graphbolt import GraphBolt

FILE = "metadata.yaml"
_SETS = {"train_set": Split.TRAIN, "validation_set": Split.VAL, "test_set": Split.TEST}
_SEEDS = ("seeds", "seed_nodes")  # names of the ids of a set, of newer and of older releases
_CURE = "Graph.from_dgl(graph).save(DIR) keeps a graph of DGL for dataset=saved"


class GraphBoltPieces(GraphPieces):
    """The files that a `metadata.yaml` names."""

    def __init__(self, given: GraphBolt) -> None:
        super().__init__(given.root)
        self._given = given
        self.symmetrize, self.row_normalize = given.symmetrize, given.row_normalize

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        found = read_keys(self.root / FILE)
        if "graph_topology" in found:
            raise UserError(f"{FILE} names preprocessed files, which hold pickled objects: give the folder above")
        graph = found.get("graph")
        if not isinstance(graph, dict) or not all(_one(graph.get(each)) for each in ("nodes", "edges")):
            raise UserError(f"{FILE}: graph must list nodes and edges of one type: {_CURE}")
        return {"tasks": [], "feature_data": [], **found}

    @property
    def files(self) -> Sequence[Path]:
        found = [
            self.root / FILE,
            *self._edges.files,
            *(path for _, path in (*self._rows("node"), *self._rows("edge"))),
        ]
        return [*found, *(self.root / each["path"] for data in self._sets.values() for each in data.values())]

    @cached_property
    def _edges(self) -> Source:
        (given,) = self._facts["graph"]["edges"]
        path = self._file(given)
        if given["format"] == "numpy":
            return ArraySource(path, self.root)
        return CsvSource([path], self.root, {}, names=("src", "dst"))

    def _file(self, given: Any, formats: Sequence[str] = ("numpy", "csv")) -> Path:
        """Returns the path of an entry. Raises `UserError` for other formats."""
        if not isinstance(given, dict) or not isinstance(given.get("path"), str):
            raise UserError(f"{FILE}: {given!r} names no path")
        form = given.get("format")
        if given.get("type") not in (None, "_N", "_N:_E:_N"):
            raise UserError(f"{FILE}: type {given['type']!r}: several types are not read: {_CURE}")
        if form not in formats:
            pickled = (
                ", which holds pickled objects: np.save writes it as an .npy, of format numpy"
                if form == "torch"
                else ""
            )
            raise UserError(f"{FILE}: {given['path']} has format {form}, expected {' or '.join(formats)}{pickled}")
        return Path(self.root, given["path"])

    def _rows(self, domain: str) -> list[tuple[str, Path]]:
        """Returns names and files of the features of nodes or of edges."""
        chosen = [each for each in self._facts["feature_data"] if each.get("domain") == domain]
        kept = [each for each in chosen if each.get("name") not in self._given.ignore]
        return [(str(each.get("name")), self._file(each, ("numpy",))) for each in kept]

    def open(self, room: Room) -> int:
        graph = self._facts["graph"]
        tell_unread(f"{FILE}: graph.feature_data", [str(each.get("name")) for each in graph.get("feature_data") or []])
        (nodes,) = graph["nodes"]
        if not isinstance(nodes, dict) or not isinstance(nodes.get("num"), int) or nodes["num"] < 0:
            raise UserError(f"{FILE}: graph.nodes must give num, the number of nodes")
        return int(nodes["num"])

    @property
    def num_edges(self) -> int | None:
        return self._edges.num_rows

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        first, features = 0, [_two_axes(read_npy(path)) for _, path in self._rows("edge")]
        for table in self._edges.pieces(rows, ("src", "dst"), {"src": pa.string(), "dst": pa.string()}):
            src, dst = (table.positions(name, None) for name in ("src", "dst"))
            last = first + len(src)
            own = _side_by_side(features, first, last) if features else None
            yield EdgePiece(table.name, src, dst, None, own, list_positions(first, len(src)))
            first = last
        if any(len(each) != first for each in features):
            raise UserError(f"{FILE}: features of edges have {[len(each) for each in features]} rows for {first} edges")
        if not first:
            none, own = np.empty(0, np.int64), _side_by_side(features, 0, 0) if features else None
            yield EdgePiece(FILE, none, none, None, own, list_positions(0, 0))

    def edge_feature_names(self) -> Sequence[str] | None:
        return _column_names(self._rows("edge"))

    @cached_property
    def _sets(self) -> dict[Split, dict[str, Any]]:
        """Returns the entries of seeds and labels of each set."""
        tasks = {str(each.get("name")): each for each in self._facts["tasks"] or []}
        name = self._given.task
        if name is None and len(tasks) > 1:
            raise UserError(f"{FILE} has several tasks: dataset.task=NAME chooses one of {', '.join(tasks)}")
        if name is not None and name not in tasks:
            raise unknown(f"dataset.task={name}", name, list(tasks))
        task = next(iter(tasks.values()), {}) if name is None else tasks[name]
        return {value: _entries(key, task[key]) for key, value in _SETS.items() if task.get(key)}

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        labels: Array | None = None
        split = np.zeros(num_nodes, np.int8)
        for value, entries in self._sets.items():
            seeds = int64s(f"{entries['seeds']['path']}", read_npy(self._file(entries["seeds"], ("numpy",))))
            check_range(entries["seeds"]["path"], seeds, 0, num_nodes)
            if np.any(split[seeds]):
                raise UserError(f"{entries['seeds']['path']}: node {seeds[split[seeds] != 0][0]} is in another set too")
            split[seeds] = value
            own = array(entries["labels"]["path"], read_npy(self._file(entries["labels"], ("numpy",))))
            if len(own) != len(seeds):
                raise UserError(f"{entries['labels']['path']} has {len(own)} labels for {len(seeds)} seeds")
            labels = unlabelled(own, num_nodes) if labels is None else labels
            labels[seeds] = own
        return NodeFields(labels, split)

    def features(self, room: Room) -> Iterator[Array] | None:
        parts = [_two_axes(read_npy(path)) for _, path in self._rows("node")]
        if len(parts) < 2:
            return pieces_of(parts[0]) if parts else None
        if len({len(part) for part in parts}) > 1:
            raise UserError(f"{FILE}: features of nodes have {[len(part) for part in parts]} rows")
        step = room.rows(sum(part.shape[1] for part in parts))
        return (_side_by_side(parts, first, first + step) for first in range(0, max(len(parts[0]), 1), step))

    def feature_names(self) -> Sequence[str] | None:
        return _column_names(self._rows("node"))


def _one(entries: Any) -> bool:
    return isinstance(entries, list) and len(entries) == 1 and isinstance(entries[0], dict)


def _entries(key: str, given: Any) -> dict[str, Any]:
    """Returns the entries `seeds` and `labels` of a set."""
    data = given[0].get("data") if _one(given) and given[0].get("type") is None else None
    if not isinstance(data, list):
        raise UserError(f"{FILE}: {key} must be a list of one set of nodes without a type: {_CURE}")
    found = {each.get("name"): each for each in data if isinstance(each, dict)}
    seeds = next((found[name] for name in _SEEDS if name in found), None)
    if seeds is None or "labels" not in found:
        raise UserError(f"{FILE}: {key} has {', '.join(map(str, found))}, expected seeds and labels of nodes")
    tell_unread(f"{FILE}: {key}", [str(name) for name in found if name not in (*_SEEDS, "labels")])
    return {"seeds": seeds, "labels": found["labels"]}


def _two_axes(rows: Array) -> Array:
    return rows[:, None] if rows.ndim == 1 else rows


def _side_by_side(parts: Sequence[Array], first: int, last: int) -> Array:
    rows = np.concatenate([part[first:last] for part in parts], axis=1)
    for part in parts:
        forget_pages(part)
    return rows


def _column_names(rows: Sequence[tuple[str, Path]]) -> list[str] | None:
    """Names the columns of features, as `feat` or `feat[0]`."""
    found = []
    for name, path in rows:
        shape = read_npy(path).shape
        found += [name] if len(shape) == 1 else [f"{name}[{column}]" for column in range(shape[1])]
    return found or None
