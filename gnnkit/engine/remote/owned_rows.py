"""Rows fetched from the nodes' owners, each once per batch, and the cache of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.engine.block import LayerValues, ValuesById
from gnnkit.engine.pool import Pool
from gnnkit.engine.remote.disk import DiskFeatures
from gnnkit.engine.remote.features import TableRows
from gnnkit.engine.remote.owners import ByOwner, MessageCounter, Owners, SourceSums, record_fetch, swap_rows, to_all
from gnnkit.engine.remote.tier import KeptRows, RowTier, most_read
from gnnkit.exchange.tally import Tally
from gnnkit.graph import CSC, Features, Floats, Ids, SparseFeatures, kept_rows
from gnnkit.graph.types import offsets_of
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Fanouts
from gnnkit.utils.checks import Array

_COLUMNS, _VALUES = "columns", "values"  # fields of a sparse row
_NONE = -1  # column index of padding
_POLICIES = {"none": "static", "degree": "static", "lru": "lru", "vip": "static", "exact": "exact"}
CACHES = tuple(_POLICIES)
_SCORE = np.dtype([("id", np.int64), ("score", np.float64)])


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """A batch's rows that a rank requests, and its peers' requests."""

    nodes: Ids  # [num_nodes] int64, distinct
    is_owned: npt.NDArray[np.bool_]  # [num_nodes] owned by this rank
    is_cached: npt.NDArray[np.bool_]  # [num_nodes] owned by other ranks, and cached
    split: ByOwner  # the remaining nodes, by owner
    peer_requests: Sequence[Ids]  # [world_size] nodes of this rank that each rank requests

    @property
    def local_nodes(self) -> Ids:  # ascending
        """This rank's distinct nodes whose rows are read."""
        return np.unique(np.concatenate([self.nodes[self.is_owned], *self.peer_requests]))

    @property
    def num_bytes(self) -> int:
        """Memory of the ids."""
        return self.nodes.nbytes * 4 + sum(part.nbytes for part in self.peer_requests)


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRows:
    """The rows of some nodes, and how many were exchanged for them."""

    rows: npt.NDArray[np.void]  # [num_nodes] records with the fields of `OwnedRows.row`
    num_received: Ids  # [world_size] rows from each rank
    num_sent: Ids  # [world_size] rows sent to each rank
    hits: int  # other ranks' rows found in the cache


