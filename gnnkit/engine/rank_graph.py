"""One rank's edges as a graph, for layers written for one process, and lazy copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.partition.shard import Shard


def copy_on_write(x: Tensor) -> Tensor:
    """Returns a lazy copy, whose memory is copied on the first write to either.

    Memory that was not allocated by torch, such as an array's, is copied immediately.
    """
    try:
        return torch._lazy_clone(x)
    except RuntimeError:  # torch cannot report in advance whether it supports a lazy clone
        return x.clone()


@dataclass(frozen=True, slots=True, eq=False)
class RankGraph:
    """All in-edges of a rank's rows.

    Sources are this rank's rows, followed by the halo, which consists of rows received
    from other ranks. A self-loop has the same row number at both ends.
    """

    edge_index: Tensor  # [2, held edges] int64 source row, destination row < num_dst
    weight: Tensor | None  # [held edges] the graph's weights
    nodes: Tensor | None = None  # [num_sources] int64 global ids. None: row numbers are ids
    dst_nodes: Tensor | None = None  # [num_dst] int64 global ids, if destinations are not the first sources
    edges: HeldEdges | None = None  # kernels over the same edges. None: layers must not fuse their sums
    edge_set: Any = field(default=None, init=False)  # cache of values that layers derive from these edges

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors by their attribute in an adjacency."""
        weight = {} if self.weight is None else {"rank_graph.weight": self.weight}
        return {"rank_graph.edge_index": self.edge_index} | weight

    @classmethod
    def of(cls, shard: Shard, weight: Tensor | None, edges: HeldEdges) -> RankGraph:
        """Lists the edges of a shard.

        The shard must hold all in-edges of the owned rows, and no other edges.

        Args:
            shard: This rank's shard.
            weight: [held edges] edge weights. If None, the graph has none.
            edges: Kernels over the shard's edges.
        """
        device = edges.device
        rows = np.repeat(np.arange(len(shard.owned)), shard.num_in_edges)
        edge_index = np.stack([np.asarray(shard.csc.indices, np.int64), rows])
        nodes = torch.from_numpy(shard.sources.astype(np.int64)).to(device)
        return cls(torch.from_numpy(edge_index).to(device), weight, nodes, edges=edges)
