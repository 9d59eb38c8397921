"""Batches drawn by all ranks together, each for its owned nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import BlockAdjacency, Rows, Tally, derive
from gnnkit.engine.block import ComputedValues, LayerValues, ShardLayers
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.engine.remote.frontier import COOPERATIVE, Frontier
from gnnkit.engine.remote.owners import MessageCounter, Owners, to_all
from gnnkit.engine.visible import TimedLayers, draws_latest
from gnnkit.exchange.base import Passes
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.wire import Wire
from gnnkit.graph import Block, Ids
from gnnkit.graph.times import Occurrences, Times, latest_visible
from gnnkit.sampler import Hop
from gnnkit.sampler.base import join_hops
from gnnkit.strategy.base import Batch, Worker, weighing_sums
from gnnkit.strategy.on_disk import BackgroundBatches, bytes_of
from gnnkit.strategy.seeds import MakeStep, OwnedSeeds, Step, make_seeds
from gnnkit.utils.checks import Array


@dataclass(frozen=True, slots=True, eq=False)
class JointDraws:
    """One rank's part of a batch, in codes of the nodes that `ShardLayers` numbers."""

    nodes: Ids  # [num_nodes] the batch's owned nodes, with this rank's seeds first
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
        """Prepares the sampler's inputs. Collective.

        Args:
            worker: This rank.
            model: The model, with `self_loops`.
            owners: Every node's owner.
            tally: Counts the exchanged rows.
        """
        assert worker.sampler is not None
        shard, comm, self._sampler = worker.shard, worker.comm, weighing_sums(worker.sampler)
        self._timed_edges, relations = worker.timed_edges(model, owners), worker.relations_for(model)
        frontier = (shard, owners, self._sampler, comm, worker.threads, COOPERATIVE)
        self._frontier = Frontier(*frontier, relations=relations, timed_edges=self._timed_edges)
        self.layers = ShardLayers(shard, model, worker.dtype, worker.device, inverse_edges=worker.inverse_edges)
        self._plane = Peers(Wire(comm, range(comm.world_size), tally), Passes())

    def draw(self, seeds: Ids, of: Occurrences, key: int, comm: Communicator) -> JointDraws:
        """Samples all hops. Collective.

        Args:
            seeds: [num_seeds] codes of positions of owned nodes.
            of: The codes, the same on all ranks.
            key: The batch's random key, equal on all ranks.
            comm: Connects the ranks.
        """
        sampler, batch_nodes, newest = self._frontier.sampler, seeds, 0
        hops: list[Hop] = []
        blocks: list[Block] = []
        routes: list[Route] = []
        for hop in range(sampler.num_hops):
            new_hop = self._draw_hop(batch_nodes[0 if sampler.redraw else newest :], of, hop, key)
            hops = [new_hop] if sampler.redraw else [*hops, new_hop]
            rows, newest = join_hops(hops, np.int64), len(batch_nodes)
            distinct, sources = np.unique(rows.sources, return_inverse=True)
            batch_nodes, away, route = self._reach(batch_nodes, distinct, of, comm)
            nodes = np.concatenate([batch_nodes, away])
            indices = _find(nodes, distinct)[sources]
            blocks.insert(0, Block(rows.indptr, indices, nodes, rows.edge_ids, rows.weight, rows.relation))
            routes.insert(0, route)
        return JointDraws(batch_nodes, blocks, routes, of)

    def adjacencies(self, draws: JointDraws, step: Step) -> tuple[BlockAdjacency, ...]:
        """Creates one adjacency per layer."""
        layers: LayerValues = self.layers
        if self._timed_edges is not None:
            of, latest = draws.of, draws_latest(self._sampler)
            bounds = latest_visible(of.times, self._sampler.time)
            at = ComputedValues(of.nodes), _by_tree(bounds, of), _by_tree(of.times, of)
            layers = TimedLayers(layers, at, self._timed_edges, draws.blocks[0], counts_drawn=latest)
        parts = zip(step.without_pairs(draws.blocks, layers), draws.routes, strict=True)
        return tuple(
            BlockAdjacency(
                layers, block, derive(step.key, layer), LayerRoutes.joint(len(block.src_nodes), route, layer)
            )
            for layer, (block, route) in enumerate(parts)
        )

    def _draw_hop(self, codes: Ids, of: Occurrences, hop: int, key: int) -> Hop:
        nodes, trees = of.nodes(codes), of.trees(codes)
        draws = self._frontier.draw_held(nodes, hop, key, None if self._timed_edges is None else of.times[trees])
        return replace(draws, sources=of.codes(draws.sources, trees.repeat(np.diff(draws.indptr))))

    def _reach(self, batch_nodes: Ids, sources: Ids, of: Occurrences, comm: Communicator) -> tuple[Ids, Ids, Route]:
        """Notifies the owners of reached sources. Collective.

        Args:
            batch_nodes: [num_nodes] the batch's owned nodes so far.
            sources: Distinct sources of sampled edges, ascending.
            of: The codes.
            comm: Connects the ranks.

        Returns:
            The batch's owned nodes, starting with `batch_nodes`, other ranks' nodes
                that are sources on this rank, by (owner, id), and their rows' route.
        """
        layers, owned_nodes = self.layers, self.layers.shard.owned
        owned_sources, away = np.split(sources, [np.searchsorted(sources, layers.num_owned * len(of.times))])
        nodes = of.nodes(away)
        demand = Demand.of(
            of.codes(layers.nodes[nodes], of.trees(away)), layers.halo_owner[nodes - layers.num_owned], comm
        )
        peer_requests = demand.requested_ids.cpu().numpy()
        reached_nodes = np.union1d(
            owned_sources, of.codes(np.searchsorted(owned_nodes, of.nodes(peer_requests)), of.trees(peer_requests))
        )
        batch_nodes = np.concatenate([batch_nodes, np.setdiff1d(reached_nodes, batch_nodes, assume_unique=True)])
        rows = of.codes(owned_nodes[of.nodes(batch_nodes)], of.trees(batch_nodes))
        return batch_nodes, away, Route("gather", demand, rows, self._plane, comm, copies=len(of.times))


