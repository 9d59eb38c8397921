"""The edges that a batch's rows see, if batches are sampled by time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gnnkit.engine.block import BlockLayers, ComputedValues, InRelation
from gnnkit.engine.block_edges import check_edge_ids
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch
from gnnkit.graph.times import ALWAYS, NEVER, Times, latest_visible
from gnnkit.graph.types import offsets_of, take
from gnnkit.kernels.dropout import derive
from gnnkit.partition.loops import mean_in_edges
from gnnkit.partition.relations import shared_weights
from gnnkit.sampler import Sampler


@dataclass(frozen=True, eq=False)
class TimedRows:
    """Edges sorted by row and time."""

    indptr: Ids  # [num_rows + 1] int64
    time: Times  # [num_edges] time from which each edge is visible, ascending within each row
    weight: Floats | None = None  # [num_edges]

    def counts(self, rows: Ids, bounds: Times) -> Ids:  # [k]
        """Counts each row's edges that are visible at its bound, by bisection."""
        first, high = self.indptr[rows], self.indptr[rows + 1]
        low = first
        while len(self.time) and (low < high).any():
            middle = (low + high) // 2
            is_before = (low < high) & (self.time[np.minimum(middle, len(self.time) - 1)] <= bounds)
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, np.minimum(middle, high))
        return np.asarray(low - first)

    def edges(self, rows: Ids, bounds: Times) -> tuple[Ids, Ids]:
        """Returns the visible edges' positions, row by row, and offsets [k + 1]."""
        counts = self.counts(rows, bounds)
        indptr = offsets_of(counts)
        return np.repeat(self.indptr[rows] - indptr[:-1], counts) + np.arange(indptr[-1]), indptr

    def degrees(self, rows: Ids, bounds: Times) -> Floats:  # [k] float64
        """Sums the weights of the visible edges, 1 each without weights."""
        if self.weight is None:
            return self.counts(rows, bounds).astype(np.float64)
        edges, indptr = self.edges(rows, bounds)
        row = np.repeat(np.arange(len(rows)), np.diff(indptr))
        return np.bincount(row, self.weight[edges], len(rows)).astype(np.float64, copy=False)


class TimedEdges:
    """A graph's edges by destination, and by source, sorted by time.

    All but the first are sorted at first use.
    """

    def __init__(self, csc: CSC) -> None:
        """Stores the edges, which have `time`."""
        assert csc.time is not None, "edges are sorted by time"
        self.csc, self.incoming = csc, TimedRows(csc.indptr, csc.time, csc.weight)

    @cached_property
    def outgoing(self) -> TimedRows:
        """The edges by source."""
        csc = self.csc
        order = np.lexsort((self.incoming.time, csc.indices))
        indptr = offsets_of(np.bincount(csc.indices, minlength=csc.num_sources))
        return TimedRows(indptr, self.incoming.time[order], take(csc.weight, order))

    @cached_property
    def newest(self) -> int:
        """The newest edge's time."""
        return int(self.incoming.time.max(initial=ALWAYS, where=self.incoming.time != NEVER))

    @cached_property
    def first_loop(self) -> Times:  # [num_nodes]
        """Time from which each node has a self-loop."""
        csc, first = self.csc, np.full(self.csc.num_nodes, NEVER)
        rows = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        loops = np.flatnonzero(csc.indices == rows)
        np.minimum.at(first, rows[loops], self.incoming.time[loops])
        return first


