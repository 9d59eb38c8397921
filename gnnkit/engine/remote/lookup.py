"""Rows of arbitrary nodes, received from their owners."""

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
    """Provides rows of arbitrary nodes, for any layout.

    Between layers, every rank holds the complete rows of its owned nodes.
    """

    def __init__(self, comm: Communicator, owned_nodes: Ids, owner: Ids, tally: Tally) -> None:
        """Stores the ownership.

        Args:
            comm: The ranks of the run.
            owned_nodes: [num_owned] this rank's nodes, in the order of rows.
            owner: [num_nodes] rank of each node.
            tally: Counter of exchanged rows.
        """
        self._owned, self._owner = owned_nodes, owner
        self._peers = Peers(Wire(comm, range(comm.world_size), tally), Passes())

    def find(self, nodes: Ids, layer: int = 0) -> tuple[Reach, Tensor]:
        """Sets up an exchange of rows. Collective.

        The first result maps the owned nodes' rows to the rows found. It is collective
        and differentiable. The second gives the position of each node's row among them.

        Args:
            nodes: Global ids in any order and shape.
            layer: Layer of the model, for the tally.
        """
        comm = self._peers.comm
        if comm.world_size == 1:  # all rows are here
            place = np.empty(len(self._owner), np.int64)
            place[self._owned] = np.arange(len(self._owned))
            return lambda rows: rows, torch.from_numpy(place[nodes]).to(comm.device)
        request = self.ask(nodes, comm)
        return self.reach(request, self._owned, comm, layer), torch.from_numpy(request.place).to(comm.device)

    def ask(self, nodes: Ids, comm: Communicator, copies: int = 1) -> LookupRequest:
        """Sends the owners the nodes that this rank looks up. Collective.

        Args:
            nodes: Ids like those of `Route`, in any order and shape.
            comm: The ranks.
            copies: As for `Route`.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        distinct = distinct.astype(np.int64)
        owner = self._owner[distinct // copies]
        order = np.argsort(owner, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        nodes_by_owner = distinct[order]
        demand = Demand.of(nodes_by_owner, owner[order], comm)
        return LookupRequest(demand, place[inverse.reshape(nodes.shape)])

    def reach(self, request: LookupRequest, rows: Ids, comm: Communicator, layer: int = 0) -> Reach:
        """Returns a function that exchanges the requested rows. Collective.

        Args:
            request: The nodes that all ranks look up.
            rows: [num_rows] nodes of this rank's rows, including all requested ones.
            comm: The ranks.
            layer: Layer of the model, for the tally.
        """
        route = Route("gather", request.demand, rows, self._peers, comm)

        def reach(rows: Tensor) -> Tensor:
            return route.spread(rows, layer)

        return reach


@dataclass(frozen=True, slots=True, eq=False)
class LookupRequest:
    """The nodes that a rank looks up, and its peers' requests."""

    demand: Demand
    place: Ids  # position of each node's row among the received ones, in the shape of the nodes

    @property
    def local_nodes(self) -> Ids:  # [num_asked] int64, ascending
        """Distinct nodes that ranks request from this rank."""
        return np.unique(self.demand.requested_ids.cpu().numpy())
