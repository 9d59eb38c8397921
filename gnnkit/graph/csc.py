"""Edges in compressed sparse column (CSC) format: of a graph, and of mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph.times import Times
from gnnkit.graph.types import Floats, Ids, set_fields, take
from gnnkit.utils import checks
from gnnkit.utils.checks import whole


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CSC:
    """In-edges by destination: node v reads from `indices[indptr[v]:indptr[v + 1]]`.

    Edge ids are positions in `indices`. The constructor checks every value once, in
    native code on one thread, and raises `UserError` with the position of the first
    invalid value. Contiguous arrays of the types below are not copied, not even
    memory-mapped ones.

    This is the form in which gnnkit samples and aggregates, because a node's in-edges
    are adjacent. Build it with `from_edges`, unless the arrays are in this form
    already.

    Examples:
        >>> from gnnkit.graph import CSC
        >>> csc = CSC.from_edges([2, 0, 1], [0, 1, 0], num_nodes=3)
        >>> csc.indptr.tolist(), csc.indices.tolist()
        ([0, 2, 3, 3], [1, 2, 0])
    """

    indptr: Ids  # [num_nodes + 1] int64
    indices: Ids  # [num_edges] int32 or int64, source of each edge
    weight: Floats | None = None  # [num_edges] finite
    num_sources: int = -1  # sources are 0..num_sources-1. -1: as many as destinations
    time: Times | None = None  # [num_edges] int64 time from which each edge is visible, ascending within each node

    def __post_init__(self) -> None:
        indptr = checks.int64s("indptr", self.indptr)
        indices = checks.ids("indices", self.indices)
        num_sources = whole("num_sources", self.num_sources, -1)
        num_sources = len(indptr) - 1 if num_sources == -1 else num_sources
        _core.check_csc(indptr, indices, max(num_sources, 0))
        weight = read_weights(self.weight, len(indices))
        set_fields(self, indptr=indptr, indices=indices, weight=weight, num_sources=num_sources)
        if self.time is not None:
            set_fields(self, time=_read_times(self, self.time))

    @classmethod
    def trusted(
        cls, indptr: Ids, indices: Ids, weight: Floats | None, num_sources: int, time: Times | None = None
    ) -> CSC:
        """Wraps arrays that were checked before, without reading them.

        This keeps files larger than memory on disk.
        """
        csc = cls.__new__(cls)
        set_fields(csc, indptr=indptr, indices=indices, weight=weight, num_sources=num_sources, time=time)
        return csc

    @classmethod
    def from_edges(
        cls,
        src: npt.ArrayLike,  # [num_edges]
        dst: npt.ArrayLike,  # [num_edges]
        num_nodes: int,
        weight: npt.ArrayLike | None = None,  # [num_edges]
        *,
        num_sources: int | None = None,
        threads: int | None = None,
    ) -> CSC:
        """Builds the CSC of the edges `src[i] -> dst[i]`.

        A node's in-edges are sorted by source, then by i. Parallel edges and self-loops
        are kept. `indices` are int32 if all ids fit. The result does not depend on the
        number of threads, and no thread outlives the call. Raises `UserError` for ids
        out of range.

        Args:
            src: [num_edges] each edge's source.
            dst: [num_edges] each edge's destination.
            weight: [num_edges] finite numbers.
            num_sources: Number of sources. Default: `num_nodes`.
            threads: Threads that sort. Default: all available cores.
        """
        src, dst = checks.ids("src", src), checks.ids("dst", dst)
        num_sources = num_nodes if num_sources is None else num_sources
        csc, positions = sort_edges(src, dst, num_nodes, num_sources, weight is not None, threads)
        return csc.weighted(take(read_weights(weight, len(src)), positions))

    def weighted(self, weight: Floats | None) -> CSC:
        """Returns the same edges with other weights [num_edges], or without any."""
        if weight is self.weight:
            return self
        return CSC.trusted(self.indptr, self.indices, read_weights(weight, self.num_edges), self.num_sources, self.time)

    @property
    def num_nodes(self) -> int:
        """Number of destinations. `num_sources` may differ, for example in a block."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    def in_edges(self, nodes: Ids) -> tuple[Ids, Ids]:
        """Returns the positions of nodes' in-edges, node by node, and their counts."""
        first, degree = self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]
        start = np.cumsum(degree) - degree
        return np.repeat(first - start, degree) + np.arange(degree.sum()), degree

    def transpose(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """Reverses every edge.

        Also returns each new edge's position in this CSC [num_edges], by which edge
        columns are reordered. Sources become destinations, so their numbers are
        exchanged.
        """
        indptr, indices, positions = _core.csc_transpose(
            self.indptr, self.indices, self.num_sources, checked_threads(threads)
        )
        return CSC(indptr, indices, take(self.weight, positions), num_sources=self.num_nodes), positions

    def symmetrize(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """Adds an edge v -> u of equal weight for each edge u -> v that has no reverse.

        Also returns, for each edge of the result, the position of the edge in this CSC
        that it equals or reverses [num_edges]. All k parallel edges are reversed. Pairs
        with edges in both directions stay unchanged, even if the number or weights of
        their parallel edges differ. Raises `UserError` unless sources and destinations
        are the same nodes.
        """
        if self.num_sources != self.num_nodes:
            raise UserError(f"{self.num_sources} sources and {self.num_nodes} destinations cannot be symmetrized")
        indptr, indices, positions = _core.csc_symmetrize(self.indptr, self.indices, checked_threads(threads))
        return CSC(indptr, indices, take(self.weight, positions)), positions

    def in_degree(self) -> npt.NDArray[np.float64]:  # [num_nodes]
        """Sums each destination's in-edge weights, or counts unweighted in-edges."""
        return self.degrees()[0]

    def out_degree(self) -> npt.NDArray[np.float64]:  # [num_sources]
        """Sums the out-edge weights of each source, or counts unweighted out-edges."""
        return self.degrees()[1]

    def degrees(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns `in_degree` and `out_degree`, from one pass over the edges."""
        return _core.csc_degrees(self.indptr, self.indices, self.num_sources, self.weight)


def sort_edges(
    src: Ids, dst: Ids, num_nodes: int, num_sources: int, positions: bool, threads: int | None
) -> tuple[CSC, Ids]:
    """Returns the CSC of an edge list and, if `positions`, the order of its edges."""
    num_nodes, num_sources = whole("num_nodes", num_nodes, 0), whole("num_sources", num_sources, 0)
    indptr, indices, order = _core.csc_from_edges(src, dst, num_nodes, num_sources, positions, checked_threads(threads))
    return CSC(indptr, indices, num_sources=num_sources), order


def _read_times(csc: CSC, values: object) -> Times:
    """Reads times of edges. Raises `UserError` unless they ascend within each node."""
    times = checks.int64s("time", values, csc.num_edges)
    rows = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    if len(falls := np.flatnonzero((times[1:] < times[:-1]) & (rows[1:] == rows[:-1]))):
        raise UserError(
            f"time[{falls[0] + 1}] = {times[falls[0] + 1]} is before time[{falls[0]}] = {times[falls[0]]} of the same node: "
            "expected each node's in-edges in order of time"
        )
    return times


def checked_threads(threads: int | None) -> int | None:
    return None if threads is None else whole("threads", threads, 1, checks.MAX_THREADS)


def read_weights(values: object | None, num_edges: int) -> Floats | None:
    """Reads optional edge weights as float32 or float64."""
    if values is None:
        return None
    weight = checks.floats("weight", values, (num_edges,))
    return weight.astype(np.promote_types(weight.dtype, np.float32), copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch, renumbered from zero (DGL's MFG).

    All edges lead to the first `num_dst` nodes of `src_nodes`. A layer reads one row
    per source and computes one per destination, which the next block reads. The
    optional fields are edge columns, which code that selects or joins edges treats
    alike.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import Block
        >>> block = Block(
        ...     indptr=numpy.array([0, 2]), indices=numpy.array([1, 2]),
        ...     src_nodes=numpy.array([7, 4, 9]),
        ... )
        >>> block.num_dst, block.src_nodes[block.indices].tolist()  # 7 reads 4 and 9
        (1, [4, 9])
    """

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids, the num_dst destinations first
    edge_ids: Ids | None = None  # [num_edges] positions in the sampled CSC
    weight: Floats | None = None  # [num_edges] keeps the estimate unbiased
    relation: Ids | None = None  # [num_edges] relation of each edge. None: a single relation

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_columns(self) -> dict[str, npt.NDArray[Any]]:  # [num_edges] each
        """The edge columns that are present, by field name.

        Fields are `edge_ids`, `weight` and `relation`.
        """
        columns = {name: getattr(self, name) for name in EDGE_COLUMNS}
        return {name: column for name, column in columns.items() if column is not None}

    def with_edges(self, indptr: Ids, edges: Ids | slice) -> Block:
        """Returns the block with a subset of its edges.

        Args:
            indptr: [num_rows + 1] row offsets of the selected edges.
            edges: [k] positions of the selected edges, ascending.
        """
        columns = {name: column[edges] for name, column in self.edge_columns.items()}
        return replace(self, indptr=indptr, indices=self.indices[edges], **columns)


EDGE_COLUMNS = tuple(Block.__dataclass_fields__)[3:]


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The blocks that compute `seeds`, outermost hop first.

    Layer i of a model reads `blocks[i]`. The sources of the last block contain the
    seeds first, and each block's sources are the destinations of the block before it.
    The feature rows to load are those of `input_nodes`.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import NeighborSampler
        >>> csc = CSC.from_edges([1, 2, 3], [0, 1, 2], 4)
        >>> batch = NeighborSampler([2, 2]).sample(csc, numpy.array([0]), key=1)
        >>> batch.input_nodes.tolist(), [block.num_dst for block in batch.blocks]
        ([0, 1, 2], [2, 1])
    """

    seeds: Ids  # [num_seeds] global ids
    blocks: Sequence[Block]
    # Of a batch that is sampled by time, in which `src_nodes` number occurrences: a
    # node that is reached from seeds at two times occurs twice.
    nodes: Ids | None = None  # [num_occurrences] global ids, the seeds first. None: `src_nodes` are global ids
    times: Times | None = None  # [num_occurrences] time of its seed, or of the edge to it (`Sampler.time_bound`)

    @property
    def input_nodes(self) -> Ids:
        """Global ids of the feature rows that the first block reads, the seeds first.

        In a batch that is sampled by time, a node may occur several times.
        """
        if self.nodes is not None:
            return self.nodes
        return self.blocks[0].src_nodes if self.blocks else self.seeds

    def rows_by_node(self) -> tuple[Ids, Ids | slice]:
        """Returns the distinct `input_nodes`, and each one's place among them.

        In a batch that is sampled by time, a node may occur several times. Its features
        are then loaded once and repeated by the places.
        """
        if self.nodes is None:
            return self.input_nodes, slice(None)
        nodes, places = np.unique(self.nodes, return_inverse=True)
        return nodes, places.reshape(-1)
