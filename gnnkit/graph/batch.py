"""Sampled mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.graph.types import Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch, renumbered from zero (DGL's MFG).

    All edges lead into the first `num_dst` of `src_nodes`.
    """

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids, the num_dst destinations first
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
