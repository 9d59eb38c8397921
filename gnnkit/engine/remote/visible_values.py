"""Node values at times, which owners compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.comm import Communicator
from gnnkit.engine.remote.owners import MessageCounter, Owners, swap_rows, to_all
from gnnkit.engine.visible import TimedEdges, TimedRows
from gnnkit.graph import CSC, Ids, RelationGroups
from gnnkit.graph.times import Times
from gnnkit.graph.types import offsets_of
from gnnkit.partition.shard import Shard

_REQUEST = np.dtype([("node", np.int64), ("bound", np.int64)])


def collect_timed_edges(
    shard: Shard, owners: Owners, comm: Communicator, relations: Sequence[str] | None, window: int | None = None
) -> TimedEdges:
    """Returns the owned nodes' edges by time. Collective.

    Args:
        shard: The owned nodes, with all their in-edges in order of time.
        owners: Every node's owner.
        comm: The ranks.
        relations: Names of the relations, or None if they are not read.
        window: As `Reading.window`.
    """
    in_edges, times = shard.csc, np.asarray(shard.edge_time, np.int64)
    csc = CSC.trusted(in_edges.indptr, in_edges.indices, in_edges.weight, in_edges.num_sources, times)
    outgoing = replace(_collect_out_edges(shard, owners, comm), window=window)
    group_relations = lambda: RelationGroups.of(csc, shard.edge_types, relations or ("",))  # noqa: E731 - grouped on first use
    edges = TimedEdges(csc, group_relations, lambda: outgoing, window=window)
    edges.newest = max(int(newest) for (newest,) in to_all(comm, np.array([edges.newest])))
    return edges


def _collect_out_edges(shard: Shard, owners: Owners, comm: Communicator) -> TimedRows:
    """Sends each held edge's time and weight to its source's owner. Collective."""
    weight = shard.csc.weight
    fields: list[Any] = [("source", np.int64), ("time", np.int64), ("id", np.int64)]
    edges = np.empty(len(shard.edge_ids), fields if weight is None else [*fields, ("weight", weight.dtype)])
    edges["source"], edges["time"], edges["id"] = shard.sources[shard.csc.indices], shard.edge_time, shard.edge_ids
    if weight is not None:
        edges["weight"] = weight
    edges = np.concatenate(swap_rows(comm, owners.split(edges["source"], comm.world_size).parts_of(edges)))
    edges = edges[np.lexsort((edges["id"], edges["time"], edges["source"]))]
    counts = np.bincount(np.searchsorted(shard.owned, edges["source"]), minlength=len(shard.owned))
    return TimedRows(offsets_of(counts), edges["time"].copy(), None if weight is None else edges["weight"].copy())


class VisibleValues:
    """Degrees and means over the edges that nodes see at times, from their owners.

    The fields are the time-dependent fields of `OwnedRows.row`.
    """

    def __init__(self, shard: Shard, owners: Owners, timed_edges: TimedEdges) -> None:
        """Stores the owned nodes' edges."""
        self._shard, self._owners, self._timed_edges, self.newest = shard, owners, timed_edges, timed_edges.newest
        fields: list[Any] = [(name, np.float64) for name in ("in_degree", "out_degree")]
        fields += [("in_edges", np.int64), ("looped", np.bool_)]
        mean = shard.mean_edge_features
        if mean is not None and mean.shape[1]:
            fields.append(("mean_edge_features", mean.dtype, mean.shape[1:]))
        self.row = np.dtype(fields)

    def fetch(
        self, nodes: Ids, bounds: Times, comm: Communicator, counter: MessageCounter | None = None
    ) -> npt.NDArray[np.void]:
        """Returns the nodes' records [num_nodes], for any owners. Collective.

        Args:
            nodes: [num_nodes] global ids.
            bounds: [num_nodes] latest time that each node sees.
            comm: The ranks.
            counter: Counter of messages, or None.
        """
        split, requests = self._owners.split(nodes, comm.world_size), np.empty(len(nodes), _REQUEST)
        requests["node"], requests["bound"] = nodes, bounds
        peer_requests = swap_rows(comm, split.parts_of(requests), counter)
        answers = swap_rows(comm, [self._read_owned(part["node"], part["bound"]) for part in peer_requests], counter)
        return split.restore_order(np.concatenate(answers))

    def _read_owned(self, nodes: Ids, bounds: Times) -> npt.NDArray[np.void]:
        timed_edges, places = self._timed_edges, np.searchsorted(self._shard.owned, nodes)
        rows = np.empty(len(nodes), self.row)
        rows["in_degree"] = timed_edges.incoming.degrees(places, bounds)
        rows["out_degree"] = timed_edges.outgoing.degrees(places, bounds)
        rows["in_edges"] = timed_edges.incoming.counts(places, bounds)
        rows["looped"] = timed_edges.loops.counts(places, bounds) > 0
        if "mean_edge_features" in (self.row.names or ()):
            assert self._shard.edge_features is not None
            rows["mean_edge_features"] = timed_edges.mean_features(self._shard.edge_features, places, bounds)
        return rows
