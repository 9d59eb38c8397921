"""Rows of any nodes, from the ranks that own these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.exchange import Demand, Peers, Route
from gnnkit.engine.schedule import Passes
from gnnkit.engine.tally import Tally
from gnnkit.engine.wire import Wire
from gnnkit.graph import Ids

Reach = Callable[[Tensor], Tensor]  # [num_owned, ...] -> [num_found, ...]


class Lookup:
    """Brings the rows of any nodes to a rank, whatever the layout.

    Between layers every rank holds the whole rows of the nodes that it owns.
    """

    def __init__(self, comm: Communicator, owned: Ids, owner: Ids, tally: Tally) -> None:
        """Keeps the parts.

        Args:
            comm: The ranks of the run.
            owned: [num_owned] nodes of this rank, in the order of rows.
            owner: [num_nodes] rank of each node.
            tally: Counts the rows moved.
        """
        self._owned, self._owner = owned, owner
        self._peers = Peers(Wire(comm, range(comm.world_size), tally), Passes())

    def find(self, nodes: Ids, layer: int = 0) -> tuple[Reach, Tensor]:
        """Finds out who sends which rows. Collective.

        The first result turns the rows of the owned nodes into the rows found. It is
        collective and differentiable. The second says where the row of each of `nodes`
        is among these.

        Args:
            nodes: Global ids in any order, of any shape.
            layer: Layer of the model, for counting.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        distinct = distinct.astype(np.int64)
        order = np.argsort(self._owner[distinct], kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        wanted = distinct[order]
        route = Route("gather", Demand.of(wanted, self._owner[wanted], self._peers.comm), self._owned, self._peers)

        def reach(rows: Tensor) -> Tensor:
            return route.spread(rows, layer)

        return reach, torch.from_numpy(place[inverse.reshape(nodes.shape)]).to(self._peers.comm.device)
