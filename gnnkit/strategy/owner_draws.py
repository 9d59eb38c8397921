"""One rank's part of a joint batch: sampled in-edges of its owned nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Tally
from gnnkit.engine.joint import JointAdjacency, ShardLayers
from gnnkit.engine.remote.frontier import COOPERATIVE, Frontier
from gnnkit.engine.remote.owners import Owners
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.wire import Wire
from gnnkit.graph import Block, Ids
from gnnkit.sampler import Hop
from gnnkit.sampler.base import join_hops
from gnnkit.strategy.base import Worker, weighing_sums
from gnnkit.strategy.seeds import Step


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One rank's part of a batch, in the numbering of `ShardLayers`."""

    nodes: Ids  # [num_known] the batch's owned nodes, with this rank's seeds first
    blocks: list[Block]  # by layer. Sources are owned nodes, then other ranks' nodes
    routes: list[Route]  # by layer, for other ranks' rows

    def adjacencies(self, layers: ShardLayers, step: Step) -> tuple[JointAdjacency, ...]:
        """Creates one adjacency per layer."""
        parts = zip(step.kept(self.blocks, layers), self.routes, strict=True)
        return tuple(
            JointAdjacency(layers, block, route, layer, step.key) for layer, (block, route) in enumerate(parts)
        )


class OwnerDraws:
    """Samples hop by hop, each node at its owner.

    A rank samples in-edges of its owned nodes, and notifies the sources' owners. An
    owner therefore expands a node once, even if several ranks reach it.
    """

    def __init__(self, worker: Worker, model: nn.Module, owners: Owners, tally: Tally) -> None:
        """Prepares what the sampler reads. Collective.

        Args:
            worker: This rank.
            model: The model, with `self_loops`.
            owners: Every node's owner.
            tally: Counts the exchanged rows.
        """
        assert worker.sampler is not None
        shard, comm, sampler = worker.shard, worker.comm, weighing_sums(worker.sampler)
        relations = worker.relations_for(model)
        self._frontier = Frontier(shard, owners, sampler, comm, worker.threads, COOPERATIVE, relations=relations)
        self.layers = ShardLayers(shard, model, worker.dtype, worker.device, inverse_edges=worker.inverse_edges)
        self._plane = Peers(Wire(comm, range(comm.world_size), tally), Passes())
        self._place = np.full(len(self.layers.nodes), -1, np.int64)  # each node's row in the current batch

    def draw(self, seeds: Ids, key: int, comm: Communicator) -> Drawn:
        """Samples all hops. Collective.

        Args:
            seeds: [num_seeds] owned nodes.
            key: The batch's random key, equal on all ranks.
            comm: Connects the ranks.
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
            blocks.insert(0, Block(rows.indptr, self._place[sources], nodes, rows.edge_ids, rows.weight, rows.relation))
            routes.insert(0, route)
        self._place[known] = -1
        return Drawn(known, blocks, routes)

    def _reach(self, known: Ids, sources: Ids, comm: Communicator) -> tuple[Ids, Ids, Route]:
        """Notifies the owners of reached sources. Collective.

        Args:
            known: [num_known] the batch's owned nodes so far.
            sources: [num_draws] sources of sampled edges.
            comm: Connects the ranks.

        Returns:
            The batch's owned nodes, starting with `known`. Other ranks' nodes that are
                sources on this rank, by (owner, id). The route of their rows.
        """
        layers, distinct = self.layers, np.unique(sources)
        owned_sources, away = np.split(distinct, [np.searchsorted(distinct, layers.num_owned)])
        demand = Demand.of(layers.nodes[away], layers.halo_owner[away - layers.num_owned], comm)
        reached = np.union1d(owned_sources, np.searchsorted(layers.shard.owned, demand.asked.cpu().numpy()))
        new = reached[self._place[reached] < 0]
        self._place[new] = np.arange(len(known), len(known) + len(new))
        known = np.concatenate([known, new])
        return known, away, Route("gather", demand, layers.shard.owned[known], self._plane, comm)
