"""The interface of samplers, which draw a MiniBatch from a CSC and seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch, RelationGroups
from gnnkit.graph.times import NEVER, Occurrences, Times, latest_visible
from gnnkit.graph.types import offsets_of, take
from gnnkit.sampler.batching import tree_sizes
from gnnkit.sampler.contract import Hop, check_hop
from gnnkit.sampler.fanouts import Fanouts, FanoutsLike
from gnnkit.utils import storage
from gnnkit.utils.checks import MAX_THREADS, int64s, whole
from gnnkit.utils.ranges import num_cores, one_of

TIME_RULES, PICKS, TIME_BOUNDS = (
    ("none", "strict", "inclusive", "window"),
    ("uniform", "last", "weighted"),
    ("seed", "path"),
)
TIME_ARGUMENTS = {"time": "none", "window": None, "time_bound": "seed"}  # select visible edges. With defaults
_SPREAD = np.int64(-7046029254386353131)  # odd, so that consecutive times have unrelated keys


class Sampler(ABC):
    """Draws the neighbourhood of seeds.

    Derive from it to write a sampler in Python: implement `draw`, which returns the
    in-edges that some nodes draw in one hop, and `sample` builds the batch. The
    constructor's arguments are the keys of `sampler`. Randomness comes from `key` only,
    so equal arguments give equal results on any number of threads and ranks. Override
    `sample` for batches that are not drawn hop by hop. The loader and the strategies
    check what a Python sampler returns.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import Hop, Sampler
        >>> class First(Sampler):
        ...     '''Draws each node's first in-edge.'''
        ...     def draw(self, graph, nodes, hop, *, key):
        ...         edges, ends = graph.indptr[nodes], graph.indptr[nodes + 1]
        ...         indptr = numpy.r_[0, (edges < ends).cumsum()]
        ...         edges = edges[edges < ends]
        ...         return Hop(indptr, graph.indices[edges], edges)
        >>> csc = CSC.from_edges([1, 2, 2], [0, 0, 1], 3)
        >>> First().sample(csc, numpy.array([0]), key=1).input_nodes.tolist()
        [0, 1, 2]
    """

    num_hops: int = 2  # number of blocks per batch
    fanouts: Sequence[int] | None = None  # [num_hops] draws per node, from the seeds outward. None: unknown
    redraw: bool = False  # False: a node draws once, when it enters the batch. True: again at every later hop
    by_node: bool = True
    """Whether a node's draws depend only on the key, the node and the hop.

    If False, they also depend on the other nodes of the batch.
    """

    by_relation: bool = False
    """Whether `sample` accepts `RelationGroups`, and then draws from each relation.

    If a sampler in Python sets it, `draw` is called for each relation with the graph of
    its edges and another key, and must return `edge_ids`.
    """

    time: str = "none"
    """Which edges a seed sees: none for all, strict for earlier ones than its own time,
    inclusive for those at its own time too, window for those of the `window` before.

    With such a rule, `sample` has an argument `times`, [num_seeds] int64, and draws
    from a graph whose `CSC.time` is set. It returns a `MiniBatch` with `nodes`
    and `times`. `gnnkit.graph.times.latest_visible` computes each row's bound. With the
    argument `disjoint`, no two seeds share rows.
    """

    window: int | None = None
    """Age up to which a seed sees edges, in the unit of times, with time=window."""

    time_bound: str = "seed"
    """Which time bounds what a neighbour sees: its seed's, or with path the time of the
    edge that led to it. Static edges keep the time before them."""

    @property
    def hops_key(self) -> str:
        """Key that sets the number of hops, `sampler.num_hops` or `sampler.fanouts`.

        Error messages name it if the sampler does not match the model's layers.
        """
        return "sampler.num_hops" if self.fanouts is None else "sampler.fanouts"

    @property
    def draws_at_owners(self) -> bool:
        """Whether a node's owner can draw for it from its in-edges alone.

        A sampler in Python may override it if `draw` depends only on the key, the hop,
        the nodes and their in-edges, and returns `edge_ids`. An owner passes a graph
        with all nodes, in which only its own nodes have in-edges.
        """
        return False

    @property
    def reads_features(self) -> bool:
        """Whether the sampler needs all nodes' features before the first draw.

        If so, `with_features` is called, and the features must be on every rank.
        """
        return False

    def with_features(self, features: Floats | None) -> Sampler:
        """Returns a sampler with all nodes' features, if it `reads_features`.

        Raises `UserError` if it needs features and there are none.

        Args:
            features: [num_nodes, width] finite numbers, or None.
        """
        return self

    @property
    def rank_invariant(self) -> bool:
        """Whether P ranks with batches of B draw the same as one rank with P * B.

        If so, each seed has the same neighbourhood on any number of ranks. This
        requires that a node's draws do not depend on other nodes (`by_node`) or on the
        hop. If a node draws once, all fanouts must be equal, because a node may be a
        seed on one rank and a neighbour on another. Samplers whose draws depend on the
        hop (LABOR) need `redraw`. A Python sampler whose draws depend only on the key
        and the node may override this property.
        """
        return self.by_node and (self.redraw or self.num_hops == 1)

    @abstractmethod
    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        """Draws one hop.

        Raises `UserError`, with value and position, if a node or hop is out of range.

        Args:
            graph: The graph.
            nodes: [num_nodes] distinct destinations of `graph`.
            hop: From 0, the seeds' hop, to num_hops - 1.
            key: Any integer, modulo 2^64.
        """

    def sample(self, graph: CSC | RelationGroups, seeds: Ids, *, key: int) -> MiniBatch:
        """Draws all hops, and numbers nodes in order of discovery.

        Raises `UserError` if a seed is out of range or repeated, with value and
        position, and if a hop violates the contract of `draw`, with class and field.

        Args:
            graph: The graph, with as many sources as destinations, or its relations if
                `by_relation`.
            seeds: [num_seeds] distinct node ids.
            key: Any integer, modulo 2^64.
        """
        csc = graph.csc if isinstance(graph, RelationGroups) else graph

        def draw(nodes: Ids, hop: int) -> Hop:
            return draw_checked(self, graph, nodes.astype(csc.indices.dtype), hop, key)

        return grow(self, int64s("seeds", seeds), csc.num_nodes, csc.indices.dtype, draw)

    def costs(self, graph: CSC | RelationGroups, seeds: Ids) -> Floats:  # [num_seeds]
        """Estimates each seed's cost, for batches of equal cost.

        `batching=balanced` distributes the seeds of a window of steps so that all
        ranks' batches cost about the same. Units are arbitrary. The default is the
        number of in-edges.

        Args:
            graph: The graph.
            seeds: [num_seeds] node ids.

        Returns:
            [num_seeds] non-negative numbers.
        """
        csc = graph.csc if isinstance(graph, RelationGroups) else graph
        return np.diff(csc.indptr)[seeds].astype(np.float64)

    def groups(self, graph: CSC, seeds: Ids) -> Ids | None:  # [num_seeds]
        """Returns each seed's group, or None if seeds are independent.

        Seeds of a group are placed in the same batch, and a batch has `batch_size`
        groups.
        """
        return None


@dataclass(frozen=True, slots=True, eq=False)
class ReadRelations:
    """The groups of in-edges that a native sampler draws from, and their fanouts.

    The draws of a group are keyed by its relation and the global id of its node.
    """

    indptr: Ids  # [num_nodes + 1] int64
    codes: Ids  # [num_groups] int64
    starts: Ids  # [num_groups + 1] int64
    order: Ids | None  # [num_edges] int64 edge ids in the graph's CSC, which draws return
    num_relations: int
    fanouts: Ids  # [num_hops * num_relations] int64 draws per node, by hop and then by relation
    num_ids: int  # number of nodes of the complete graph

    @classmethod
    def of(cls, rows: RelationGroups, fanouts: Fanouts, num_ids: int | None = None) -> ReadRelations:
        """Checks the fanouts. Raises `UserError` if they name an unknown relation.

        Args:
            rows: The in-edges of a graph, or of a part of one.
            fanouts: Draws per node.
            num_ids: Number of nodes of the complete graph. If None, `rows` contain all.
        """
        by_hop = np.array(fanouts.by_hop(rows.names), np.int64).reshape(-1)
        num_ids = rows.csc.num_nodes if num_ids is None else num_ids
        return cls(rows.indptr, rows.codes, rows.starts, rows.order, rows.num_relations, by_hop, num_ids)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which rows random walks prefer: (floor + cosine with the start)^sharpness."""

    floor: float = 0.0  # at least 0
    sharpness: int = 1  # 1 to 32


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """Which in-edges the nodes that draw see, by time."""

    times: Ids  # [num_edges] int64, ascending within each node's in-edges. The lowest is always visible
    bounds: Ids | None = (
        None  # [num_rows] int64 latest visible time of each node that draws in one hop. None: all times
    )
    window: int | None = None  # with bounds: the number of times up to each bound that are visible. None: all
    latest: bool = False  # a node draws among its latest visible in-edges, as many as the fanout


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The arrays that a native sampler reads.

    In a part of a graph, destinations and sources have local ids, and `rows` and
    `sources` contain the global ones. A destination draws the same in-edges from a part
    as from the full graph if the part contains all of them in the full graph's order.
    """

    csc: CSC
    wanted: Floats | None = None  # [num_sources] float64 finite, at least 0, preference for each node
    features: Floats | None = None  # [num_sources, width] float32 or float64 rows compared by random walks
    preference: Preference = Preference()  # with features
    cluster: Ids | None = None  # [num_sources] int64 cluster of each node
    rows: Ids | None = None  # [num_nodes] int64 global ids of destinations. None: positions
    sources: Ids | None = None  # [num_sources] int64 global ids of sources. None: positions
    counts: Ids | None = None  # [num_nodes] int64 draws of each node, for `balanced`. None: computed from the hop
    keys: Ids | None = None  # [num_rows] int64 key of each node that draws in one hop. None: its global id
    visibility: Visibility | None = None  # None: all in-edges are visible
    relations: ReadRelations | None = None  # groups of in-edges. None: a node draws from all of its in-edges

    def __post_init__(self) -> None:
        csc = self.csc
        of_nodes = (self.wanted, self.features, self.cluster, self.rows, self.sources)
        for array in (csc.indptr, csc.indices, csc.weight, csc.time, *of_nodes):
            storage.expect_random_reads(array)


class NativeSampler(Sampler):
    """A sampler that draws in Rust, without Python's global interpreter lock.

    `threads` threads draw and number one batch together. Small hops run on one thread.
    A `Loader` ignores `threads` and makes one batch per thread, which scales better.

    Subclasses wrap a law of the Rust core, which `native` returns. A sampler written
    in Python derives from `Sampler` instead.
    """

    draws_edges: ClassVar[bool] = True  # False: a source may be a node that is not a neighbour
    draws_by_hop: ClassVar[bool] = False  # True: a node that draws once draws differently at each hop
    by_relation = True
    pick = "uniform"  # one of `PICKS`

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
                in-edges, 0 none. Or such lists by relation, with a `default`.
            replace: Whether to draw with replacement.
            redraw: Whether all nodes of the batch draw again at every hop. Otherwise a
                node draws once, when it enters the batch.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: The estimate over all in-edges that importance weights keep
                unbiased: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        self.fanouts: Fanouts = Fanouts.parse(fanouts)
        if not self.by_relation:
            self.fanouts.alike(f"{type(self).__name__} does not draw by relation")
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
        """Creates the native sampler, at little cost."""

    def costs(self, graph: CSC | RelationGroups, seeds: Ids) -> Floats:  # [num_seeds]
        """Estimates the size of each seed's tree under uniform draws."""
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace)

    def reading(self, graph: CSC) -> Reading:
        """Collects the arrays of `graph` that the sampler reads."""
        return Reading(graph)

    def reads(self, graph: CSC | RelationGroups) -> Reading:
        """Collects the arrays that the sampler reads, by relation for `RelationGroups`.

        Raises `UserError` for fanouts by relation with a CSC, which has no relations.
        """
        if isinstance(graph, CSC):
            self.fanouts.alike("this run does not distinguish relations")
            return self.reading(graph)
        if not self.by_relation:
            raise UserError(f"{type(self).__name__} does not draw by relation; use NeighborSampler, or pass a CSC")
        return replace(self.reading(graph.csc), relations=ReadRelations.of(graph, self.fanouts))

    @property
    def draws_at_owners(self) -> bool:
        is_native = type(self).sample is NativeSampler.sample and type(self).draw is NativeSampler.draw
        return self.by_node and self.draws_edges and is_native

    @property
    def reads_out_edges(self) -> bool:
        """Whether `part` needs the sources' out-degrees."""
        return False

    def part(self, csc: CSC, rows: Ids, sources: Ids, out_edges: Ids | None) -> Reading:
        """Collects the arrays of a part of a graph, for `draw` at an owner.

        Args:
            csc: All in-edges of some nodes, in the full graph's order.
            rows: [num_nodes] int64 global ids of the destinations.
            sources: [num_sources] int64 global ids of the sources.
            out_edges: [num_sources] out-degrees in the full graph. None unless
                `reads_out_edges`.
        """
        return Reading(csc, rows=rows, sources=sources)

    def draw(self, graph: CSC | RelationGroups | Reading, nodes: Ids, hop: int, *, key: int) -> Hop:
        """Draws one hop of `nodes`.

        Owners that each draw for their owned nodes, from the `Reading` of a part with
        global ids, draw the same as one process. Two samplers are excluded:
        `metropolis_hastings` walks over other owners' nodes, and `cluster` reads the
        clusters of all seeds. `balanced` needs `counts` from `water_fill` over all
        nodes of the hop. `weighted` with `alpha` needs the full graph's `wanted`
        [num_sources].

        Args:
            graph: The graph, with its relations if each is drawn separately, or the
                reading of a part of one.
            nodes: [num_nodes] destinations, as numbered in `graph`.
            hop: The hop, 0 for the seeds.
            key: The batch's key.

        Returns:
            The draws, with sources and edges as numbered in `graph`.
        """
        reading = graph if isinstance(graph, Reading) else self.reads(graph)
        if self.time != "none" and (reading.visibility is None or reading.visibility.bounds is None):
            raise UserError(f"sampler.time={self.time}: draw needs a reading with bounds; use sample, with times")
        ids = int64s("nodes", nodes)
        hop = whole("hop", hop, 0)
        columns = self.native().draw(reading, ids, hop, wrap(key), self._num_threads())
        indptr, sources, edge_ids, weight, relation = columns
        return Hop(indptr, sources, edge_ids if self.draws_edges else None, weight, relation)

    def by_time(self, time: str, pick: str = "uniform", window: int | None = None, time_bound: str = "seed") -> Self:
        """Sets the rule by which a seed sees edges, for constructors.

        Args:
            time: One of `TIME_RULES`.
            pick: uniform, last for the latest visible edges, or weighted, in proportion
                to weights.
            window: With time=window: the age up to which a seed sees edges.
            time_bound: One of `TIME_BOUNDS`.
        """
        if (window is None) != (time != "window"):
            raise UserError(
                f"sampler.time={time} with sampler.window={'null' if window is None else window}: sampler.time=window needs "
                "the age up to which edges are visible, in the unit of times, and other rules take none; set both or neither"
            )
        self.window = None if window is None else whole("sampler.window", window, 1, NEVER)
        self.time, self.pick = one_of("sampler.time", time, TIME_RULES), one_of("sampler.pick", pick, PICKS)
        self.time_bound = one_of("sampler.time_bound", time_bound, TIME_BOUNDS)
        if time == "none" and time_bound == "path":
            raise UserError("sampler.time_bound=path needs times: use sampler.time=strict, inclusive or window")
        if time == "none" and pick == "last":
            raise UserError("sampler.pick=last needs times: use sampler.time=strict, inclusive or window")
        if pick == "last" and self.replace:
            raise UserError("sampler.pick=last takes each edge once: use sampler.replace=false")
        if pick == "last" and self.redraw:
            raise UserError("sampler.pick=last draws once for each node: use sampler.options.redraw=false")
        if pick != "uniform" and getattr(self, "fill", False):
            raise UserError(f"sampler.pick={pick} takes each edge once: use sampler.options.fill=false")
        return self

    def sample(
        self, graph: CSC | RelationGroups, seeds: Ids, *, key: int, times: Ids | None = None, disjoint: bool = False
    ) -> MiniBatch:
        """Draws all hops, like `Sampler.sample`.

        Args:
            graph: The graph, with `CSC.time` if this sampler has a `time`.
            seeds: [num_seeds] node ids, distinct at each time.
            key: Any integer, modulo 2^64.
            times: [num_seeds] int64 each seed's time, if this sampler has a `time`.
            disjoint: Whether no two seeds share nodes. Otherwise, seeds at one time do.
        """
        ids = int64s("seeds", seeds)
        if (times is None) != (self.time == "none"):
            raise UserError(
                f"sampler.time={self.time}: expected {'no times' if self.time == 'none' else 'times'} of seeds"
            )
        if times is None:
            return self.batch(self.native().sample(self.reads(graph), ids, wrap(key), self._num_threads()))
        return self._sample_by_time(graph, ids, int64s("times", times, len(ids)), wrap(key), disjoint=disjoint)

    def _sample_by_time(
        self, graph: CSC | RelationGroups, seeds: Ids, times: Times, key: int, *, disjoint: bool
    ) -> MiniBatch:
        reading = self.reads(graph)
        if reading.csc.time is None:
            raise UserError(
                f"sampler.time={self.time}: the graph's edges have no times: pass CSC(indptr, indices, time=)"
            )
        reading = replace(reading, visibility=Visibility(reading.csc.time, None, self.window, self.pick == "last"))
        occurrences, trees = Occurrences.of(times, disjoint=disjoint)
        of_tree, count = occurrences.times, reading.csc.num_nodes
        keys, lag = of_tree * _SPREAD, int(self.time != "inclusive")
        paths = None if self.time_bound == "seed" else (of_tree, lag, int(_SPREAD), disjoint)
        ((nodes, tree_of, node_counts),), (hop,), path_times = _core.grow(
            [(self.native(), reading, 0, 0)],
            [(seeds, trees.astype(np.uint32), count)],
            (keys, latest_visible(of_tree, self.time), paths),
            self.num_hops,
            key,
            induced=False,
            most_draws=2**31,  # strategies and loaders check memory
            threads=self._num_threads(),
        )
        batch = self.batch((np.arange(len(nodes), dtype=nodes.dtype), node_counts, *hop))
        bounds: Times = of_tree if paths is None else path_times
        row_times = bounds[tree_of] if len(bounds) != 1 else np.full(len(nodes), bounds[0])
        return MiniBatch(nodes[: len(seeds)], batch.blocks, nodes, row_times)

    def batch(self, core_batch: _core.Batch) -> MiniBatch:
        """Slices the rows sampled by the core into blocks."""
        nodes, node_counts, indptr, sources, edge_ids, weight, relation = core_batch
        rows = Hop(indptr, sources, edge_ids if self.edge_ids and self.draws_edges else None, weight, relation)
        return _batch(nodes, node_counts, rows, self.redraw)

    def _num_threads(self) -> int:
        return num_cores() if self.threads is None else self.threads