class OwnedRows:
    """Rows of the owned nodes, served to all ranks.

    A row consists of a node's features, in their stored type, and its label. Sparse
    features are stored as values with column indices, padded to the same length. If
    ranks do not read the complete graph, the row also has the degrees, the number of
    in-edges, whether there is a self-loop, and the mean features of the in-edges. Rows
    of other ranks are read from `cache`, or fetched.
    """

    def __init__(
        self, shard: Shard, owners: Owners, comm: Communicator, *, values: bool, disk: DiskFeatures | None = None
    ) -> None:
        """Reads the shard. Collective.

        Args:
            shard: This rank's nodes.
            owners: Every node's owner.
            comm: The ranks.
            values: Whether rows contain more than features and labels.
            disk: The shard's features, if they are read from disk.
        """
        self.shard, self.owners, self.disk = shard, owners, disk
        self.in_edges = shard.num_in_edges  # [num_owned]
        features, mean = shard.features, shard.mean_edge_features
        fields: list[tuple[Any, ...]] = [("label", shard.labels.dtype, shard.labels.shape[1:])]
        table = features if isinstance(features, SparseFeatures) else kept_rows(features)
        if sparse := _sparse_fields(features, comm):
            fields += sparse
        elif table.shape[1]:
            fields.append(("features", table.dtype, table.shape[1:]))
        if values:
            fields += [(name, np.float64) for name in ("in_degree", "out_degree")]
            fields += [("in_edges", np.int64), ("looped", np.bool_)]
        if values and mean is not None and mean.shape[1]:
            fields.append(("mean_edge_features", mean.dtype, mean.shape[1:]))
        self.row = np.dtype(fields)
        self.cache = KeptRows(0, self.row)
        self._table = TableRows(features, None)
        self.width = sum(int(np.prod(self.row[name].shape)) for name in self.row.names or ())  # numbers per row

    def read_owned(self, nodes: Ids, tier: RowTier | None = None) -> npt.NDArray[np.void]:  # [num_nodes] records
        """Returns rows of nodes that this rank owns.

        Args:
            nodes: [num_nodes] ids.
            tier: Source of these nodes' features. If None, the file on disk, or the
                shard.
        """
        shard, places = self.shard, np.searchsorted(self.shard.owned, nodes)
        rows = np.empty(len(nodes), self.row)
        for name in self.row.names or ():
            if name == "features":
                rows[name] = self._features(nodes, places, tier or self.disk)
            elif name == _COLUMNS:
                assert isinstance(shard.features, SparseFeatures)
                _write_sparse(rows, shard.features[places])  # writes the values, too
            elif name == _VALUES:
                continue
            elif name == "in_edges":
                rows[name] = self.in_edges[places]
            else:
                values = shard.labels if name == "label" else getattr(shard, name)
                rows[name] = values[places]
        return rows

    def _features(self, nodes: Ids, places: Ids, tier: RowTier | None) -> npt.NDArray[np.generic]:  # [num_nodes, width]
        rows = np.empty((len(nodes), *self.row["features"].shape), self.row["features"].base)
        if tier is None:
            self._table.read(places, rows)
        else:
            tier.read(nodes, rows)
        return rows

    def features(self, rows: npt.NDArray[np.void]) -> Array | SparseFeatures:  # [n] records -> [n, width]
        """Returns the features in rows, in their stored type."""
        names = self.row.names or ()
        if _COLUMNS in names:
            return _read_sparse(rows, self.shard.features.shape[1])
        if "features" in names:
            return np.array(rows["features"], order="C")
        return np.empty((len(rows), 0), kept_rows(self.shard.features).dtype)

    def fetch(self, nodes: Ids, comm: Communicator, counter: MessageCounter | None = None) -> FetchedRows:
        """Returns rows of nodes with any owners. Collective.

        Two messages are sent to each rank: the nodes that this rank requests, and the
        rows that the other rank requested. This rank's nodes and cached rows are not
        requested.

        Args:
            nodes: [num_nodes] distinct global ids.
            comm: The ranks.
            counter: Counter of messages, or None.
        """
        return self.answer(self.ask(nodes, comm, counter), comm, counter)

    def ask(self, nodes: Ids, comm: Communicator, counter: MessageCounter | None = None) -> RowRequest:
        """Sends the owners the ids of required rows, the first half of `fetch`."""
        nodes = nodes.astype(np.int64)
        is_owned = self.owners.rank_of[nodes] == comm.rank
        is_cached = self.cache.has(nodes) & ~is_owned
        missing = ~is_owned & ~is_cached
        split = self.owners.split(nodes[missing], comm.world_size)
        peer_requests = swap_rows(comm, split.parts(), counter)
        return RowRequest(nodes, is_owned, is_cached, split, peer_requests)

    def answer(
        self,
        request: RowRequest,
        comm: Communicator,
        counter: MessageCounter | None = None,
        tier: RowTier | None = None,
    ) -> FetchedRows:
        """Sends the rows that other ranks requested, the second half of `fetch`.

        `tier` contains the features of `request.local_nodes`, if they were prefetched.
        """
        nodes, is_owned, is_cached = request.nodes, request.is_owned, request.is_cached
        missing = ~is_owned & ~is_cached
        peer_rows = swap_rows(comm, [self.read_owned(part, tier) for part in request.peer_requests], counter)
        rows = np.empty(len(nodes), self.row)
        rows[is_owned] = self.read_owned(nodes[is_owned], tier)
        cached_rows = np.empty(int(is_cached.sum()), self.row)
        self.cache.read(nodes[is_cached], cached_rows)
        rows[is_cached] = cached_rows
        rows[missing] = request.split.restore_order(np.concatenate(peer_rows))
        self.cache.add(nodes[missing], rows[missing])
        return FetchedRows(
            rows, request.split.counts, np.array([len(part) for part in request.peer_requests]), len(cached_rows)
        )

    def record(self, rows: FetchedRows, counter: MessageCounter, tally: Tally, me: int) -> None:
        """Records the exchanged words, and the bytes of all messages of a batch.

        Args:
            rows: The batch's rows.
            counter: The batch's messages.
            tally: The record.
            me: This rank.
        """
        away = np.arange(len(rows.num_received)) != me
        record_fetch(tally, me, self.width, rows.num_sent * away, rows.num_received * away, counter.num_bytes)


