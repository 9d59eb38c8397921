"""A store's metadata of pairs of parts, in one file per part.

In the manifest, which every run reads, it would grow with the square of the number of
parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from gnnkit.graph import Ids
from gnnkit.partition.store.manifest import PARTS, Manifest
from gnnkit.partition.traffic import Pair
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import load_arrays, save_arrays

PAIRS = "pairs"  # folder next to the parts
_ROWS = ("gather_rows", "reduce_rows", "slice_rows", "unslice_rows")  # fields of a `Pair`
_PEER, _NEIGHBOUR, _EDGES = 0, 5, 6  # the other columns


def without_pairs(manifest: Manifest, root: Path) -> Manifest:
    """Moves the manifest's metadata of pairs into one file per part.

    Args:
        manifest: A manifest with all pairs, and without files.
        root: The store.
    """
    num_parts, picture = len(manifest.quality["regions"]), dict(manifest.picture)
    tables = np.zeros((num_parts, num_parts, 7), np.int64)  # [part, peer, column]
    tables[:, :, _PEER] = np.arange(num_parts)
    for pair in manifest.quality["peers"]:
        tables[pair["rank"], pair["peer"], 1:_NEIGHBOUR] = [pair[name] for name in _ROWS]
    for part, peers in enumerate(manifest.prepared["peers"]):
        tables[part, peers, _NEIGHBOUR] = 1
    if "edges" in picture:
        tables[:, :, _EDGES] = picture.pop("edges")
    arrays = {str(part): table[table[:, 1:].any(axis=1)] for part, table in enumerate(tables)}
    save_arrays(root / PARTS / PAIRS, arrays, {})
    return replace(
        manifest,
        prepared=_without(manifest.prepared, "peers", "edge_cut"),
        quality=_without(manifest.quality, "peers"),
        coordination=_without(manifest.coordination, "regions", "peers"),
        picture={**picture, "has_edges": "edges" in manifest.picture},
    )


def with_pairs(manifest: Manifest, root: Path) -> Manifest:
    """Returns the manifest with a store's metadata of pairs.

    Raises `UserError`, which names a damaged file.
    """
    manifest.check_part(root, PAIRS)
    regions, picture = manifest.quality["regions"], dict(manifest.picture)
    arrays, _ = load_arrays(root / PARTS / PAIRS)
    tables = [arrays[str(part)] for part in range(len(regions))]
    peers = [pair for part, table in enumerate(tables) for pair in _pairs(part, table)]
    if picture.pop("has_edges"):
        picture["edges"] = [_dense(table, len(tables)) for table in tables]
    neighbours = [table[table[:, _NEIGHBOUR] > 0, _PEER].tolist() for table in tables]
    return replace(
        manifest,
        prepared={**manifest.prepared, "peers": neighbours, "edge_cut": manifest.quality["edge_cut"]},
        quality={**manifest.quality, "peers": peers},
        coordination={**manifest.coordination, "regions": regions, "peers": peers},
        picture=picture,
    )


def _without(values: Mapping[str, object], *names: str) -> Json:
    return {name: value for name, value in values.items() if name not in names}


def _pairs(part: int, table: Ids) -> list[dict[str, int]]:
    """Returns the peers from which a part receives rows, like `Quality.to_dict`."""
    pairs = [Pair(part, *row[:_NEIGHBOUR]) for row in table.tolist() if any(row[1:_NEIGHBOUR])]
    return [asdict(pair) | {"messages": pair.messages} for pair in pairs]


def _dense(table: Ids, num_parts: int) -> list[int]:  # [num_parts]
    edges = np.zeros(num_parts, np.int64)
    edges[table[:, _PEER]] = table[:, _EDGES]
    return [int(number) for number in edges]
