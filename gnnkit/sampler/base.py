"""Samplers: from a CSC and seeds to a MiniBatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.checks import MAX_THREADS, int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch
from gnnkit.ranges import num_cores
from gnnkit.sampler.batching import tree_sizes
from gnnkit.sampler.contract import Hop, check_hop
from gnnkit.sampler.fanouts import Fanouts, FanoutsLike


class Sampler(ABC):
    """A rule that draws the neighbourhood of seeds.

    Equal arguments give equal results, on any number of threads.
    """

    num_hops: int = 2  # blocks of a batch
    fanouts: Sequence[int] | None = None  # [num_hops] draws per node, from the seeds outward. None: unknown
    redraw: bool = False  # False: a node draws once, when first found. True: at every hop from then on
    by_node: bool = True
    """Whether the draws of a node follow from the key, the node and the hop alone.

    Where this is False, the draws of a node depend on the other nodes of the batch.
    """

    @property
    def draws_at_owners(self) -> bool:
        """Whether the owner of a node can draw for the node from its in-edges alone.

        Then the sampler has a method `part`, as `NativeSampler` has.
        """
        return False

    @property
    def reads_features(self) -> bool:
        """Whether the sampler needs the features of all nodes before the first draw."""
        return False

    def with_features(self, features: Floats | None) -> Sampler:
        """Returns a sampler that has the features of all nodes, if it `reads_features`.

        Raises `UserError` where there are none to read.

        Args:
            features: [num_nodes, width] finite numbers. None: there are none.
        """
        return self

    @property
    def rank_invariant(self) -> bool:
        """Whether P ranks with batches of B draw the same as one rank with P * B.

        If so, each seed has the same neighbourhood on any number of ranks. A node must
        draw alone (`by_node`), and the same in every hop. Where a node draws once, all
        fanouts must be equal, because a node may be a seed on one rank and a neighbour
        on another. Samplers that also draw by the hop (LABOR) need `redraw`. A sampler
        in Python with draws that do not depend on the hop may override this property.
        """
        return self.by_node and (self.redraw or self.num_hops == 1)

    @abstractmethod
    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        """Draws one hop.

        Raises `UserError` for nodes or hops out of range, naming value and place.

        Args:
            graph: The graph.
            nodes: [num_nodes] distinct destinations of `graph`.
            hop: from 0, the hop of the seeds, to num_hops - 1.
            key: any whole number, modulo 2^64.
        """

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        """Draws all hops. Numbers nodes in the order of discovery.

        Raises `UserError` for seeds out of range or repeated, naming value and place.
        Raises `UserError` for a hop that breaks the contract of `draw`, naming class
        and field.

        Args:
            graph: The graph, with as many sources as destinations.
            seeds: [num_seeds] distinct node ids.
            key: any whole number, modulo 2^64.
        """

        def draw(nodes: Ids, hop: int) -> Hop:
            drawn = self.draw(graph, nodes.astype(graph.indices.dtype), hop, key=key)
            return check_hop(f"{type(self).__name__}.draw", drawn, graph, nodes)

        return grow(self, int64s("seeds", seeds), graph.num_nodes, graph.indices.dtype, draw)

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        """Estimates the cost of each seed, for batches of equal cost.

        The default is the number of in-edges.
        """
        return np.diff(graph.indptr)[seeds].astype(np.float64)

    def groups(self, graph: CSC, seeds: Ids) -> Ids | None:  # [num_seeds]
        """Returns the group of each seed, or None if each seed is for itself.

        Seeds of one group belong into one batch, and a batch has `batch_size` groups.
        """
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The arrays that a native sampler reads.

    A part of a graph numbers destinations and sources anew. `rows` and `sources` hold
    the global ids. A destination draws the same in-edges from a part as from the whole
    graph if the part holds all in-edges in the order of the whole graph.
    """

    csc: CSC
    wanted: Floats | None = None  # [num_sources] float64 finite, at least 0, preference for each node
    features: Floats | None = None  # [num_sources, width] float32 or float64 rows that walks compare
    floor: float = 0.0  # with features: added to the cosine to the start of a walk, at least 0
    sharpness: int = 1  # with features: exponent of that sum, 1 to 32
    cluster: Ids | None = None  # [num_sources] int64 cluster of each node
    rows: Ids | None = None  # [num_nodes] int64 global ids of destinations. None: positions
    sources: Ids | None = None  # [num_sources] int64 global ids of sources. None: positions
    counts: Ids | None = None  # [num_nodes] int64 draws of each node, for `balanced`. None: shared by the hop

    def __post_init__(self) -> None:
        csc = self.csc
        of_nodes = (self.wanted, self.features, self.cluster, self.rows, self.sources)
        for array in (csc.indptr, csc.indices, csc.weight, *of_nodes):
            storage.expect_random_reads(array)