class FetchedLayers(LayerValues):
    """Node and edge values of one batch, received with the batch."""

    def __init__(
        self,
        shard: Shard,
        model: object,
        dtype: torch.dtype,
        device: torch.device,
        nodes: tuple[Ids, npt.NDArray[np.void]],
        edges: npt.NDArray[np.void],
        pool: Pool,
        *,
        inverse_edges: bool = False,
    ) -> None:
        """Indexes the values.

        Args:
            shard: This rank's shard, for the graph's size and fields.
            model: The model. With `self_loops`, nodes without a self-loop get one.
            dtype: Type of degrees, weights and edge features.
            device: Device of the adjacencies.
            nodes: [num_nodes] global ids, and [num_nodes] records of `OwnedRows`.
            edges: [num_edges] records of `Frontier`, for all drawn edges.
            pool: The ranks whose rows enter batch statistics.
            inverse_edges: Whether the graph has each edge's reverse, with
                separate relations.
        """
        super().__init__(shard, model, dtype, device, inverse_edges)
        self.edge_types = _of_edges(edges, "relation", shard.edge_types)
        self.relation_degree = _of_edges(edges, "relation_degree", shard.relation_degrees)
        (ids, rows), self.pool, self._edges = nodes, pool, edges
        loops = (~rows["looped"]).astype(np.float64) if self.self_loops else np.zeros(len(rows))
        self.gets_loop = ValuesById(ids, ~rows["looped"])
        self.graph_in_degree = ValuesById(ids, rows["in_degree"])
        in_degree, out_degree = rows["in_degree"] + loops, rows["out_degree"] + loops
        self.in_degree, self.out_degree = ValuesById(ids, in_degree), ValuesById(ids, out_degree)
        self.num_in_edges = ValuesById(ids, rows["in_edges"])
        self.weight = _of_edges(edges, "weight", shard.csc.weight)
        self.edge_features = _of_edges(edges, "features", shard.edge_features)
        mean = shard.mean_edge_features
        self.mean_edge_features = None if mean is None else ValuesById(ids, _field(rows, "mean_edge_features", mean))

    @cached_property
    def edge_time(self) -> ValuesById:  # type: ignore[override]
        """The time from which each drawn edge is visible, if owners draw by time."""
        return ValuesById(self._edges["id"].astype(np.int64), self._edges["time"])


def _of_edges(edges: npt.NDArray[np.void], name: str, shard_values: npt.NDArray[Any] | None) -> ValuesById | None:
    """Indexes a field of drawn edges by edge id, or returns None without it."""
    if shard_values is None:
        return None
    return ValuesById(edges["id"].astype(np.int64), _field(edges, name, shard_values))