def draw_checked(sampler: Sampler, graph: CSC | RelationGroups, nodes: Ids, hop: int, key: int) -> Hop:
    """Returns what a sampler in Python draws in one hop, from each relation if given.

    Raises `UserError` if it violates the contract of `Sampler.draw`.

    Args:
        sampler: The sampler.
        graph: The graph, or its relations.
        nodes: [num_nodes] distinct destinations.
        hop: The hop, 0 for the seeds.
        key: The batch's key. Relation 0 is drawn with it, others with different keys.
    """
    location = f"{type(sampler).__name__}.draw"
    if isinstance(graph, CSC):
        return check_hop(location, sampler.draw(graph, nodes, hop, key=key), graph, nodes)
    draws = []
    for relation, (csc, edges) in enumerate(graph.by_relation):
        drawn = draw_checked(sampler, csc, nodes, hop, wrap(key + relation * int(_SPREAD)))
        if drawn.edge_ids is None:
            raise UserError(f"{location} must return edge_ids, because by_relation=True")
        relations, num_draws = np.full(len(drawn.sources), relation, graph.types.dtype), np.diff(drawn.indptr)
        shares = np.repeat(np.diff(csc.indptr)[nodes] / np.maximum(num_draws, 1), num_draws)
        weight: Floats = shares if drawn.weight is None else drawn.weight
        draws.append(replace(drawn, edge_ids=edges[drawn.edge_ids], weight=weight, relation=relations))
    rows = np.concatenate([np.repeat(np.arange(len(nodes)), np.diff(drawn.indptr)) for drawn in draws])
    order, joined = np.argsort(rows, kind="stable"), join_hops(draws, np.int64)
    columns = (take(values, order) for values in (joined.edge_ids, joined.weight, joined.relation))
    return Hop(offsets_of(np.bincount(rows, minlength=len(nodes))), joined.sources[order], *columns)


