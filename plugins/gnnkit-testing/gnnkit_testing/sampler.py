"""The contract of samplers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids, MiniBatch
from gnnkit.sampler.base import Sampler
from gnnkit.sampler.contract import Hop, check_batch, check_hop
from gnnkit_testing.arguments import check_instance


def check_sampler(sampler: Sampler, graph: CSC, seeds: Ids, *, key: int = 7) -> MiniBatch:
    """Checks one batch of `seeds` and its hops, and returns the batch.

    Raises `AssertionError` for the first violation.

    Args:
        sampler: The sampler to check.
        graph: A graph with as many sources as destinations.
        seeds: [num_seeds] distinct node ids.

    Examples:
        >>> import numpy
        >>> from gnnkit.sampler import NeighborSampler
        >>> from gnnkit.testing import check_sampler, example_graphs
        >>> graph = example_graphs()[4]  # a hub
        >>> batch = check_sampler(NeighborSampler([5, 5]), graph.csc, numpy.arange(3))
    """
    check_instance(sampler, Sampler)
    name = type(sampler).__name__
    with _broken_promises():
        batch = sampler.sample(graph, seeds, key=key)
        check_batch(f"{name}.sample", batch, graph, seeds, sampler.num_hops)
        _check_equal(batch, sampler.sample(graph, seeds, key=key), "the same arguments gave another batch")
        _check_equal(batch, sampler.sample(_widen(graph), seeds, key=key), "int64 indices gave another batch")
        hop, again = (check_hop(f"{name}.draw", sampler.draw(graph, seeds, 0, key=key), graph, seeds) for _ in range(2))
    for field in ("indptr", "sources"):
        np.testing.assert_array_equal(
            getattr(hop, field), getattr(again, field), err_msg="the same arguments gave another hop"
        )
    if sampler.by_node:
        _check_by_node(sampler, hop, graph, seeds, key)
    return batch


def _check_by_node(sampler: Sampler, hop: Hop, graph: CSC, seeds: Ids, key: int) -> None:
    """Compares the draws of every other seed with its draws among all seeds."""
    is_alone = np.arange(len(seeds)) % 2 == 1
    alone = sampler.draw(graph, seeds[is_alone], 0, key=key)
    np.testing.assert_array_equal(
        alone.sources,
        hop.sources[np.repeat(is_alone, np.diff(hop.indptr))],
        err_msg="a node's draws depend on the other nodes of the hop; use a generator per node, or set by_node = False",
    )


@contextmanager
def _broken_promises() -> Iterator[None]:
    """Converts errors about the contract to `AssertionError`."""
    try:
        yield
    except UserError as error:
        raise AssertionError(str(error)) from error


def _check_equal(first: MiniBatch, second: MiniBatch, message: str) -> None:
    for a, b in zip(first.blocks, second.blocks, strict=True):
        for name in ("indptr", "indices", "src_nodes", "edge_ids", "weight"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=f"{message}: {name}")


def _widen(graph: CSC) -> CSC:
    return CSC(graph.indptr, graph.indices.astype(np.int64), graph.weight, graph.num_sources)
