"""The contract of samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids, MiniBatch
from gnnkit.sampler.base import Sampler
from gnnkit.sampler.contract import Hop, check_batch, check_hop
from gnnkit_testing.arguments import check_instance

KEYS = 200  # from `key` on, for statements about many draws


def check_sampler(sampler: Sampler, graph: CSC, seeds: Ids, *, key: int = 7, deterministic: bool = False) -> MiniBatch:
    """Checks one batch of `seeds` and its hops, and returns the batch.

    The first hop is also drawn with 200 keys, on which draws of edges must depend. If
    the sampler is `rank_invariant`, they must not depend on the hop. The importance
    weights of an in-edge must add up to 1 per key on average, or to 1 / in-degree with
    `importance="mean"`, within 6 standard errors. Raises `AssertionError` for the first
    violation.

    Args:
        sampler: The sampler to check.
        graph: A graph with as many sources as destinations.
        seeds: [num_seeds] distinct node ids.
        key: The first key.
        deterministic: Whether draws ignore the key, as for the heaviest edges.

    Examples:
        >>> import numpy
        >>> from gnnkit.sampler import NeighborSampler
        >>> from gnnkit.testing import check_sampler, example_graphs
        >>> graph = example_graphs()[4]  # a hub
        >>> batch = check_sampler(NeighborSampler([5, 5]), graph.csc, numpy.arange(3))
    """
    check_instance(sampler, Sampler)
    name = type(sampler).__name__
    try:
        batch = sampler.sample(graph, seeds, key=key)
        check_batch(f"{name}.sample", batch, graph, seeds, sampler.num_hops)
        for csc, change in ((graph, "the same arguments"), (_widen(graph), "int64 indices")):
            _check_equal(batch.blocks, sampler.sample(csc, seeds, key=key).blocks, f"{change} gave another batch")
        keys = range(key, key + KEYS)
        hops = [check_hop(f"{name}.draw", sampler.draw(graph, seeds, 0, key=key), graph, seeds) for key in keys]
    except UserError as error:
        raise AssertionError(str(error)) from error
    _check_hops(sampler, hops, graph, seeds, key)
    drawn = [hop.edge_ids for hop in hops if hop.edge_ids is not None]  # none for walks, which draw nodes
    if drawn:
        _check_key(drawn, graph.in_edges(seeds)[0], deterministic=deterministic)
    if drawn and not deterministic and hops[0].weight is not None:
        _check_weights(hops, drawn, graph, seeds, mean=getattr(sampler, "importance", None) == "mean")
    return batch


def _check_hops(sampler: Sampler, hops: Sequence[Hop], graph: CSC, seeds: Ids, key: int) -> None:
    """Compares hops, of the keys from `key` on, with hops that must be equal."""
    others = [(0, 0, "the same arguments gave another hop")]
    if sampler.rank_invariant and not sampler.redraw:
        message = "rank_invariant is True, and draws depend on the hop"
        others += [(place, number, message) for number in range(1, sampler.num_hops) for place in range(8)]
    for place, number, message in others:
        _check_equal([hops[place]], [sampler.draw(graph, seeds, number, key=key + place)], message)
    if sampler.by_node:
        _check_by_node(sampler, hops[0], graph, seeds, key)


def _check_key(drawn: Sequence[Ids], in_edges: Ids, *, deterministic: bool) -> None:
    """Checks that draws which leave out edges depend on the key, or do not."""
    is_fixed = all(np.array_equal(edges, drawn[0]) for edges in drawn)
    assert is_fixed or not deterministic, "deterministic=True, and draws depend on the key"
    assert deterministic or not is_fixed or np.isin(in_edges, drawn[0]).all(), (
        f"{len(drawn)} keys gave the same draws; read `key`, or pass deterministic=True"
    )


def _check_weights(hops: Sequence[Hop], drawn: Sequence[Ids], graph: CSC, seeds: Ids, *, mean: bool) -> None:
    """Checks that importance weights keep sums or means over all in-edges unbiased.

    Edges that are drawn seldom are checked in sum, and the others one by one too.
    """
    edges, degrees = graph.in_edges(np.sort(seeds))
    expected = 1 / np.repeat(degrees, degrees) if mean else np.ones(len(edges))
    places = [np.searchsorted(edges, edge_ids) for edge_ids in drawn]
    weights = np.array([np.bincount(at, hop.weight, len(edges)) for at, hop in zip(places, hops, strict=True)])
    often, low = (weights > 0).sum(0) >= 50, expected[weights.any(0)].sum(keepdims=True)
    _check_mean(weights[:, often], expected[often], expected[often], [f"edge {edge}" for edge in edges[often]])
    _check_mean(weights.sum(1, keepdims=True), low, expected.sum(keepdims=True), ["all edges"])


def _check_mean(samples: Floats, low: Floats, high: Floats, subjects: Sequence[str]) -> None:
    """Checks the expectations [n] of samples [num_keys, n] by 6 standard errors."""
    means, errors = samples.mean(0), 6 * samples.std(0) / np.sqrt(len(samples)) + 1e-4 * high
    outside = np.flatnonzero((means < low - errors) | (means > high + errors))
    assert not len(outside), (
        f"weights of {subjects[outside[0]]} add up to {means[outside[0]]:.4g} on average over {len(samples)} keys, "
        f"expected {high[outside[0]]:.4g}; weight is 1 / the expected number of draws"
    )


def _check_by_node(sampler: Sampler, hop: Hop, graph: CSC, seeds: Ids, key: int) -> None:
    """Compares the draws of every other seed with its draws among all seeds."""
    is_alone = np.arange(len(seeds)) % 2 == 1
    alone = sampler.draw(graph, seeds[is_alone], 0, key=key)
    np.testing.assert_array_equal(
        alone.sources,
        hop.sources[np.repeat(is_alone, np.diff(hop.indptr))],
        err_msg="a node's draws depend on the other nodes of the hop; use a generator per node, or set by_node = False",
    )


def _check_equal(first: Sequence[Any], second: Sequence[Any], message: str) -> None:
    """Compares all fields of hops or blocks."""
    for a, b in zip(first, second, strict=True):
        for name in (field.name for field in fields(a)):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=f"{message}: {name}")


def _widen(graph: CSC) -> CSC:
    return CSC(graph.indptr, graph.indices.astype(np.int64), graph.weight, graph.num_sources)