def wrap(key: int) -> int:
    """Returns `key` modulo 2^64, as the core expects."""
    return whole("key", key) & 0xFFFF_FFFF_FFFF_FFFF


def grow(
    sampler: Sampler, seeds: Ids, num_nodes: int, dtype: npt.DTypeLike, draw: Callable[[Ids, int], Hop]
) -> MiniBatch:
    """Builds a batch hop by hop, and numbers nodes in order of discovery.

    Args:
        sampler: The sampler, with `num_hops` and `redraw`.
        seeds: [num_seeds] int64 distinct ids.
        num_nodes: Number of nodes of the graph.
        dtype: Id type of the batch.
        draw: Called with nodes [k] int64 for hops 0, 1, ..., returns their draws.
    """
    numbering = _core.Numbering(seeds, num_nodes)
    node_counts = [0, len(seeds)]
    hops: list[Hop] = []
    for hop in range(sampler.num_hops):
        draws = draw(numbering.nodes()[0 if sampler.redraw else node_counts[-2] :], hop)
        hops.append(replace(draws, sources=numbering.add(draws.sources)))
        node_counts.append(len(numbering.nodes()))
    return _batch(numbering.nodes().astype(dtype), node_counts[1:], join_hops(hops, dtype), sampler.redraw)


def at_times(sampler: NativeSampler, reading: Reading, nodes: Ids, times: Times, num_nodes: int) -> Reading:
    """Returns a reading for `draw`, in which each row sees edges up to its time.

    Args:
        sampler: The sampler, with `time`.
        reading: The arrays, with `CSC.time`.
        nodes: [num_rows] global ids of the nodes that draw.
        times: [num_rows] the time of each.
        num_nodes: Number of nodes of the complete graph.
    """
    keys = times * _SPREAD * num_nodes + nodes
    assert reading.csc.time is not None
    bounds, latest = latest_visible(times, sampler.time), sampler.pick == "last"
    return replace(reading, keys=keys, visibility=Visibility(reading.csc.time, bounds, sampler.window, latest))


