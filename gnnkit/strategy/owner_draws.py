"""One rank's part of a batch: in-edges of owned nodes, drawn hop by hop."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from torch import nn

from gnnkit.engine import Tally
from gnnkit.engine.exchange import Demand, Peers, Route
from gnnkit.engine.joint import JointAdjacency, ShardLayers
from gnnkit.engine.owners import Owners
from gnnkit.engine.schedule import Passes
from gnnkit.engine.source_sums import SourceSums
from gnnkit.engine.wire import Wire
from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids
from gnnkit.sampler import Hop, Sampler
from gnnkit.sampler.base import NativeSampler, Reading, join_hops
from gnnkit.strategy.base import Worker, weighing_sums


def check_draws(sampler: Sampler) -> NativeSampler:
    """Returns a sampler whose nodes draw alone, each from its own in-edges.

    Raises `UserError` for other samplers, with the reason.
    """
    name = f"strategy.mode=cooperative: sampler={type(sampler).__name__}"
    if not isinstance(sampler, NativeSampler) or type(sampler).draw is not NativeSampler.draw:
        raise UserError(f"{name} draws in Python from the whole graph, and a rank holds a shard")
    if not sampler.by_node:
        raise UserError(f"{name} draws for a node according to other nodes of the batch, which other ranks own")
    if not sampler.draws_edges:
        raise UserError(f"{name} walks through nodes that other ranks own")
    return sampler


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One rank's part of a batch, in the numbers of `ShardLayers`."""

    nodes: Ids  # [num_known] owned nodes of the batch, the rank's seeds first
    blocks: list[Block]  # by layer. Sources are owned nodes, then those of other ranks
    routes: list[Route]  # by layer, for the rows of other ranks

    def adjacencies(self, layers: ShardLayers, key: int) -> tuple[JointAdjacency, ...]:
        """Makes one adjacency for each layer. `key` is the step's."""
        parts = zip(self.blocks, self.routes, strict=True)
        return tuple(JointAdjacency(layers, block, route, layer, key) for layer, (block, route) in enumerate(parts))


class OwnerDraws:
    """Draws hop by hop, each node at its owner.

    A rank draws in-edges of its owned nodes, and tells the owners of the sources. The
    owner then knows a node once, whichever rank has found the node.
    """

    def __init__(self, worker: Worker, model: nn.Module, tally: Tally) -> None:
        """Finds out what the sampler reads. Collective.

        Args:
            worker: This rank.
            model: Says whether nodes get loops.
            tally: Counts the rows moved.
        """
        assert worker.sampler is not None
        sampler = copy.copy(check_draws(weighing_sums(worker.sampler)))
        sampler.threads = worker.threads
        self.layers = layers = ShardLayers(worker.shard, model, worker.dtype, worker.device)
        self._sampler, self._tally, self._comm = sampler, tally, worker.comm
        self._plane = Peers(Wire(worker.comm, range(worker.comm.world_size), tally), Passes())
        nodes = layers.nodes
        out_edges = self._out_edges() if sampler.reads_out_edges else None
        self._reading: Reading = sampler.part(layers.csc, nodes[: layers.num_owned], nodes, out_edges)
        self._place = np.full(len(nodes), -1, np.int64)  # row of each node among those of the current batch

    def _out_edges(self) -> Ids:  # [num_owned + num_halo] int64
        """Counts the out-edges of all nodes of the shard in the whole graph."""
        layers, comm = self.layers, self._comm
        sums = SourceSums(layers.shard, Owners.of(layers.shard, comm), comm)
        own = sums.out_edges()
        return np.concatenate([own, sums.spread(own)[layers.away]])

    def draw(self, seeds: Ids, key: int) -> Drawn:
        """Draws all hops. Collective.

        Args:
            seeds: [num_seeds] owned nodes.
            key: Key of the batch, the same on all ranks.
        """
        sampler, known, newest = self._sampler, seeds, 0
        self._place[known] = np.arange(len(known))
        hops: list[Hop] = []
        blocks: list[Block] = []
        routes: list[Route] = []
        for hop in range(sampler.num_hops):
            drawing = known[0 if sampler.redraw else newest :]
            drawn = sampler.draw(self._reading, drawing, hop, key=key)
            hops = [drawn] if sampler.redraw else [*hops, drawn]
            rows, newest = join_hops(hops, self.layers.csc.indices.dtype), len(known)
            known, away, route = self._reach(known, rows.sources)
            nodes = np.concatenate([known, away])
            self._place[away] = np.arange(len(known), len(nodes))
            blocks.insert(0, Block(rows.indptr, self._place[rows.sources], nodes, rows.edge_ids, rows.weight))
            routes.insert(0, route)
        self._place[known] = -1
        return Drawn(known, blocks, routes)

    def _reach(self, known: Ids, sources: Ids) -> tuple[Ids, Ids, Route]:
        """Tells owners of the sources that these are reached. Collective.

        Args:
            known: [num_known] owned nodes of the batch so far.
            sources: [num_draws] nodes that edges leave.

        Returns:
            The owned nodes of the batch, `known` first. The nodes of other ranks that
            edges of this rank leave, by (owner, id). The route of their rows.
        """
        layers, distinct = self.layers, np.unique(sources).astype(np.int64)
        own, away = np.split(distinct, [np.searchsorted(distinct, layers.num_owned)])
        with self._tally.timed():
            demand = Demand.of(layers.nodes[away], layers.halo_owner[away - layers.num_owned], self._comm)
            asked = np.searchsorted(layers.shard.owned, demand.asked.cpu().numpy())
            reached = np.union1d(own, asked)
            new = reached[self._place[reached] < 0]
            self._place[new] = np.arange(len(known), len(known) + len(new))
            known = np.concatenate([known, new])
            return known, away, Route("gather", demand, layers.shard.owned[known], self._plane)
