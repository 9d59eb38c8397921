"""The edges that a batch's rows see, if batches are sampled by time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.engine.block import ComputedValues, InRelation, LayerValues, Values, ValuesById
from gnnkit.engine.block_relations import check_edge_ids
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch, RelationGroups
from gnnkit.graph.times import ALWAYS, NEVER, Times, before_window, latest_visible, newest
from gnnkit.graph.types import offsets_of, take
from gnnkit.kernels.dropout import derive
from gnnkit.partition.degrees import mean_in_edges, shared_weights
from gnnkit.sampler import Sampler


@dataclass(frozen=True, eq=False)
class TimedRows:
    """Edges sorted by row and time."""

    indptr: Ids  # [num_rows + 1] int64
    time: Times  # [num_edges] time from which each edge is visible, ascending within each row
    weight: Floats | None = None  # [num_edges]
    window: int | None = None  # as `Reading.window`

    def counts(self, rows: Ids, bounds: Times) -> Ids:  # [k]
        """Counts each row's edges that are visible at its bound."""
        return np.asarray(self._until(rows, bounds) - self._gaps(rows, bounds)[1])

    def edges(self, rows: Ids, bounds: Times) -> tuple[Ids, Ids]:
        """Returns the visible edges' positions, row by row, and offsets [k + 1]."""
        num_untimed, gaps = self._gaps(rows, bounds)
        counts = self._until(rows, bounds) - gaps
        indptr = offsets_of(counts)
        places = np.arange(indptr[-1]) - np.repeat(indptr[:-1], counts)
        places += np.where(places < np.repeat(num_untimed, counts), 0, np.repeat(gaps, counts))
        return np.repeat(self.indptr[rows], counts) + places, indptr

    def _until(self, rows: Ids, bounds: Times | int) -> Ids:  # [k]
        """Counts each row's edges up to its bound, by bisection."""
        first, high = self.indptr[rows], self.indptr[rows + 1]
        low = first
        while len(self.time) and (low < high).any():
            middle = (low + high) // 2
            is_before = (low < high) & (self.time[np.minimum(middle, len(self.time) - 1)] <= bounds)
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, np.minimum(middle, high))
        return np.asarray(low - first)

    def _gaps(self, rows: Ids, bounds: Times) -> tuple[Ids, Ids]:  # [k] each
        """Counts the edges without a time, and those before the window."""
        if self.window is None:
            return np.zeros_like(rows), np.zeros_like(rows)
        num_untimed = self._until(rows, ALWAYS)
        return num_untimed, self._until(rows, before_window(bounds, self.window)) - num_untimed

    def degrees(self, rows: Ids, bounds: Times) -> Floats:  # [k] float64
        """Sums the weights of the visible edges, 1 each without weights."""
        if self.weight is None:
            return self.counts(rows, bounds).astype(np.float64)
        edges, indptr = self.edges(rows, bounds)
        row = np.repeat(np.arange(len(rows)), np.diff(indptr))
        return np.bincount(row, self.weight[edges], len(rows)).astype(np.float64, copy=False)


