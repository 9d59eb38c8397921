"""Batches of every rank, whose first layer all ranks compute by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency, BlockAdjacency, TableFeatures, Tally
from gnnkit.engine.columns import ColumnAdjacency, joined, packed, to_blocks, unpacked
from gnnkit.engine.dropout import derive
from gnnkit.engine.exchange import Peers, Route, from_all
from gnnkit.engine.schedule import Passes
from gnnkit.engine.wire import Wire
from gnnkit.errors import UserError
from gnnkit.graph import Block
from gnnkit.partition.traffic import column_shares
from gnnkit.strategy.base import Worker
from gnnkit.strategy.sampled import SampledBatches


class PushPullBatches(SampledBatches):
    """Sampled batches whose input features never move (P3: Gandhi and Iyer, OSDI 2021).

    Each rank holds some columns of all nodes' features. The first block of each rank
    goes to all ranks. These push the products of their columns to the rank.
    """

    gathers = False

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Reads this rank's columns.

        Args:
            worker: This rank, with graph and sampler.
            model: Its first layer reads `columns` of an adjacency.
            batch_size: Seeds per worker and step.
            tally: Counts the rows moved.
            prefetch: Batches drawn ahead.
        """
        if not getattr(model, "reads_columns", False):
            raise UserError(
                f"strategy.mode=push_pull adds up products of columns, so the first layer must be linear before the "
                f"sum over in-edges, and {type(model).__name__} is not: choose model=gcn, model=gin, model=sage with "
                "model.aggregator=mean, or strategy.mode=cooperative"
            )
        super().__init__(worker, model, batch_size=batch_size, prefetch=prefetch)
        comm, features, self._tally = worker.comm, self.graph.features, tally
        self._plane = Peers(Wire(comm, range(comm.world_size), tally), Passes())
        ends = np.cumsum(column_shares(features.shape[1], comm.world_size))
        self._columns = slice(int(ends[comm.rank - 1]) if comm.rank else 0, int(ends[comm.rank]))
        self._features = TableFeatures(
            np.ascontiguousarray(features[:, self._columns]), None, worker.dtype, worker.device
        )

    def close(self) -> None:
        """Does nothing. Draws end with an epoch."""

    def _inputs(
        self, blocks: Sequence[Block], x: npt.NDArray[Any] | None, key: int
    ) -> tuple[Tensor, Sequence[Adjacency]]:
        comm, (first, *others) = self.worker.comm, blocks
        numbers, counts = from_all(packed(first, comm.device), comm, self._tally)
        firsts = [unpacked(part.cpu().numpy()) for part in torch.split(numbers, counts)]
        route = Route("reduce", to_blocks(firsts, comm), first.src_nodes[: first.num_dst], self._plane)
        block = joined(firsts)
        adjacency = ColumnAdjacency(self.layers, block, route, self._columns, derive(key, 0))
        rest = (BlockAdjacency(self.layers, other, derive(key, layer)) for layer, other in enumerate(others, 1))
        return self._features.rows(block.src_nodes), (adjacency, *rest)
