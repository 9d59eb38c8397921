"""One rank's part of a batch: in-edges of owned nodes, drawn hop by hop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Tally
from gnnkit.engine.joint import JointAdjacency, ShardLayers
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.wire import Wire
from gnnkit.graph import Block, Ids
from gnnkit.remote.frontier import COOPERATIVE, Frontier
from gnnkit.remote.owners import Owners
from gnnkit.sampler import Hop
from gnnkit.sampler.base import join_hops
from gnnkit.strategy.base import Worker, weighing_sums
from gnnkit.strategy.seeds import Step


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One rank's part of a batch, in the numbers of `ShardLayers`."""

    nodes: Ids  # [num_known] owned nodes of the batch, the rank's seeds first
    blocks: list[Block]  # by layer. Sources are owned nodes, then those of other ranks
    routes: list[Route]  # by layer, for the rows of other ranks

    def adjacencies(self, layers: ShardLayers, step: Step) -> tuple[JointAdjacency, ...]:
        """Makes one adjacency for each layer."""
        parts = zip(step.kept(self.blocks, layers), self.routes, strict=True)
        return tuple(
            JointAdjacency(layers, block, route, layer, step.key) for layer, (block, route) in enumerate(parts)
        )


class OwnerDraws:
    """Draws hop by hop, each node at its owner.

    A rank draws in-edges of its owned nodes, and tells the owners of the sources. The
    owner then knows a node once, whichever rank has found the node.
    """

    def __init__(self, worker: Worker, model: nn.Module, owners: Owners, tally: Tally) -> None:
        """Finds out what the sampler reads. Collective.

        Args:
            worker: This rank.
            model: Says whether nodes get loops.
            owners: The owner of every node.
            tally: Counts the rows moved.
        """
        assert worker.sampler is not None
        shard, comm, sampler = worker.shard, worker.comm, weighing_sums(worker.sampler)
        self._frontier = Frontier(shard, owners, sampler, comm, worker.threads, COOPERATIVE)
        self.layers = ShardLayers(shard, model, worker.dtype, worker.device)
        self._plane = Peers(Wire(comm, range(comm.world_size), tally), Passes())
        self._place = np.full(len(self.layers.nodes), -1, np.int64)  # row of each node in the current batch

    def draw(self, seeds: Ids, key: int, comm: Communicator) -> Drawn:
        """Draws all hops. Collective.

        Args:
            seeds: [num_seeds] owned nodes.
            key: Key of the batch, the same on all ranks.
            comm: The ranks.
        """
        sampler, known, newest = self._frontier.sampler, seeds, 0
        self._place[known] = np.arange(len(known))
        hops: list[Hop] = []
        blocks: list[Block] = []
        routes: list[Route] = []
        for hop in range(sampler.num_hops):
            drawn = self._frontier.draw_held(known[0 if sampler.redraw else newest :], hop, key)
            hops = [drawn] if sampler.redraw else [*hops, drawn]
            rows, newest = join_hops(hops, np.int64), len(known)
            sources = rows.sources
            known, away, route = self._reach(known, sources, comm)
            nodes = np.concatenate([known, away])
            self._place[away] = np.arange(len(known), len(nodes))
            blocks.insert(0, Block(rows.indptr, self._place[sources], nodes, rows.edge_ids, rows.weight))
            routes.insert(0, route)
        self._place[known] = -1
        return Drawn(known, blocks, routes)

    def _reach(self, known: Ids, sources: Ids, comm: Communicator) -> tuple[Ids, Ids, Route]:
        """Tells owners of the sources that these are reached. Collective.

        Args:
            known: [num_known] owned nodes of the batch so far.
            sources: [num_draws] nodes that edges leave.
            comm: The ranks.

        Returns:
            The owned nodes of the batch, `known` first. The nodes of other ranks that
            edges of this rank leave, by (owner, id). The route of their rows.
        """
        layers, distinct = self.layers, np.unique(sources)
        own, away = np.split(distinct, [np.searchsorted(distinct, layers.num_owned)])
        demand = Demand.of(layers.nodes[away], layers.halo_owner[away - layers.num_owned], comm)
        reached = np.union1d(own, np.searchsorted(layers.shard.owned, demand.asked.cpu().numpy()))
        new = reached[self._place[reached] < 0]
        self._place[new] = np.arange(len(known), len(known) + len(new))
        known = np.concatenate([known, new])
        return known, away, Route("gather", demand, layers.shard.owned[known], self._plane, comm)