def _by_tree(times: Times, of: Occurrences) -> ComputedValues:
    """Returns the times [num_trees] of codes."""
    return ComputedValues(lambda codes: times[of.trees(codes)])


def _find(nodes: Ids, queries: Ids) -> Ids:  # [k]
    """Returns each query's position among distinct nodes."""
    order = np.argsort(nodes)
    return order[np.searchsorted(nodes, queries, sorter=order)]


@dataclass(frozen=True, slots=True, eq=False)
class _BatchPart:
    """One rank's part of a batch, before its rows are read."""

    step: Step
    num_seeds: int  # owned seeds of all ranks, the first of `draws.nodes`
    draws: JointDraws
    reach: Reach | None  # provides the ends of this rank's pairs
    counter: MessageCounter
    local_nodes: Ids  # global ids of the batch's owned nodes
    x: Array | None = None  # [num_known, width] their features, if read from disk

    @property
    def num_bytes(self) -> int:
        """Memory of the batch. Routes take as much as the blocks."""
        return 2 * bytes_of(self.draws.blocks) + self.local_nodes.nbytes


class CooperativeBatches(BackgroundBatches[_BatchPart, _BatchPart]):
    """Joint batches, in which each rank holds its owned nodes.

    Implements cooperative minibatching (Balin, LaSalle and Catalyurek, TMLR 2025). All
    ranks draw one batch, which is the same as one rank's batch with the seeds of all.
    Features are not exchanged. Each layer's rows, and the ends of pairs, are received
    from their owners.
    """

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard of a grid with one column and one slice.
            model: The model, with `num_layers` and `self_loops`.
            batch_size: Seeds per worker and step.
            tally: Counter of exchanged rows.
            prefetch: Batches drawn in advance.
        """
        self._model = model
        owners = Owners.of(worker.shard, worker.comm)
        self._draws = OwnerDraws(worker, model, owners, tally)
        seeds = make_seeds(worker, batch_size, lambda: OwnedSeeds(worker, batch_size))
        self._lookup = Lookup(worker.comm, worker.owned, owners.rank_of, tally)
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        super().__init__(worker, seeds, tally, prefetch, worker.disk)

    def draw(self, make_step: MakeStep, number: int, comm: Communicator) -> _BatchPart:
        """Draws one batch. Collective."""
        counter, owned_nodes, reach = MessageCounter.zeros(comm.world_size), self.worker.owned, None
        step = make_step(number, comm, counter)
        seeds, of = step.seeds, Occurrences(np.zeros(1, np.int64))
        if step.times is not None:
            of = Occurrences(np.unique(np.concatenate(to_all(comm, np.unique(step.times), counter))))
            seeds = of.codes(seeds, np.searchsorted(of.times, step.times))
        if step.pairs is not None:
            request = self._lookup.ask(seeds, comm, len(of.times))
            counter.add(comm.rank, [8 * count for count in request.demand.counts])
            step = replace(step, pairs=replace(step.pairs, rows=request.place[step.pairs.rows]))
            seeds = request.local_nodes
            reach = self._lookup.reach(request, seeds, comm, self._num_layers)
        positions = of.codes(np.searchsorted(owned_nodes, of.nodes(seeds)), of.trees(seeds))
        draws = self._draws.draw(positions, of, step.draws, comm)
        local_nodes = owned_nodes[draws.owned]
        return _BatchPart(
            step, len(seeds), draws, reach, counter, local_nodes if step.times is None else np.unique(local_nodes)
        )

    def with_rows(self, sample: _BatchPart, read: Array | None, comm: Communicator) -> _BatchPart:
        if read is None or sample.step.times is None:
            return sample if read is None else replace(sample, x=read)
        return replace(sample, x=read[np.searchsorted(sample.local_nodes, self.worker.owned[sample.draws.owned])])

    def batch(self, sample: _BatchPart) -> Batch:
        worker = self.worker
        sample.counter.record(self.tally, worker.comm.rank)
        places = sample.draws.owned
        nodes = worker.owned[places]
        if sample.x is None:
            x: Rows = worker.features.input_rows(nodes, self._model)
        else:
            x = worker.features.convert(sample.x)
        adjacencies = self._draws.adjacencies(sample.draws, sample.step)
        labels = worker.shard.labels[places[: sample.num_seeds]]
        return sample.step.batch(x, adjacencies, labels, sample.reach, nodes=nodes)