class NativeSampler(Sampler):
    """A sampler that draws in Rust, without the interpreter's lock.

    `threads` threads draw and number one batch together. Small hops take one thread. A
    `Loader` does not read `threads`. One thread of a loader makes one batch, because
    this scales better.
    """

    draws_edges: ClassVar[bool] = True  # False: a source need not be a neighbour
    draws_by_hop: ClassVar[bool] = False  # True: the hop decides the draws of a node that draws once

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        replace: bool = False,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Checks the arguments that native samplers share.

        Raises `UserError` with the configuration key.

        Args:
            fanouts: [num_hops] draws per node, from the seeds outward. -1 takes all
                in-edges, 0 none.
            replace: whether draws are with replacement.
            redraw: whether all nodes found so far draw anew at every hop. Otherwise a
                node draws once, when first found.
            edge_ids: whether blocks hold positions of edges in the CSC.
            importance: weights that keep an estimate over all in-edges unbiased: mean,
                sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        self.fanouts: Fanouts = Fanouts.parse(fanouts).alike(type(self).__name__)
        self.num_hops = self.fanouts.num_hops
        self.replace = replace
        self.redraw = redraw
        self.edge_ids = edge_ids
        self.importance = importance
        self.threads = None if threads is None else whole("sampler.threads", threads, 1, MAX_THREADS)
        if importance not in (None, "mean", "sum"):
            raise UserError(f"sampler.importance={importance} must be mean, sum or null")

    @property
    def rank_invariant(self) -> bool:
        alike = self.fanouts.same_at_every_hop and not self.draws_by_hop
        return super().rank_invariant or (self.by_node and alike)

    @abstractmethod
    def native(self) -> _core.Sampler:
        """Makes the core's form of this sampler, at little cost."""

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        """Estimates the size of the tree that uniform draws make of each seed."""
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace)

    def reading(self, graph: CSC) -> Reading:
        """Collects the arrays of `graph` that the sampler reads."""
        return Reading(graph)

    @property
    def draws_at_owners(self) -> bool:
        own = type(self).sample is NativeSampler.sample and type(self).draw is NativeSampler.draw
        return self.by_node and self.draws_edges and own

    @property
    def reads_out_edges(self) -> bool:
        """Whether `part` needs the numbers of out-edges of sources."""
        return False

    def part(self, csc: CSC, rows: Ids, sources: Ids, out_edges: Ids | None) -> Reading:
        """Collects the arrays of a part of a graph, for `draw` at an owner.

        Args:
            csc: All in-edges of some nodes, in the order of the whole graph.
            rows: [num_nodes] int64 global ids of the destinations.
            sources: [num_sources] int64 global ids of the sources.
            out_edges: [num_sources] out-edges in the whole graph. None unless
                `reads_out_edges`.
        """
        return Reading(csc, rows=rows, sources=sources)

    def draw(self, graph: CSC | Reading, nodes: Ids, hop: int, *, key: int) -> Hop:
        """Draws one hop of `nodes`.

        Owners that each draw for their own nodes draw the same as one process. Each
        owner gives the `Reading` of a part with global ids. Two samplers are not by
        node: `metropolis_hastings` walks the nodes of other owners, and `cluster` reads
        the clusters of all seeds. `balanced` is by node only with the `counts` of
        `water_fill` over all nodes of the hop. `weighted` with `alpha` needs `wanted`
        of the whole graph, [num_sources].

        Args:
            graph: The graph, or the reading of a part of one.
            nodes: [num_nodes] destinations, in the numbers of `graph`.
            hop: Number of the hop. The seeds draw in hop 0.
            key: Key of the batch.

        Returns:
            The draws, with sources and edges in the numbers of `graph`.
        """
        reading = graph if isinstance(graph, Reading) else self.reading(graph)
        ids = int64s("nodes", nodes)
        hop = whole("hop", hop, 0)
        indptr, sources, edge_ids, weight = self.native().draw(reading, ids, hop, wrap(key), self._num_threads())
        return Hop(indptr, sources, edge_ids if self.draws_edges else None, weight)

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        ids = int64s("seeds", seeds)
        return self.batch(self.native().sample(self.reading(graph), ids, wrap(key), self._num_threads()))

    def batch(self, made: _core.Batch) -> MiniBatch:
        """Cuts the rows that the core sampled into blocks."""
        nodes, known, indptr, sources, edge_ids, weight = made
        rows = Hop(indptr, sources, edge_ids if self.edge_ids and self.draws_edges else None, weight)
        return _batch(nodes, known, rows, self.redraw)

    def _num_threads(self) -> int:
        return num_cores() if self.threads is None else self.threads