def by_occurrence(batch: MiniBatch, occurrences: Occurrences) -> MiniBatch:
    """Numbers a batch's rows, whose nodes are occurrence codes."""
    codes = batch.input_nodes
    rows = np.arange(len(codes))
    blocks = tuple(replace(block, src_nodes=rows[: len(block.src_nodes)]) for block in batch.blocks)
    nodes = occurrences.nodes(codes)
    return MiniBatch(nodes[: len(batch.seeds)], blocks, nodes, occurrences.times[occurrences.trees(codes)])


def join_hops(hops: Sequence[Hop], dtype: npt.DTypeLike) -> Hop:
    """Concatenates the rows of hops, and converts sources to `dtype`."""
    ends = [0, *accumulate(len(hop.sources) for hop in hops)]
    indptr = [np.zeros(1, np.int64), *(hop.indptr[1:] + end for hop, end in zip(hops, ends, strict=False))]
    columns = {}
    for name in ("edge_ids", "weight", "relation"):
        parts = [values for hop in hops if (values := getattr(hop, name)) is not None]
        columns[name] = np.concatenate(parts) if parts else None
    sources = np.concatenate([np.empty(0, dtype), *(hop.sources for hop in hops)], dtype=dtype)
    return Hop(np.concatenate(indptr), sources, **columns)


def _batch(nodes: Ids, node_counts: Sequence[int], rows: Hop, redraw: bool) -> MiniBatch:
    """Slices a batch's rows into blocks, as views.

    If nodes draw once, each block is a prefix of all rows.
    """
    blocks = []
    first = 0
    for num_dst, num_src in pairwise(node_counts):
        indptr = rows.indptr[first : first + num_dst + 1]
        edges = slice(indptr[0], indptr[-1])
        blocks.append(
            Block(
                indptr=indptr - indptr[0] if first else indptr,
                indices=rows.sources[edges],
                src_nodes=nodes[:num_src],
                edge_ids=None if rows.edge_ids is None else rows.edge_ids[edges],
                weight=None if rows.weight is None else rows.weight[edges],
                relation=None if rows.relation is None else rows.relation[edges],
            )
        )
        first += num_dst if redraw else 0
    return MiniBatch(seeds=nodes[: node_counts[0]], blocks=tuple(reversed(blocks)))
