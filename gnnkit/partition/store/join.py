"""Restores a graph from all of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.graph import CSC, EdgeColumns, Features, Graph, PackedFeatures, SparseFeatures, kept_rows
from gnnkit.graph.types import offsets_of
from gnnkit.partition.shard import Shard
from gnnkit.partition.store.manifest import PARTS, Manifest
from gnnkit.partition.store.parts import GRAPH
from gnnkit.utils.storage import Array


def join_store(root: Path) -> Graph:
    """Returns the graph from which a store's parts were cut.

    Features are in the form that the model reads. Raises `UserError` for a damaged
    store.
    """
    manifest = Manifest.load(root)
    if manifest.holds["graph"]:
        manifest.check_part(root, GRAPH)
        return Graph.load(root / PARTS / GRAPH)
    shards = []
    for rank in range(manifest.keys["workers"]):
        manifest.check_part(root, str(rank))
        shards.append(Shard.load(root / PARTS / str(rank)))
    return join_shards(shards, manifest.prepared["class_names"], manifest.schema)


def join_shards(shards: Iterable[Shard], class_names: Sequence[str] | None, schema: Mapping[str, Any] | None) -> Graph:
    """Returns the graph from which shards were cut, with the same edge ids.

    Args:
        shards: All shards of one cut.
        class_names: Class names, which shards do not store.
        schema: As `Manifest.schema`, which shards do not store.
    """
    parts, types = list(shards), schema or {}
    first, cells = parts[0], [shard for shard in parts if shard.slice == 0]
    owned_nodes = np.concatenate([shard.owned for shard in parts])
    ids = np.concatenate([shard.edge_ids for shard in cells])

    def of_nodes(name: str) -> Any:
        return _place_rows(owned_nodes, [getattr(shard, name) for shard in parts])

    def of_edges(arrays: Sequence[Array]) -> Any:
        return _place_rows(ids, arrays)

    ends = of_edges([np.repeat(shard.targets, np.diff(shard.csc.indptr)) for shard in cells])
    indptr = offsets_of(np.bincount(ends, minlength=first.num_nodes))
    columns = EdgeColumns.concat([shard.edge_columns for shard in cells]).take(np.argsort(ids))
    sources = of_edges([shard.sources[shard.csc.indices] for shard in cells])
    return Graph(
        CSC(indptr, sources.astype(np.int32 if first.num_nodes < 2**31 else np.int64), columns.get("weight")),
        features=_features(owned_nodes, [shard.features for shard in parts]),
        labels=of_nodes("labels"),
        split=of_nodes("split"),
        class_names=None if class_names is None else tuple(class_names),
        edge_type_names=types.get("edge_types"),
        node_types=types.get("node_types"),
        feature_tables=types.get("feature_tables"),
        relations=types.get("relations"),
        node_time=of_nodes("node_time"),
        time_unit=types.get("time_unit"),
        **columns.fields_of(Graph),
    )


def _place_rows(ids: Array, arrays: Sequence[Array | None]) -> Array | None:
    """Places the parts' rows at their ids. None if the parts have no such rows."""
    if arrays[0] is None:
        return None
    rows = np.concatenate([array for array in arrays if array is not None])
    table = np.empty_like(rows)
    table[ids] = rows
    return table


def _features(owned_nodes: Array, parts: Sequence[Features]) -> Features:  # [num_nodes, width]
    if isinstance(parts[0], PackedFeatures):
        shared_rows = _place_rows(owned_nodes, [kept_rows(part) for part in parts])
        assert shared_rows is not None
        return parts[0].with_rows(shared_rows)
    if not isinstance(parts[0], SparseFeatures):
        table = _place_rows(owned_nodes, [np.asarray(part) for part in parts])
        assert table is not None
        return table
    sparse = [part.csr for part in parts if isinstance(part, SparseFeatures)]
    degrees = np.concatenate([np.diff(csr.indptr) for csr in sparse])
    indptr = offsets_of(degrees)
    columns = np.concatenate([csr.indices for csr in sparse])
    values = np.concatenate([part.values for part in parts if isinstance(part, SparseFeatures)])
    return SparseFeatures(CSC(indptr, columns, values, sparse[0].num_sources))[np.argsort(owned_nodes)]