class TimedLayers(BlockLayers):
    """A complete graph's values at the times of a batch's rows.

    Blocks number occurrences of nodes. Degrees count the edges that an occurrence sees,
    and added self-loops have their mean features.
    """

    def __init__(self, layers: BlockLayers, timed: TimedEdges, batch: MiniBatch, sampler: Sampler) -> None:
        """Copies the values that do not depend on time.

        Args:
            layers: The complete graph's values.
            timed: Its edges.
            batch: The batch, with `nodes` and `times`.
            sampler: The sampler, with `time`.
        """
        assert batch.nodes is not None, "sampled by time"
        assert batch.times is not None, "sampled by time"
        vars(self).update(vars(layers))
        self._timed, self._latest = timed, getattr(sampler, "pick", "uniform") == "last"
        nodes, bounds = batch.nodes.astype(np.int64), latest_visible(batch.times, sampler.time)
        self._nodes, self._bounds, self._times = nodes, bounds, batch.times
        self.num_in_edges = ComputedValues(lambda rows: timed.incoming.counts(nodes[rows], bounds[rows]))
        self.graph_in_degree = ComputedValues(lambda rows: timed.incoming.degrees(nodes[rows], bounds[rows]))
        if self._latest:
            self._count_drawn(batch.blocks[0])
        self.gets_loop = ComputedValues(lambda rows: timed.first_loop[nodes[rows]] > bounds[rows])
        self.in_degree = ComputedValues(lambda rows: self._with_loop(self.graph_in_degree[rows], rows))
        self.out_degree = ComputedValues(
            lambda rows: self._with_loop(timed.outgoing.degrees(nodes[rows], bounds[rows]), rows)
        )

    def _count_drawn(self, outer: Block) -> None:
        """Makes the drawn edges of a block all that its destinations see."""
        drawn, rows = np.diff(outer.indptr), np.arange(outer.num_dst)
        weight = None if self.weight is None else self.weight[check_edge_ids(outer)]
        counts, degrees = (values[np.arange(len(self._nodes))] for values in (self.num_in_edges, self.graph_in_degree))
        counts[rows] = drawn
        degrees[rows] = np.bincount(np.repeat(rows, drawn), weight, len(rows))
        self.num_in_edges, self.graph_in_degree = counts, degrees

    def node_ids(self, nodes: Ids) -> Ids:
        return self._nodes[nodes]

    def row_ids(self, nodes: Ids) -> Ids:
        pairs: Any = [values[nodes].astype(np.uint64) for values in (self._nodes, self._bounds)]
        mixed: Any = derive(0, *pairs)
        return np.asarray(mixed >> np.uint64(1), np.int64)

    def edge_ages(self, block: Block) -> Floats:
        since, rows = self._timed.incoming.time[check_edge_ids(block)], block.src_nodes[: block.num_dst]
        is_untimed = self._bounds[rows] == NEVER - 1  # then a row is as of the newest edge
        times = np.repeat(np.where(is_untimed, self._timed.newest, self._times[rows]), np.diff(block.indptr))
        ages = (times - since).view(np.uint64)  # int64 differences may need 64 bits
        return np.where(since == ALWAYS, np.nan, ages)

    def in_relation(self, block: Block) -> InRelation:
        groups = self.relations
        assert groups.csc.time is not None, "sorted within each relation, too"
        types = groups.types[check_edge_ids(block)]
        targets = np.repeat(block.src_nodes[: block.num_dst], np.diff(block.indptr))
        if self._latest:
            rows: Ids = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
            weight: Floats = np.ones(len(types))
            weight = weight if self.weight is None else self.weight[check_edge_ids(block)]
            return InRelation(types, shared_weights(rows, types, max(block.num_dst, 1), weight))
        rows, bounds = groups.groups(self._nodes[targets], types), self._bounds[targets]
        timed = TimedRows(groups.starts, groups.csc.time, groups.csc.weight)
        return InRelation(types, timed.degrees(rows, bounds), timed.counts(rows, bounds))

    @property
    def mean_edge_features(self) -> ComputedValues | None:  # type: ignore[override]
        features = self.edge_features
        if features is None:
            return None

        def means(rows: Ids) -> Floats:
            edges, indptr = self._timed.incoming.edges(self._nodes[rows], self._bounds[rows])
            mean = mean_in_edges(indptr, features[edges])
            assert mean is not None
            return mean

        return ComputedValues(means)