def wrap(key: int) -> int:
    """Returns `key` modulo 2^64, for the core."""
    return whole("key", key) & 0xFFFF_FFFF_FFFF_FFFF


def grow(
    sampler: Sampler, seeds: Ids, num_nodes: int, dtype: npt.DTypeLike, draw: Callable[[Ids, int], Hop]
) -> MiniBatch:
    """Makes a batch, hop by hop. Numbers nodes in the order of discovery.

    Args:
        sampler: Its number of hops, and whether nodes draw again.
        seeds: [num_seeds] int64 distinct ids.
        num_nodes: Nodes of the graph.
        dtype: Type of ids in the batch.
        draw: Returns the draws of nodes [k] int64 in a hop, called for hops 0, 1, ...
    """
    numbering = _core.Numbering(seeds, num_nodes)
    known = [len(seeds)]
    hops: list[Hop] = []
    for hop in range(sampler.num_hops):
        newest = known[-2] if len(known) > 1 else 0
        drawn = draw(numbering.nodes()[0 if sampler.redraw else newest :], hop)
        hops.append(Hop(drawn.indptr, numbering.add(drawn.sources), drawn.edge_ids, drawn.weight))
        known.append(len(numbering.nodes()))
    return _batch(numbering.nodes().astype(dtype), known, join_hops(hops, dtype), sampler.redraw)


def join_hops(hops: Sequence[Hop], dtype: npt.DTypeLike) -> Hop:
    """Joins the rows of hops into one hop, with sources of a type."""
    ends = [0, *accumulate(len(hop.sources) for hop in hops)]
    indptr = [np.zeros(1, np.int64), *(hop.indptr[1:] + end for hop, end in zip(hops, ends, strict=False))]
    edge_ids = [hop.edge_ids for hop in hops if hop.edge_ids is not None]
    weight = [hop.weight for hop in hops if hop.weight is not None]
    return Hop(
        np.concatenate(indptr),
        np.concatenate([np.empty(0, dtype), *(hop.sources for hop in hops)], dtype=dtype),
        np.concatenate(edge_ids) if edge_ids else None,
        np.concatenate(weight) if weight else None,
    )


def _batch(nodes: Ids, known: Sequence[int], rows: Hop, redraw: bool) -> MiniBatch:
    """Cuts the rows of a batch into blocks, as views.

    Where nodes draw once, each block is a prefix of all rows.
    """
    blocks = []
    first = 0
    for num_dst, num_src in pairwise(known):
        indptr = rows.indptr[first : first + num_dst + 1]
        edges = slice(indptr[0], indptr[-1])
        blocks.append(
            Block(
                indptr=indptr - indptr[0] if first else indptr,
                indices=rows.sources[edges],
                src_nodes=nodes[:num_src],
                edge_ids=None if rows.edge_ids is None else rows.edge_ids[edges],
                weight=None if rows.weight is None else rows.weight[edges],
            )
        )
        first += num_dst if redraw else 0
    return MiniBatch(seeds=nodes[: known[0]], blocks=tuple(reversed(blocks)))
