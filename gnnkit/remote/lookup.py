"""Rows of any nodes, from the ranks that own these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.tally import Tally
from gnnkit.exchange.wire import Wire
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
        comm = self._peers.comm
        asked = self.ask(nodes, comm)
        return self.reach(asked, self._owned, comm, layer), torch.from_numpy(asked.place).to(comm.device)

    def ask(self, nodes: Ids, comm: Communicator) -> Asked:
        """Tells the owners which nodes this rank looks up. Collective.

        Args:
            nodes: Global ids in any order, of any shape.
            comm: The ranks.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        distinct = distinct.astype(np.int64)
        order = np.argsort(self._owner[distinct], kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        wanted = distinct[order]
        demand = Demand.of(wanted, self._owner[wanted], comm)
        return Asked(demand, place[inverse.reshape(nodes.shape)])

    def reach(self, asked: Asked, rows: Ids, comm: Communicator, layer: int = 0) -> Reach:
        """Returns the way of the rows that were asked for. Collective.

        Args:
            asked: The nodes that all ranks look up.
            rows: [num_rows] nodes of this rank's rows, all that others ask for among
                these.
            comm: The ranks.
            layer: Layer of the model, for counting.
        """
        route = Route("gather", asked.demand, rows, self._peers, comm)

        def reach(rows: Tensor) -> Tensor:
            return route.spread(rows, layer)

        return reach


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The nodes that a rank looks up, and those that others look up here."""

    demand: Demand
    place: Ids  # where the row of each node is among the rows that come, in the shape of the nodes

    @property
    def here(self) -> Ids:  # [num_asked] int64, ascending
        """The distinct nodes that ranks ask this rank for."""
        return np.unique(self.demand.asked.cpu().numpy())
