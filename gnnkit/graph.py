"""The values that everything else passes on: CSC, Graph, Block and MiniBatch. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


class Split(IntEnum):
    """What a node is used for; the values of `Graph.split`."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3


@dataclass(frozen=True, slots=True, eq=False)
class CSC:
    """In-edges by destination: node v reads from `indices[indptr[v]:indptr[v + 1]]`.

    Edge ids are positions in `indices`. The constructor checks every value once, in native code, and raises `ValueError`
    naming the first one that is wrong and its place.
    """

    indptr: Ids  # [num_nodes + 1] int64
    indices: Ids  # [num_edges] int32 or int64, source of each edge
    weight: Floats | None = None  # [num_edges] finite
    num_sources: int = -1  # sources are 0..num_sources-1; -1: as many as destinations

    @property
    def num_nodes(self) -> int:
        """Number of destinations."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph with what is known of its nodes and edges. Node ids are 0..num_nodes-1, edge ids positions in `csc.indices`."""

    csc: CSC
    features: Floats  # [num_nodes, width]
    labels: Ids  # [num_nodes] int64, -1: no label
    split: npt.NDArray[np.int8]  # [num_nodes] values of `Split`
    edge_features: Floats | None = None  # [num_edges, edge_width]
    coordinates: Floats | None = None  # [num_nodes, 2 or 3]
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)

    @property
    def num_nodes(self) -> int:
        return self.csc.num_nodes

    @property
    def num_edges(self) -> int:
        return self.csc.num_edges


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch: edges into the first `num_dst` of `src_nodes`, renumbered from zero (DGL's MFG)."""

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids; the first num_dst are the destinations
    edge_ids: Ids | None = None  # [num_edges] positions in the sampled CSC
    weight: Floats | None = None  # [num_edges] keeps the estimate unbiased

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The blocks that compute `seeds`, outermost hop first."""

    seeds: Ids  # [num_seeds] global ids
    blocks: Sequence[Block]

    @property
    def input_nodes(self) -> Ids:
        """Global ids of the rows of features that the first block reads."""
        return self.blocks[0].src_nodes if self.blocks else self.seeds
