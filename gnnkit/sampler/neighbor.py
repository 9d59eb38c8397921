"""Samplers of in-neighbours: uniform, all, LABOR, or a fixed number per hop."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids, RelationGroups
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.batching import tree_sizes
from gnnkit.sampler.fanouts import MAX_HOPS, Fanouts, FanoutsLike
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import switch


class NeighborSampler(NativeSampler):
    """Samples in-edges uniformly (Hamilton, Ying and Leskovec, NeurIPS 2017).

    This is the default and the fastest sampler, with a fixed number of draws per node.
    Draws without replacement are exact (Floyd, CACM 30(9), 1987). As in PyG, a node
    that recurs in a later hop keeps its first draws. In DGL it draws again, as with
    `redraw` here.

    With `replace` or `fill`, every node with an in-edge draws exactly the fanout k.
    With `fill`, a node with d >= k in-edges draws distinct ones, and any other node
    takes each edge k // d times and draws the remainder at random. In both cases k / d
    draws of an edge are expected, so weights d / k keep sums unbiased. The variance is
    lower with `fill` than with `replace`.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import NeighborSampler
        >>> csc = CSC.from_edges([1, 2, 3, 4], [0, 0, 0, 0], 5)
        >>> (block,) = NeighborSampler([2]).sample(csc, numpy.array([0]), key=1).blocks
        >>> block.num_dst, len(block.indices)  # node 0 draws 2 of its 4 in-edges
        (1, 2)
    """

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        replace: bool = False,
        fill: bool = False,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
        time: str = "none",
        pick: str = "uniform",
        window: int | None = None,
        time_bound: str = "seed",
    ) -> None:
        """Takes arguments of `NativeSampler`, `fill`, and those of sampling by time.

        Args:
            fanouts: [num_hops] draws per node, from the seeds outward. -1 takes all
                in-edges once, 0 none.
            replace: Whether draws are with replacement.
            fill: Whether nodes with fewer in-edges than the fanout repeat them.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
            time: Which edges a seed sees: none for all, strict for those before its own
                time, inclusive for those at its own time too, window for those of the
                `window` before its own time.
            pick: uniform, weighted (as `WeightedSampler`), or with `time`, last: the
                latest edges that the seed sees.
            window: With time=window: the age up to which a seed sees edges, in the unit
                of times.
            time_bound: With `time`: which time bounds the edges of a neighbour. seed:
                the seed's. path: that of the edge that led to it.
        """
        super().__init__(
            fanouts, replace=replace, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads
        )
        self.fill = switch("sampler.options.fill", fill)
        self.by_time(time, pick, window, time_bound)
        if replace and fill:
            raise UserError("sampler.options.fill=true cannot be combined with sampler.replace=true: use one of them")

    def native(self) -> _core.Sampler:
        if self.fill:
            return _core.Sampler.equal(self.fanouts.default, self.redraw, self.importance)
        law = _core.Sampler.weighted if self.pick == "weighted" else _core.Sampler.neighbor
        return law(self.fanouts.default, self.replace, self.redraw, self.importance)

    def costs(self, graph: CSC | RelationGroups, seeds: Ids) -> Floats:  # [num_seeds]
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace or self.fill)


class FullSampler(NativeSampler):
    """Samples every in-edge of every node within `num_hops` of the seeds.

    The outputs of the seeds are exact, but a batch grows with the degrees to the power
    of the number of hops, up to the complete graph. Use it for evaluation, prediction
    and small graphs.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import FullSampler
        >>> csc = CSC.from_edges([1, 2, 3, 0], [0, 0, 1, 3], 4)
        >>> FullSampler(2).sample(csc, numpy.array([0]), key=1).input_nodes.tolist()
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        num_hops: int = 2,
        *,
        edge_ids: bool = True,
        threads: int | None = None,
        time: str = "none",
        window: int | None = None,
        time_bound: str = "seed",
    ) -> None:
        """Takes `edge_ids` and `threads` like `NativeSampler`.

        Args:
            num_hops: Number of model layers, 1 to 1000.
            edge_ids: Whether blocks contain edge positions in the CSC.
            threads: Threads per batch. Default: all available cores.
            time: As for `NeighborSampler`.
            window: As for `NeighborSampler`.
            time_bound: As for `NeighborSampler`.
        """
        num_hops = whole("sampler.num_hops", num_hops, 1, MAX_HOPS)
        super().__init__(Fanouts.all(num_hops), edge_ids=edge_ids, threads=threads)
        self.by_time(time, window=window, time_bound=time_bound)

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts.default, False, False, None)


class LaborSampler(NativeSampler):
    """Samples few distinct nodes: LABOR-0 (Balin and Catalyurek, NeurIPS 2023).

    Each source has one random number per hop. An edge into a node of degree d is kept
    if this number is below fanout / d. Nodes thus share sources, and draw the fanout
    only in expectation. The variance is the same as with uniform draws. If nodes draw
    by relation, d is the degree within the relation, and relations share the numbers.

    Choose it over `NeighborSampler` if batches are large and loading features is the
    bottleneck, because it reads fewer rows for the same variance.
    """

    draws_by_hop = True

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`.

        Args:
            fanouts: [num_hops] expected draws per node, from the seeds outward. -1
                takes all neighbours, 0 none.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.labor(self.fanouts.default, self.redraw, self.importance)


class BalancedSampler(NativeSampler):
    """Samples hops with a fixed number of edges, for any degree distribution.

    The n nodes that draw in a hop share a budget of n times the fanout. Low-degree
    nodes leave part of their share to the others: node v of degree d_v draws min(d_v,
    level) times, and the remainder goes, one each, to the first nodes with more
    neighbours. Each node draws uniformly without replacement, and its number of draws
    depends on the hop's other nodes. If nodes draw by relation, the nodes of a hop with
    in-edges of a relation share that relation's budget.
    """

    by_node = False

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`.

        Args:
            fanouts: [num_hops] mean number of draws per node, from the seeds outward.
                -1 takes all neighbours.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.balanced(self.fanouts.default, self.redraw, self.importance)
