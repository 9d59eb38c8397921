"""One rank's part of a joint batch: sampled in-edges of its owned nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Tally
from gnnkit.engine.block import ComputedValues, LayerValues
from gnnkit.engine.joint import JointAdjacency, ShardLayers
from gnnkit.engine.remote.frontier import COOPERATIVE, Frontier
from gnnkit.engine.remote.owners import Owners
from gnnkit.engine.visible import TimedLayers, draws_latest
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.wire import Wire
from gnnkit.graph import Block, Ids
from gnnkit.graph.times import Occurrences, Times, latest_visible
from gnnkit.sampler import Hop
from gnnkit.sampler.base import join_hops
from gnnkit.strategy.base import Worker, weighing_sums
from gnnkit.strategy.seeds import Step


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One rank's part of a batch, in codes of the nodes that `ShardLayers` numbers."""

    nodes: Ids  # [num_known] the batch's owned nodes, with this rank's seeds first
    blocks: list[Block]  # by layer. Sources are owned nodes, then other ranks' nodes
    routes: list[Route]  # by layer, for other ranks' rows
    of: Occurrences  # the codes

    @property
    def owned(self) -> Ids:  # [num_known] positions in `Shard.owned`
        return self.of.nodes(self.nodes)


class OwnerDraws:
    """Samples hop by hop, each node at its owner.

    A rank samples in-edges of its owned nodes, and notifies the sources' owners. An
    owner therefore expands a node once at each time, even if several ranks reach it.
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
        shard, comm, self._sampler = worker.shard, worker.comm, weighing_sums(worker.sampler)
        self._timed, relations = worker.timed_edges(model, owners), worker.relations_for(model)
        frontier = (shard, owners, self._sampler, comm, worker.threads, COOPERATIVE)
        self._frontier = Frontier(*frontier, relations=relations, timed=self._timed)
        self.layers = ShardLayers(shard, model, worker.dtype, worker.device, inverse_edges=worker.inverse_edges)
        self._plane = Peers(Wire(comm, range(comm.world_size), tally), Passes())

    def draw(self, seeds: Ids, of: Occurrences, key: int, comm: Communicator) -> Drawn:
        """Samples all hops. Collective.

        Args:
            seeds: [num_seeds] codes of positions of owned nodes.
            of: The codes, the same on all ranks.
            key: The batch's random key, equal on all ranks.
            comm: Connects the ranks.
        """
        sampler, known, newest = self._frontier.sampler, seeds, 0
        hops: list[Hop] = []
        blocks: list[Block] = []
        routes: list[Route] = []
        for hop in range(sampler.num_hops):
            drawn = self._draw_hop(known[0 if sampler.redraw else newest :], of, hop, key)
            hops = [drawn] if sampler.redraw else [*hops, drawn]
            rows, newest = join_hops(hops, np.int64), len(known)
            distinct, sources = np.unique(rows.sources, return_inverse=True)
            known, away, route = self._reach(known, distinct, of, comm)
            nodes = np.concatenate([known, away])
            indices = _find(nodes, distinct)[sources]
            blocks.insert(0, Block(rows.indptr, indices, nodes, rows.edge_ids, rows.weight, rows.relation))
            routes.insert(0, route)
        return Drawn(known, blocks, routes, of)

    def adjacencies(self, drawn: Drawn, step: Step) -> tuple[JointAdjacency, ...]:
        """Creates one adjacency per layer."""
        layers: LayerValues = self.layers
        if self._timed is not None:
            of, latest = drawn.of, draws_latest(self._sampler)
            bounds = latest_visible(of.times, self._sampler.time)
            at = ComputedValues(of.nodes), _by_tree(bounds, of), _by_tree(of.times, of)
            layers = TimedLayers(layers, at, self._timed, drawn.blocks[0], counts_drawn=latest)
        parts = zip(step.kept(drawn.blocks, layers), drawn.routes, strict=True)
        return tuple(
            JointAdjacency(layers, block, route, layer, step.key) for layer, (block, route) in enumerate(parts)
        )

    def _draw_hop(self, codes: Ids, of: Occurrences, hop: int, key: int) -> Hop:
        nodes, trees = of.nodes(codes), of.trees(codes)
        drawn = self._frontier.draw_held(nodes, hop, key, None if self._timed is None else of.times[trees])
        return replace(drawn, sources=of.codes(drawn.sources, trees.repeat(np.diff(drawn.indptr))))

    def _reach(self, known: Ids, sources: Ids, of: Occurrences, comm: Communicator) -> tuple[Ids, Ids, Route]:
        """Notifies the owners of reached sources. Collective.

        Args:
            known: [num_known] the batch's owned nodes so far.
            sources: Distinct sources of sampled edges, ascending.
            of: The codes.
            comm: Connects the ranks.

        Returns:
            The batch's owned nodes, starting with `known`. Other ranks' nodes that are
                sources on this rank, by (owner, id). The route of their rows.
        """
        layers, owned = self.layers, self.layers.shard.owned
        owned_sources, away = np.split(sources, [np.searchsorted(sources, layers.num_owned * len(of.times))])
        nodes = of.nodes(away)
        demand = Demand.of(
            of.codes(layers.nodes[nodes], of.trees(away)), layers.halo_owner[nodes - layers.num_owned], comm
        )
        asked = demand.asked.cpu().numpy()
        reached = np.union1d(owned_sources, of.codes(np.searchsorted(owned, of.nodes(asked)), of.trees(asked)))
        known = np.concatenate([known, np.setdiff1d(reached, known, assume_unique=True)])
        rows = of.codes(owned[of.nodes(known)], of.trees(known))
        return known, away, Route("gather", demand, rows, self._plane, comm, copies=len(of.times))


def _by_tree(times: Times, of: Occurrences) -> ComputedValues:
    """Returns the times [num_trees] of codes."""
    return ComputedValues(lambda codes: times[of.trees(codes)])


def _find(nodes: Ids, wanted: Ids) -> Ids:  # [k]
    """Returns where each wanted node is among distinct nodes."""
    order = np.argsort(nodes)
    return order[np.searchsorted(nodes, wanted, sorter=order)]