class TimedEdges:
    """Nodes' in-edges and out-edges, sorted by time.

    Rows are the nodes of a graph, or of a shard that has all their in-edges. All but
    the in-edges are sorted at first use.
    """

    def __init__(
        self,
        csc: CSC,
        group_relations: Callable[[], RelationGroups],
        outgoing: Callable[[], TimedRows] | None = None,
        *,
        window: int | None = None,
    ) -> None:
        """Stores the edges.

        Args:
            csc: In-edges with `time`. Sources are numbered like rows, then others.
            group_relations: Returns the same edges by relation.
            outgoing: Returns the rows' out-edges. If None, all are among `csc`.
            window: As `Reading.window`.
        """
        assert csc.time is not None, "edges are sorted by time"
        self.csc, self.incoming = csc, TimedRows(csc.indptr, csc.time, csc.weight, window)
        self._group_relations, self._outgoing = group_relations, outgoing or self._sort_outgoing

    @cached_property
    def relations(self) -> RelationGroups:
        """The in-edges by relation, sorted by time within each."""
        return self._group_relations()

    @cached_property
    def outgoing(self) -> TimedRows:
        """The edges by source."""
        return self._outgoing()

    def _sort_outgoing(self) -> TimedRows:
        csc = self.csc
        order = np.lexsort((self.incoming.time, csc.indices))
        indptr = offsets_of(np.bincount(csc.indices, minlength=csc.num_sources))
        return TimedRows(indptr, self.incoming.time[order], take(csc.weight, order), self.incoming.window)

    @cached_property
    def newest(self) -> int:
        """The newest edge's time."""
        return newest(self.incoming.time)

    @cached_property
    def loops(self) -> TimedRows:
        """The self-loops of each node."""
        csc = self.csc
        rows = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        loops = np.flatnonzero(csc.indices == rows)
        indptr = offsets_of(np.bincount(rows[loops], minlength=csc.num_nodes))
        return TimedRows(indptr, self.incoming.time[loops], window=self.incoming.window)

    def mean_features(self, features: Floats, rows: Ids, bounds: Times) -> Floats:  # [k, edge_width]
        """Averages the visible in-edges' features [num_edges, edge_width]."""
        edges, indptr = self.incoming.edges(rows, bounds)
        mean = mean_in_edges(indptr, features[edges])
        assert mean is not None
        return mean

    def in_relation(self, rows: Ids, types: Ids, bounds: Times) -> tuple[Floats, Ids]:  # [k] each
        """Counts the rows' visible in-edges in relations, after their degrees."""
        groups = self.relations
        assert groups.csc.time is not None, "sorted within each relation, too"
        timed_rows = TimedRows(groups.starts, groups.csc.time, groups.csc.weight, self.incoming.window)
        at = groups.groups(rows, types)
        return timed_rows.degrees(at, bounds), timed_rows.counts(at, bounds)


