"""Uniform neighbour sampling."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids, RelationGroups
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.batching import tree_sizes
from gnnkit.sampler.fanouts import FanoutsLike
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
        """Takes the arguments of `NativeSampler`, and whether counts are equal.

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
            pick: uniform; weighted, which is `WeightedSampler`; or with `time`: last
                for the latest edges that the seed sees.
            window: With time=window: the age up to which a seed sees edges, in the unit
                of times.
            time_bound: With `time`: seed, or path for neighbours that see the edges
                before (up to) the one that led to them, not those before the seed.
        """
        super().__init__(
            fanouts, replace=replace, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads
        )
        self.fill = switch("sampler.fill", fill)
        self.by_time(time, pick, window, time_bound)
        if replace and fill:
            raise UserError("sampler.fill=true and sampler.replace=true exclude each other: use one of them")

    def native(self) -> _core.Sampler:
        if self.fill:
            return _core.Sampler.equal(self.fanouts.default, self.redraw, self.importance)
        law = _core.Sampler.weighted if self.pick == "weighted" else _core.Sampler.neighbor
        return law(self.fanouts.default, self.replace, self.redraw, self.importance)

    def costs(self, graph: CSC | RelationGroups, seeds: Ids) -> Floats:  # [num_seeds]
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace or self.fill)
