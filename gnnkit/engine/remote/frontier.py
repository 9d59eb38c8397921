"""Sampling at owners, so that no rank needs in-edges of other ranks' nodes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.engine.remote.owners import Bytes, MessageCounter, Owners, SourceSums, as_bytes, swap, swap_rows
from gnnkit.engine.visible import TimedEdges
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids, MiniBatch, RelationGroups
from gnnkit.graph.times import Occurrences, PathOccurrences, Times, latest_visible
from gnnkit.graph.types import offsets_of, take
from gnnkit.kernels.dropout import derive
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Hop, NativeSampler, Sampler
from gnnkit.sampler.base import Reading, ReadRelations, at_times, by_occurrence, draw_checked, grow

PARTITIONED, COOPERATIVE = "strategy.topology=partitioned", "strategy=joint_sample"
_COUNT = np.dtype(np.int64)  # number of draws per node


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The in-edges drawn for some nodes, in the order of the nodes."""

    indptr: Ids  # [num_nodes + 1] int64, node i has draws indptr[i]:indptr[i + 1]
    edges: npt.NDArray[np.void]  # [num_draws] records with the fields of `Frontier.edge`

    @property
    def hop(self) -> Hop:
        """The same draws as a sampler's result, in global ids.

        The hop has relations only if nodes drew from each relation separately.
        """
        edges, names = self.edges, self.edges.dtype.names or ()
        weight = edges["importance"] if "importance" in names else None
        relation = edges["relation"] if "relation_degree" in names else None
        return Hop(self.indptr, edges["source"].astype(np.int64), edges["id"].astype(np.int64), weight, relation)

    @property
    def num_draws(self) -> Ids:  # [num_nodes]
        """Number of draws per node."""
        return np.diff(self.indptr)

    def take(self, nodes: Ids) -> Draws:
        """Selects the draws of nodes at positions [k], in that order."""
        counts = self.num_draws[nodes]
        indptr = offsets_of(counts)
        edges = np.repeat(self.indptr[nodes] - indptr[:-1], counts) + np.arange(indptr[-1])
        return Draws(indptr, self.edges[edges])

    @classmethod
    def join(cls, draws: Sequence[Draws]) -> Draws:
        """Concatenates the draws of one or more node lists."""
        counts = np.concatenate([part.num_draws for part in draws])
        indptr = offsets_of(counts)
        return cls(indptr, np.concatenate([part.edges for part in draws]))


class GlobalRows:
    """An owner's in-edges as a graph with all nodes, for samplers in Python.

    Only the rank's own nodes have in-edges there. This takes 8 bytes for each node of
    the complete graph.
    """

    def __init__(self, shard: Shard, relations: Sequence[str] | None) -> None:
        """Numbers the shard's rows and sources by global ids.

        Args:
            shard: This rank's nodes, with all their in-edges.
            relations: Names of the relations, if nodes draw from each separately.
        """
        self._csc, self._nodes = shard.csc, shard.owned
        self._ids = np.dtype(np.int32 if shard.num_nodes < 2**31 else np.int64)
        self._edges, degrees = shard.csc.in_edges(np.argsort(shard.owned))
        sizes = np.zeros(shard.num_nodes, np.int64)
        sizes[np.sort(shard.owned)] = degrees
        indices = shard.sources[shard.csc.indices[self._edges]].astype(self._ids)
        graph = CSC.trusted(offsets_of(sizes), indices, take(shard.csc.weight, self._edges), shard.num_nodes)
        types = take(shard.edge_types, self._edges)
        self._graph = graph if relations is None else RelationGroups.of(graph, types, relations)

    def draw(self, sampler: Sampler, positions: Ids, hop: int, key: int) -> Hop:
        """Draws one hop, like `Frontier.draw_held`."""
        nodes, rows = np.unique(self._nodes[positions], return_inverse=True)
        draws = draw_checked(sampler, self._graph, nodes.astype(self._ids), hop, key)
        if draws.edge_ids is None:
            raise UserError(f"{type(sampler).__name__}.draw must return edge_ids, because draws_at_owners is True")
        places, counts = CSC.trusted(draws.indptr, draws.sources, None, len(self._nodes)).in_edges(rows)
        edges = self._edges[draws.edge_ids[places]]
        columns = take(draws.weight, places), take(draws.relation, places)
        return Hop(offsets_of(counts), self._csc.indices[edges], edges, *columns)


