"""A store, read in pieces to be partitioned again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gnnkit_formats.pieces import COLUMNS, NodeFields, Room, Rows, pieces_of

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids, PackedFeatures, kept_rows, read_features
from gnnkit.partition.shard import Shard
from gnnkit.partition.store.manifest import FILE, NODE_IDS, PARTS, Manifest
from gnnkit.partition.store.parts import GRAPH
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import forget_pages, load_arrays, read_npy
from gnnkit_import.arrays import Compressed, CompressedPieces, Mapped, matrix_of, stored_types

if TYPE_CHECKING:
    from gnnkit.dataset.store import Store

_INT32 = 2**31
_STEP = 1 << 18  # nodes whose labels are read at once


class StorePieces(CompressedPieces):
    """A store's parts, merged in node and edge order.

    It yields the features and labels that models read.
    """

    in_order = True

    def __init__(self, dataset: Store) -> None:
        super().__init__(dataset.root)

    @cached_property
    def _manifest(self) -> Manifest:
        manifest = Manifest.load(self.root)
        refused = {
            "held-out edges, which its parts omit": manifest.holds["links"],
            "sparse features": manifest.holds["sparse"],
        }
        for what, is_held in refused.items():
            if is_held:
                raise UserError(f"the store has {what}; use job=partition on the original data set")
        return manifest

    @property
    def files(self) -> Sequence[Path]:
        return [self.root / FILE, *(self.root / name for name in self._manifest.files)]

    @cached_property
    def _graph(self) -> dict[str, Array] | None:
        """Maps the full graph, if the store contains it."""
        if not self._manifest.holds["graph"]:
            return None
        self._manifest.check_part(self.root, GRAPH)
        return load_arrays(self.root / PARTS / GRAPH)[0]

    @cached_property
    def _shards(self) -> list[Shard]:
        shards = []
        for rank in range(self._manifest.keys["workers"]):
            self._manifest.check_part(self.root, str(rank))
            shards.append(Shard.trusted(self.root / PARTS / str(rank)))
        grid = shards[0].grid
        if (grid.cols, grid.slices) != (1, 1) or self._manifest.holds["vertex_cut"]:
            raise UserError(
                f"the store was cut for a {grid} grid, but only stores of workers x 1 x 1 can be cut again in pieces; "
                "use job=partition on the original data set, or a store with the whole graph "
                "(strategy=individual_sample)"
            )
        return shards

    @cached_property
    def _matrix(self) -> Compressed:
        if self._graph is not None:
            return matrix_of(self._graph)
        shards = self._shards
        indptr = np.zeros(shards[0].num_nodes + 1, np.int64)
        for shard in shards:
            indptr[shard.owned + 1] = np.diff(shard.csc.indptr)
        others = {name: self._of_edges(column) for name, column in COLUMNS.items() if column in shards[0].edge_columns}
        sources = Scattered([_ShardRows(shard.edge_ids, shard.csc.indices, _sources(shard)) for shard in shards])
        return Compressed("store", np.cumsum(indptr), sources, others)

    def _of_edges(self, column: str) -> Scattered:
        return Scattered([_ShardRows(shard.edge_ids, shard.edge_columns[column]) for shard in self._shards])

    def _of_nodes(self, field: str) -> Rows:
        if self._graph is not None:
            return Mapped(self._graph[field])
        return Scattered([_ShardRows(shard.owned, getattr(shard, field)) for shard in self._shards])

    def edge_type_names(self) -> Sequence[str] | None:
        names: Sequence[str] | None = self._manifest.schema["edge_types"]
        return names

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        labels, split = (np.concatenate(list(self._of_nodes(name).pieces(_STEP))) for name in ("labels", "split"))
        ids = self.root / NODE_IDS
        return NodeFields(
            labels,
            split,
            self._manifest.prepared["class_names"],
            read_npy(ids) if self._manifest.holds["node_ids"] else None,
            None if self._graph is None else self._graph.get("coordinates"),
            self._manifest.schema["node_types"],
            types=stored_types(self._manifest.schema),
            node_time=self._node_time,
        )

    @property
    def _node_time(self) -> Array | None:
        if self._graph is not None:
            return self._graph.get("node_time")
        times = [shard.node_time for shard in self._shards]
        return None if times[0] is None else np.concatenate(list(self._of_nodes("node_time").pieces(_STEP)))

    @property
    def time_unit(self) -> str | None:  # type: ignore[override]
        unit: str | None = self._manifest.schema.get("time_unit")
        return unit

    def features(self, room: Room) -> Iterator[Floats]:
        if self._graph is not None:
            features = read_features(self._graph)
            pieces = pieces_of(kept_rows(features))
            if isinstance(features, PackedFeatures):
                return (np.asarray(features.with_rows(rows)) for rows in pieces)
            return pieces
        rows = Scattered([_of_features(shard) for shard in self._shards])
        return rows.pieces(room.rows(int(np.prod(rows.shape[1:]))))


@dataclass(frozen=True, slots=True)
class _ShardRows:
    """A shard's rows."""

    ids: Ids  # [k] positions of the rows in the array, ascending
    rows: Array  # [k, ...]
    decode: Callable[[Array], Array] | None = None  # None: rows are stored as they are


@dataclass(frozen=True, slots=True)
class Scattered:
    """An array with rows in several shards."""

    parts: Sequence[_ShardRows]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(part.ids) for part in self.parts), *self.parts[0].rows.shape[1:])

    def pieces(self, step: int) -> Iterator[Array]:
        """Yields the rows in order. One piece without rows if there are none."""
        for first in range(0, max(self.shape[0], 1), step):
            last, piece = min(first + step, self.shape[0]), None
            for part in self.parts:
                low, high = np.searchsorted(part.ids, [first, last])
                rows = part.rows[low:high] if part.decode is None else part.decode(part.rows[low:high])
                if piece is None:
                    piece = np.empty((last - first, *rows.shape[1:]), rows.dtype)
                piece[part.ids[low:high] - first] = rows
                forget_pages(part.rows)
            assert piece is not None
            yield piece


def _of_features(shard: Shard) -> _ShardRows:
    features = shard.features
    if not isinstance(features, PackedFeatures):
        return _ShardRows(shard.owned, kept_rows(features))
    return _ShardRows(shard.owned, features.kept, lambda rows: np.asarray(features.with_rows(rows)))


def _sources(shard: Shard) -> Callable[[Array], Any]:
    """Returns a function that maps a shard's edge sources to global ids."""
    owned, halo = shard.cell_nodes, shard.halo
    kind = np.int32 if shard.num_nodes < _INT32 else np.int64

    def decode(rows: Array) -> Array:
        global_ids = np.empty(len(rows), kind)
        is_owned = rows < len(owned)
        global_ids[is_owned] = owned[rows[is_owned]]
        global_ids[~is_owned] = halo[rows[~is_owned] - len(owned)]
        return global_ids

    return decode