def _field(records: npt.NDArray[np.void], name: str, shard_values: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
    """Returns a field of records, or columns of width 0 if records lack it."""
    return records[name] if name in (records.dtype.names or ()) else np.empty((len(records), 0), shard_values.dtype)


def _sparse_fields(features: Features, comm: Communicator) -> list[tuple[object, ...]]:
    """Returns the record fields of a sparse feature row. Collective.

    The list is empty for dense rows, and if the longest row of all ranks has so many
    numbers that records would be larger than dense rows.

    Args:
        features: This rank's features, stored as on all other ranks.
        comm: The ranks.
    """
    if not isinstance(features, SparseFeatures):
        return []
    longest = comm.all_gather(np.diff(features.csr.indptr).max(initial=0))
    max_length, width = int(longest.max()), features.shape[1]
    if max_length * (np.dtype(np.int32).itemsize + features.dtype.itemsize) >= width * features.dtype.itemsize:
        return []
    return [(_COLUMNS, np.int32, (max_length,)), (_VALUES, features.dtype, (max_length,))]


def _write_sparse(rows: npt.NDArray[np.void], table: SparseFeatures) -> None:
    """Writes rows of a table [n, width] into the fields of records [n]."""
    inside = np.arange(rows[_COLUMNS].shape[1]) < np.diff(table.csr.indptr)[:, None]
    rows[_COLUMNS] = _NONE
    rows[_VALUES] = 0  # initialises every byte that is sent
    rows[_COLUMNS][inside] = table.csr.indices
    rows[_VALUES][inside] = table.values


def _read_sparse(rows: npt.NDArray[np.void], width: int) -> SparseFeatures:  # [n] records -> [n, width]
    """Reads the rows of records."""
    columns = rows[_COLUMNS]
    inside = columns != _NONE
    indptr = offsets_of(inside.sum(axis=1))
    return SparseFeatures(CSC(indptr, columns[inside], rows[_VALUES][inside], width))


class RowCache:
    """A cache with the policy of `strategy.cache`.

    - degree: the nodes with most out-edges
    - lru: the most recently read nodes
    - vip: the nodes most likely to be in a batch (SALIENT++, MLSys 2023)
    - exact: the nodes read most often in the epoch, which is drawn twice to find them
    """

    def __init__(self, name: str, num_rows: int | None, rows: OwnedRows, comm: Communicator) -> None:
        """Creates an empty cache.

        Args:
            name: One of `CACHES`.
            num_rows: Maximum number of rows. If None, a tenth of the nodes.
            rows: The rows of the owned nodes.
            comm: The ranks.
        """
        self.name, self.owned, self._comm = name, rows, comm
        self.num_rows = 0 if name == "none" else rows.shard.num_nodes // 10 if num_rows is None else num_rows
        rows.cache = KeptRows(self.num_rows, rows.row, _POLICIES[name])

    def begin(
        self, fanouts: Fanouts, chance: Callable[[Ids, Ids], Floats]
    ) -> tuple[FetchedRows, MessageCounter] | None:
        """Fetches rows that are cached for the entire run. Collective.

        Args:
            fanouts: [num_hops] draws per node.
            chance: Estimates from in-edges and out-edges [num_owned] the probability of
                each owned node to be a seed.

        Returns:
            The fetched rows and messages, or None.
        """
        if self.name not in ("degree", "vip"):
            return None
        shard = self.owned.shard
        sums = SourceSums(shard, self.owned.owners, self._comm)
        out_edges = sums.out_edges()
        scores: Floats = out_edges.astype(np.float64)
        if self.name == "vip":
            scores = sums.inclusion(fanouts, chance(self.owned.in_edges, out_edges))
        counter = MessageCounter.zeros(self._comm.world_size)
        return self._keep(self._best(scores), self._comm, counter)

    def announce(
        self, batches: Iterable[Ids], comm: Communicator, counter: MessageCounter
    ) -> tuple[FetchedRows, MessageCounter]:
        """Caches the rows read most often, and at least twice, in an epoch. Collective.

        Args:
            batches: Global ids of the rows read by each batch of the epoch.
            comm: The ranks.
            counter: Counter of messages.
        """
        rank_of = self.owned.owners.rank_of
        away = (ids[rank_of[ids] != comm.rank] for ids in batches)
        return self._keep(most_read(away, len(rank_of), self.num_rows, times=2), comm, counter)

    def _keep(self, nodes: Ids, comm: Communicator, counter: MessageCounter) -> tuple[FetchedRows, MessageCounter]:
        result = self.owned.fetch(nodes, comm, counter)
        self.owned.cache.fill(nodes, result.rows)
        return result, counter

    def _best(self, scores: Floats) -> Ids:  # at most [num_rows]
        """Returns other ranks' nodes with the highest positive scores. Collective."""
        records = np.empty(len(scores), _SCORE)
        records["id"], records["score"] = self.owned.shard.owned, scores
        parts = to_all(self._comm, self._top(records))
        return self._top(
            np.concatenate([part for rank, part in enumerate(parts) if rank != self._comm.rank] or [records[:0]])
        )["id"]

    def _top(self, records: np.ndarray) -> np.ndarray:
        candidates = records[records["score"] > 0]
        return candidates[np.lexsort((candidates["id"], -candidates["score"]))[: self.num_rows]]