class Frontier:
    """Draws the in-edges of any nodes, at each node's owner.

    The grid must have one column and one slice, so that an owner holds all in-edges of
    its nodes. Draws are keyed by global ids, so any rank's request gives the same
    result as one process with the complete graph.
    """

    def __init__(
        self,
        shard: Shard,
        owners: Owners,
        sampler: Sampler,
        comm: Communicator,
        threads: int = 1,
        mode: str = PARTITIONED,
        *,
        relations: Sequence[str] | None = None,
        types: bool = False,
        timed_edges: TimedEdges | None = None,
    ) -> None:
        """Reads the shard. Collective.

        Raises `UserError` if the shard does not have all in-edges of the owned nodes.

        Args:
            shard: This rank's nodes, with all their in-edges.
            owners: Every node's owner.
            sampler: One that `draws_at_owners`. Its importance weights are sent too.
            comm: The ranks.
            threads: Number of sampling threads. Default: 1.
            mode: The option that enables sampling at owners, for messages.
            relations: Names of the relations, if nodes draw from each of them
                separately.
            types: Whether draws include the relations of edges in any case.
            timed_edges: The shard's edges by time, for a sampler with `time`.
        """
        assert sampler.draws_at_owners, "strategies refuse others"
        self.sampler = copy.copy(sampler)
        _check_shard(shard, comm, mode)
        self.shard, self.owners, self._timed_edges = shard, owners, timed_edges
        self._reading = self._read(relations, comm, threads)
        self.ids = ids = np.dtype(np.int32 if max(shard.num_nodes, shard.num_edges) < 2**31 else np.int64)
        self._request = np.dtype([("node", ids), *([] if timed_edges is None else [("time", np.int64)])])
        self.edge = self._edge_type(by_relation=relations is not None, types=types)

    def _edge_type(self, *, by_relation: bool, types: bool) -> np.dtype[np.void]:
        """Returns the record type of drawn edges."""
        shard, none = self.shard, np.zeros(0, np.int64)
        fields: list[tuple[Any, ...]] = [("source", self.ids), ("id", self.ids)]
        if self._timed_edges is not None:
            fields.append(("time", np.int64))
        if self.draw_held(none, 0, 0, None if self._timed_edges is None else none).weight is not None:
            fields.append(("importance", np.float32))
        if shard.csc.weight is not None:
            fields.append(("weight", shard.csc.weight.dtype))
        if shard.edge_features is not None and shard.edge_features.shape[1]:
            fields.append(("features", shard.edge_features.dtype, shard.edge_features.shape[1:]))
        if (by_relation or types) and shard.edge_types is not None:
            fields.append(("relation", shard.edge_types.dtype))
        if by_relation and shard.edge_types is not None:
            fields.append(("relation_degree", np.float64))
        return np.dtype(fields)

    def _read(self, relations: Sequence[str] | None, comm: Communicator, threads: int) -> Reading | GlobalRows:
        """Collects the arrays that the sampler reads. Collective."""
        sampler, shard = self.sampler, self.shard
        if not isinstance(sampler, NativeSampler):
            return GlobalRows(shard, relations)
        sampler.threads = threads if sampler.threads is None else sampler.threads
        out_edges = _out_edges(shard, self.owners, comm) if sampler.reads_out_edges else None
        csc = shard.csc if self._timed_edges is None else self._timed_edges.csc
        if relations is None:
            sampler.fanouts.alike("this run does not distinguish relations")
            return sampler.part(csc, shard.owned, shard.sources, out_edges)
        rows = (
            RelationGroups.of(csc, shard.edge_types, relations)
            if self._timed_edges is None
            else self._timed_edges.relations
        )
        reading = sampler.part(rows.csc, shard.owned, shard.sources, out_edges)
        return replace(reading, relations=ReadRelations.of(rows, sampler.fanouts, shard.num_nodes))

    def draw(
        self,
        nodes: Ids,
        hop: int,
        key: int,
        comm: Communicator,
        counter: MessageCounter | None = None,
        times: Times | None = None,
    ) -> Draws:  # of len(nodes) nodes
        """Draws one hop at the owners. Collective.

        Two messages are sent to each rank: the nodes that this rank requests, and the
        draws that the other rank requested.

        Args:
            nodes: [num_nodes] global ids with any owners, possibly repeated.
            hop: The hop, the same on all ranks.
            key: The batch's key, the same on all ranks.
            comm: The ranks.
            counter: Counter of messages, or None.
            times: [num_nodes] time of each node, for a sampler with `time`.
        """
        split, requests = self.owners.split(nodes, comm.world_size), np.empty(len(nodes), self._request)
        requests["node"] = nodes
        if times is not None:
            requests["time"] = times
        peer_requests = swap_rows(comm, split.parts_of(requests), counter)
        everyones = np.concatenate(peer_requests)
        draws = self.draw_owned(everyones["node"], hop, key, None if times is None else everyones["time"])
        answers, first = [], 0
        for part in peer_requests:
            answers.append(self._pack(draws.take(np.arange(first, first + len(part)))))
            first += len(part)
        payloads = swap(comm, answers, counter)
        parts = [self._unpack(part, count) for part, count in zip(payloads, split.counts.tolist(), strict=True)]
        return Draws.join(parts).take(split.restore_order(np.arange(len(nodes))))

    def draw_owned(self, nodes: Ids, hop: int, key: int, times: Times | None = None) -> Draws:
        """Draws one hop of nodes that this rank owns. Not collective.

        Args:
            nodes: [num_nodes] global ids, possibly repeated.
            hop: The hop.
            key: The batch's key.
            times: [num_nodes] time of each node, for a sampler with `time`.
        """
        shard, positions = self.shard, np.searchsorted(self.shard.owned, nodes).astype(np.int64)
        draws = self.draw_held(positions, hop, key, times)
        edges = np.empty(len(draws.sources), self.edge)
        edges["source"] = shard.sources[draws.sources]
        edges["id"] = shard.edge_ids[draws.edge_ids]
        degrees = None if shard.relation_degrees is None else shard.relation_degrees[:, 0]
        values: dict[str, npt.NDArray[Any] | None] = {"importance": draws.weight, "weight": shard.csc.weight}
        values |= {"features": shard.edge_features, "relation": shard.edge_types, "relation_degree": degrees}
        values["time"] = shard.edge_time
        for name in set(self.edge.names or ()) & values.keys():
            value = values[name]
            assert value is not None
            edges[name] = value if name == "importance" else value[draws.edge_ids]
        if times is not None and "relation_degree" in (self.edge.names or ()):
            assert self._timed_edges is not None
            counts, bounds = np.diff(draws.indptr), latest_visible(times, self.sampler.time)
            rows = positions.repeat(counts), edges["relation"], bounds.repeat(counts)
            edges["relation_degree"] = self._timed_edges.in_relation(*rows)[0]
        return Draws(draws.indptr, edges)

    def sample(
        self,
        seeds: Ids,
        key: int,
        comm: Communicator,
        counter: MessageCounter | None = None,
        times: Times | None = None,
        *,
        disjoint: bool = False,
    ) -> tuple[MiniBatch, npt.NDArray[np.void]]:
        """Draws all hops, like `Sampler.sample`. Collective.

        Every rank passes its own seeds, possibly none.

        Args:
            seeds: [num_seeds] global ids, distinct at each time.
            key: The batch's key, the same on all ranks.
            comm: The ranks.
            counter: Counter of messages, or None.
            times: [num_seeds] time of each seed, for a sampler with `time`.
            disjoint: As for `NativeSampler.sample`.

        Returns:
            The batch, and the records of its drawn edges in order of hop.
        """
        edges_by_hop = [np.empty(0, self.edge)]
        of, trees = Occurrences.of(np.zeros(len(seeds), np.int64) if times is None else times, disjoint=disjoint)
        if self.sampler.time_bound == "path":
            of = PathOccurrences(of.times, self.shard.num_nodes, disjoint=disjoint)

        def draw(codes: Ids, hop: int) -> Hop:
            trees = of.trees(codes)
            draws = self.draw(of.nodes(codes), hop, key, comm, counter, None if times is None else of.times[trees])
            edges_by_hop.append(draws.edges)
            has_ids = getattr(self.sampler, "edge_ids", True)
            rows = draws.hop if has_ids else replace(draws.hop, edge_ids=None)
            trees = trees.repeat(draws.num_draws)
            if isinstance(of, PathOccurrences):
                trees = of.follow(trees, draws.edges["time"])
            return replace(rows, sources=of.codes(rows.sources, trees))

        dtype = self.ids if times is None else np.dtype(np.int64)
        batch = grow(self.sampler, of.codes(seeds, trees), self.shard.num_nodes * of.num_trees, dtype, draw)
        return batch if times is None else by_occurrence(batch, of), np.concatenate(edges_by_hop)

    def draw_held(self, positions: Ids, hop: int, key: int, times: Times | None = None) -> Hop:
        """Draws one hop, with positions in `Shard.sources` and `Shard.edge_ids`.

        Not collective.

        Args:
            positions: [num_nodes] positions in `Shard.owned`, possibly repeated.
            hop: The hop.
            key: The batch's key.
            times: [num_nodes] time of each node, for a sampler with `time`.
        """
        reading, shard = self._reading, self.shard
        if isinstance(reading, GlobalRows):
            return reading.draw(self.sampler, positions, hop, key)
        assert isinstance(self.sampler, NativeSampler)
        if times is not None:
            reading = at_times(self.sampler, reading, shard.owned[positions], times, shard.num_nodes)
            key = derive(key, 0)  # as for a batch of one type
        return self.sampler.draw(reading, positions, hop, key=key)

    def _pack(self, draws: Draws) -> Bytes:
        return np.concatenate([as_bytes(draws.num_draws.astype(_COUNT)), as_bytes(draws.edges)])

    def _unpack(self, payload: Bytes, num_nodes: int) -> Draws:
        counts = payload[: num_nodes * _COUNT.itemsize].view(_COUNT)
        indptr = offsets_of(counts)
        return Draws(indptr, payload[num_nodes * _COUNT.itemsize :].view(self.edge))


def _check_shard(shard: Shard, comm: Communicator, mode: str) -> None:
    """Raises `UserError` on all ranks unless owners hold all their in-edges."""
    holds_in_edges = not len(shard.partial) and shard.grid.slices == shard.grid.cols == 1
    split = comm.all_reduce(torch.tensor([0 if holds_in_edges else 1], device=comm.device))
    if int(split.item()):
        raise UserError(
            f"{mode}: partition.grid={shard.grid} distributes a node's in-edges over ranks, "
            "but its owner draws from all of them; use partition.grid=1d"
        )


def _out_edges(shard: Shard, owners: Owners, comm: Communicator) -> Ids:  # [num_sources]
    """Counts the held sources' out-edges in the complete graph. Collective."""
    sums = SourceSums(shard, owners, comm)
    return sums.spread(sums.out_edges())
