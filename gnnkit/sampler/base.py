"""CSC + seeds -> MiniBatch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch
from gnnkit.sampler.batching import tree_sizes


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """What given nodes drew, in global ids; `Sampler.sample` renumbers it into a block."""

    indptr: Ids  # [num_nodes + 1] int64, the draws of node i are indptr[i]:indptr[i + 1]
    sources: Ids  # [num_draws] global ids
    edge_ids: Ids | None = None  # [num_draws] positions in the CSC; None: not edges of it
    weight: Floats | None = None  # [num_draws] importance weights


class Sampler(ABC):
    """Draws the neighbourhood of seeds. Equal arguments give equal results, whatever the number of threads.

    What a node draws follows from the key, the node and, where `redraw` is true, the hop; not from the batch that it is
    in, unless the sampler says so. So ranks that each answer for their own nodes draw what one process would.
    """

    num_hops: int = 2  # blocks of a batch
    redraw: bool = False  # False: a node draws once, when it is first found. True: all nodes found draw at every hop

    @abstractmethod
    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        """One hop of `nodes`, destinations of `graph`. Hop 0 is the seeds' own.

        Raises `ValueError` for nodes or hops out of range, naming the value and its place.
        """

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        """All hops of `seeds`. Nodes are numbered in the order in which they are found.

        Raises `ValueError` for seeds out of range or repeated, naming the value and its place.
        """
        numbering = _core.Numbering(as_ids("seeds", seeds), graph.num_nodes)
        known = [len(seeds)]
        hops: list[Hop] = []
        for hop in range(self.num_hops):
            newest = known[-2] if len(known) > 1 else 0
            drawing = numbering.nodes()[0 if self.redraw else newest :]
            hops.append(self.draw(graph, drawing.astype(graph.indices.dtype), hop, key=key))
            locals_ = numbering.add(as_ids("sources", hops[-1].sources))
            hops[-1] = Hop(hops[-1].indptr, locals_, hops[-1].edge_ids, hops[-1].weight)
            known.append(len(numbering.nodes()))
        return _batch(numbering.nodes().astype(graph.indices.dtype), known, _join(hops, graph), self.redraw)

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        """What each seed costs, for batches of equal cost; here its number of in-edges."""
        return np.diff(graph.indptr)[seeds].astype(np.float64)

    def groups(self, graph: CSC, seeds: Ids) -> Ids | None:  # [num_seeds]
        """Seeds of one group belong into one batch, and a batch has `batch_size` groups. None: each seed is for itself."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The arrays that a native sampler reads.

    A part of a graph numbers its destinations and sources anew. `rows` and `sources`
    give their global ids. A destination draws the same in-edges from a part as from the
    whole graph if the part holds all its in-edges in the order of the whole graph.
    """

    csc: CSC
    wanted: Floats | None = None  # [num_sources] float64 finite and not negative: by how much each node is wanted
    cluster: Ids | None = None  # [num_sources] int64 cluster of each node
    rows: Ids | None = None  # [num_nodes] int64 global ids of the destinations; None: their numbers
    sources: Ids | None = None  # [num_sources] int64 global ids of the sources; None: their numbers
    counts: Ids | None = None  # [num_nodes] int64 draws of each node by `balanced`; None: shared by the hop

    def __post_init__(self) -> None:
        csc = self.csc
        for array in (csc.indptr, csc.indices, csc.weight, self.wanted, self.cluster, self.rows, self.sources):
            storage.expect_random_reads(array)


class NativeSampler(Sampler):
    """A sampler whose draws and batches are made in Rust, without the interpreter's lock.

    `threads` threads draw and number one batch together; None: as many as there are cores at hand. Small hops take one. A
    `Loader` makes a batch a thread instead, which scales better, and does not read `threads`.
    """

    fanouts: Sequence[int] = ()  # [num_hops] from the seeds outward
    replace: bool = False  # whether draws are with replacement
    edge_ids: bool = True  # whether blocks say which edges of the CSC theirs are
    threads: int | None = None  # that make one batch; None: the cores at hand
    draws_edges: ClassVar[bool] = True  # False: a source need not be a neighbour

    @abstractmethod
    def native(self) -> _core.Sampler:
        """The same sampler as the core knows it; cheap to make."""

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        """The expected size of the tree that uniform draws with these fanouts make."""
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace)

    def reading(self, graph: CSC) -> Reading:
        """What it reads of `graph`."""
        return Reading(graph)

    def draw(self, graph: CSC | Reading, nodes: Ids, hop: int, *, key: int) -> Hop:
        """Draws one hop of `nodes`.

        Owners that each draw for their own nodes draw what one process draws. Each gives
        the `Reading` of its part with global ids. Two samplers are not by node:
        `metropolis_hastings` walks the nodes of other owners, and `cluster` reads the
        clusters of all seeds. `balanced` is by node only with the `counts` of `water_fill`
        over all nodes of the hop. `weighted` with `alpha` needs `wanted` of the whole
        graph, [num_sources].

        Args:
            graph: The graph, or the reading of a part of one.
            nodes: [num_nodes] destinations, in the numbers of `graph`.
            hop: Number of the hop, 0 is the seeds' own.
            key: Key of the batch.

        Returns: the draws, with sources and edges in the numbers of `graph`.
        """
        reading = graph if isinstance(graph, Reading) else self.reading(graph)
        ids = as_ids("nodes", nodes)
        indptr, sources, edge_ids, weight = self.native().draw(reading, ids, hop, wrap(key), self._num_threads())
        return Hop(indptr, sources, edge_ids if self.draws_edges else None, weight)

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        ids = as_ids("seeds", seeds)
        return self.batch(self.native().sample(self.reading(graph), ids, wrap(key), self._num_threads()))

    def batch(self, made: _core.Batch) -> MiniBatch:
        """The blocks of what the core sampled."""
        nodes, known, indptr, sources, edge_ids, weight = made
        rows = Hop(indptr, sources, edge_ids if self.edge_ids and self.draws_edges else None, weight)
        return _batch(nodes, known, rows, self.redraw)

    def _num_threads(self) -> int:
        return num_cores() if self.threads is None else self.threads


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int | None:
    """`threads`. Raises `ValueError` unless it is None or at least 1."""
    if threads is not None and threads < 1:
        raise ValueError(f"sampler.threads={threads} must be at least 1")
    return threads


def as_ids(name: str, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`ids` as contiguous int64. Raises `ValueError` unless they are integers in one dimension."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(f"{name} must be integers in one dimension, got {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, np.int64)


def wrap(key: int) -> int:
    """`key` modulo 2^64, as the core takes it."""
    return int(key) & 0xFFFF_FFFF_FFFF_FFFF


def _join(hops: Sequence[Hop], graph: CSC) -> Hop:
    """The rows of all hops as those of one."""
    ends = [0, *accumulate(len(hop.sources) for hop in hops)]
    indptr = [np.zeros(1, np.int64), *(hop.indptr[1:] + end for hop, end in zip(hops, ends, strict=False))]
    edge_ids = [hop.edge_ids for hop in hops if hop.edge_ids is not None]
    weight = [hop.weight for hop in hops if hop.weight is not None]
    return Hop(
        np.concatenate(indptr),
        np.concatenate([np.empty(0, graph.indices.dtype), *(hop.sources for hop in hops)], dtype=graph.indices.dtype),
        np.concatenate(edge_ids) if edge_ids else None,
        np.concatenate(weight) if weight else None,
    )


def _batch(nodes: Ids, known: Sequence[int], rows: Hop, redraw: bool) -> MiniBatch:
    """The blocks of a batch as views of its rows: where nodes draw once, each block is a prefix of all rows."""
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