class TimedLayers(LayerValues):
    """A graph's values at the times of a batch's rows.

    Blocks number occurrences of nodes. Degrees count the edges that an occurrence sees,
    and added self-loops have their mean features.
    """

    def __init__(
        self,
        layers: LayerValues,
        rows: tuple[Values, Values, Values],
        timed_edges: TimedEdges | None,
        outer: Block,
        *,
        counts_drawn: bool = False,
    ) -> None:
        """Copies the values that do not depend on time.

        Args:
            layers: The graph's values.
            rows: The node of each occurrence, as `layers` numbers it, its bound and its
                time.
            timed_edges: The edges. If None, `layers` has the values of the batch's
                occurrences and sampled edges, and `relation_degree` is indexed by
                occurrence * num_relations + relation.
            outer: The batch's outermost block, which has all its destinations.
            counts_drawn: Whether destinations see the sampled edges only.
        """
        vars(self).update(vars(layers))
        self._layers, self._timed_edges, self._counts_drawn = layers, timed_edges, counts_drawn
        self._nodes, self._bounds, self._times = rows
        if timed_edges is not None:
            self._read(timed_edges)
        if counts_drawn:
            self._count_drawn(outer)
        self.in_degree = ComputedValues(lambda rows: self._with_loop(self.graph_in_degree[rows], rows))

    @classmethod
    def of(cls, layers: LayerValues, timed_edges: TimedEdges | None, batch: MiniBatch, sampler: Sampler) -> TimedLayers:
        """Returns the values of a batch whose `nodes` and `times` are occurrences.

        Args:
            layers: As for the constructor.
            timed_edges: As for the constructor.
            batch: The batch.
            sampler: The sampler, with `time`.
        """
        assert batch.nodes is not None, "sampled by time"
        assert batch.times is not None, "sampled by time"
        rows = batch.nodes.astype(np.int64), latest_visible(batch.times, sampler.time), batch.times
        return cls(layers, rows, timed_edges, batch.blocks[0], counts_drawn=draws_latest(sampler))

    def _read(self, timed_edges: TimedEdges) -> None:
        """Defines degrees and means that are computed on access."""

        def visible(of: Callable[[Ids, Times], npt.NDArray[Any]]) -> ComputedValues:
            return ComputedValues(lambda rows: of(self._nodes[rows], self._bounds[rows]))

        self.num_in_edges = visible(timed_edges.incoming.counts)
        self.graph_in_degree = visible(timed_edges.incoming.degrees)
        self.gets_loop = visible(lambda nodes, bounds: timed_edges.loops.counts(nodes, bounds) == 0)
        outgoing = visible(lambda nodes, bounds: timed_edges.outgoing.degrees(nodes, bounds))  # noqa: PLW0108 - sorts on access
        self.out_degree = ComputedValues(lambda rows: self._with_loop(outgoing[rows], rows))
        features: Any = self.edge_features
        self.mean_edge_features = None if features is None else visible(partial(timed_edges.mean_features, features))

    def _count_drawn(self, outer: Block) -> None:
        """Restricts what destinations see to the block's sampled edges."""
        num_draws, rows = np.diff(outer.indptr), outer.src_nodes[: outer.num_dst]
        weight = None if self.weight is None else self.weight[check_edge_ids(outer)]
        self.num_in_edges = ValuesById(rows, num_draws)
        self.graph_in_degree = ValuesById(
            rows, np.bincount(np.repeat(np.arange(len(rows)), num_draws), weight, len(rows))
        )

    def node_ids(self, nodes: Ids) -> Ids:
        return self._layers.node_ids(self._nodes[nodes])

    def row_ids(self, nodes: Ids) -> Ids:
        pairs: Any = [values.astype(np.uint64) for values in (self.node_ids(nodes), self._bounds[nodes])]
        hashes: Any = derive(0, *pairs)
        return np.asarray(hashes >> np.uint64(1), np.int64)

    def edge_ids(self, edges: Ids) -> Ids:
        return self._layers.edge_ids(edges)

    def edge_ages(self, block: Block) -> Floats | None:
        edge_time = self._layers.edge_time if self._timed_edges is None else self._timed_edges.incoming.time
        assert edge_time is not None, "sampled by time"
        since, rows = edge_time[check_edge_ids(block)], block.src_nodes[: block.num_dst]
        times, is_untimed = self._times[rows], self._bounds[rows] == NEVER - 1
        if is_untimed.any():  # these rows are as of the newest edge
            newest = self._layers.newest_time if self._timed_edges is None else self._timed_edges.newest
            times = np.where(is_untimed, newest, times)
        times = np.repeat(times, np.diff(block.indptr))
        ages = (times - since).view(np.uint64)  # int64 differences may need 64 bits
        return np.where(since == ALWAYS, np.nan, ages)

    def in_relation(self, block: Block) -> InRelation:
        edges, num_draws = check_edge_ids(block), np.diff(block.indptr)
        types = np.zeros(len(edges), np.int64) if self.edge_types is None else self.edge_types[edges]
        if self._counts_drawn:
            weight = np.ones(len(types)) if self.weight is None else self.weight[edges]
            rows: Ids = np.repeat(np.arange(block.num_dst), num_draws)
            return InRelation(types, shared_weights(rows, types, max(block.num_dst, 1), weight))
        targets = np.repeat(block.src_nodes[: block.num_dst], num_draws)
        if self._timed_edges is not None:
            return InRelation(types, *self._timed_edges.in_relation(self._nodes[targets], types, self._bounds[targets]))
        if self.relation_degree is None:
            return InRelation(types, self.graph_in_degree[targets])
        return InRelation(types, self.relation_degree[targets * self.num_relations + types])


def draws_latest(sampler: Sampler) -> bool:
    """Returns whether nodes draw their latest edges, which are then all they see."""
    return getattr(sampler, "pick", "uniform") == "last"
