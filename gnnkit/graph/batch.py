"""Sampled mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph.times import Times
from gnnkit.graph.types import Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch, renumbered from zero (DGL's MFG).

    All edges lead to the first `num_dst` nodes of `src_nodes`. A layer reads one row
    per source and computes one per destination, which the next block reads. The
    optional fields are edge columns, which code that selects or joins edges treats
    alike.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import Block
        >>> block = Block(
        ...     indptr=numpy.array([0, 2]), indices=numpy.array([1, 2]),
        ...     src_nodes=numpy.array([7, 4, 9]),
        ... )
        >>> block.num_dst, block.src_nodes[block.indices].tolist()  # 7 reads 4 and 9
        (1, [4, 9])
    """

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids, the num_dst destinations first
    edge_ids: Ids | None = None  # [num_edges] positions in the sampled CSC
    weight: Floats | None = None  # [num_edges] keeps the estimate unbiased
    relation: Ids | None = None  # [num_edges] relation of each edge. None: a single relation

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_columns(self) -> dict[str, npt.NDArray[Any]]:  # [num_edges] each
        """The edge columns that are present, by field name.

        Fields are `edge_ids`, `weight` and `relation`.
        """
        columns = {name: getattr(self, name) for name in EDGE_COLUMNS}
        return {name: column for name, column in columns.items() if column is not None}

    def with_edges(self, indptr: Ids, edges: Ids | slice) -> Block:
        """Returns the block with a subset of its edges.

        Args:
            indptr: [num_rows + 1] row offsets of the selected edges.
            edges: [k] positions of the selected edges, ascending.
        """
        columns = {name: column[edges] for name, column in self.edge_columns.items()}
        return replace(self, indptr=indptr, indices=self.indices[edges], **columns)


EDGE_COLUMNS = tuple(Block.__dataclass_fields__)[3:]


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The blocks that compute `seeds`, outermost hop first.

    Layer i of a model reads `blocks[i]`. The sources of the last block contain the
    seeds first, and each block's sources are the destinations of the block before it.
    The feature rows to load are those of `input_nodes`.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import NeighborSampler
        >>> csc = CSC.from_edges([1, 2, 3], [0, 1, 2], 4)
        >>> batch = NeighborSampler([2, 2]).sample(csc, numpy.array([0]), key=1)
        >>> batch.input_nodes.tolist(), [block.num_dst for block in batch.blocks]
        ([0, 1, 2], [2, 1])
    """

    seeds: Ids  # [num_seeds] global ids
    blocks: Sequence[Block]
    # Of a batch that is sampled by time, in which `src_nodes` number occurrences: a
    # node that is reached from seeds at two times occurs twice.
    nodes: Ids | None = None  # [num_occurrences] global ids, the seeds first. None: `src_nodes` are global ids
    times: Times | None = None  # [num_occurrences] time of its seed, or of the edge to it (`Sampler.time_bound`)

    @property
    def input_nodes(self) -> Ids:
        """Global ids of the feature rows that the first block reads, the seeds first.

        In a batch that is sampled by time, a node may occur several times.
        """
        if self.nodes is not None:
            return self.nodes
        return self.blocks[0].src_nodes if self.blocks else self.seeds

    def rows_by_node(self) -> tuple[Ids, Ids | slice]:
        """Returns the distinct `input_nodes`, and each one's place among them.

        In a batch that is sampled by time, a node may occur several times. Its features
        are then loaded once and repeated by the places.
        """
        if self.nodes is None:
            return self.input_nodes, slice(None)
        nodes, places = np.unique(self.nodes, return_inverse=True)
        return nodes, places.reshape(-1)
