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

    All edges lead to the first `num_dst` nodes of `src_nodes`. The optional fields are
    edge columns, which code that selects or joins edges treats alike.
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
        """The edge columns that are present, by field name."""
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
    """The blocks that compute `seeds`, outermost hop first."""

    seeds: Ids  # [num_seeds] global ids
    blocks: Sequence[Block]
    # Of a batch that is sampled by time, in which `src_nodes` number occurrences: a
    # node that is reached from seeds at two times occurs twice.
    nodes: Ids | None = None  # [num_occurrences] global ids, the seeds first. None: `src_nodes` are global ids
    times: Times | None = None  # [num_occurrences] time of its seed, or of the edge to it (`Sampler.time_bound`)

    @property
    def input_nodes(self) -> Ids:
        """Global ids of the feature rows that the first block reads."""
        if self.nodes is not None:
            return self.nodes
        return self.blocks[0].src_nodes if self.blocks else self.seeds

    def rows_by_node(self) -> tuple[Ids, Ids | slice]:
        """Returns the distinct `input_nodes`, and each one's place among them."""
        if self.nodes is None:
            return self.input_nodes, slice(None)
        nodes, places = np.unique(self.nodes, return_inverse=True)
        return nodes, places.reshape(-1)
