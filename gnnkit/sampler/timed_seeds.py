"""Seeds of a loader that see the graph as of their own times."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, MiniBatch, RelationGroups
from gnnkit.graph.edge_order import time_order
from gnnkit.graph.times import ALWAYS, Times, has_time, to_unit
from gnnkit.graph.types import take
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.typed_tables import names_a_type
from gnnkit.utils.checks import int64s


class TimedSeeds:
    """Draws a loader's batches by time, as a sampler written in Python."""

    def __init__(self, sampler: NativeSampler, times: Times, graph: Graph) -> None:
        """Stores the sampler, the time of each seed, and the edges by time.

        Args:
            sampler: The loader's sampler.
            times: [num_nodes] time of each node that is a seed.
            graph: The graph.
        """
        self._sampler, self._times = copy.copy(sampler), times
        self._sampler.threads = sampler.threads or 1  # the loader's threads sample one batch each
        csc, (since, self._edge_ids) = graph.csc, time_order(graph)
        order = self._edge_ids
        self._csc = CSC.trusted(csc.indptr, csc.indices[order], take(csc.weight, order), csc.num_sources, since[order])

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        batch = self._sampler.sample(self._csc, seeds, key=key, times=self._times[seeds])
        ids = [None if block.edge_ids is None else self._edge_ids[block.edge_ids] for block in batch.blocks]
        return replace(batch, blocks=[replace(block, edge_ids=of) for block, of in zip(batch.blocks, ids, strict=True)])

    @classmethod
    def of(cls, sampler: Any, graph: Any, seeds: Ids, times: npt.ArrayLike | None) -> TimedSeeds | None:
        """Reads the times of seeds, if the sampler draws by time.

        Raises `UserError` for seeds without a time.

        Args:
            sampler: The loader's sampler.
            graph: The graph.
            seeds: [num_seeds] distinct ids.
            times: [num_seeds] time of each seed. Default: `Graph.node_time`.
        """
        if sampler.time == "none":
            if times is not None:
                raise UserError(
                    f"times: {type(sampler).__name__} reads none: use sampler.time=strict, as in time='strict'"
                )
            return None
        if graph.edge_time is None and graph.node_time is None:
            raise UserError(f"sampler.time={sampler.time}: the graph has no times: pass a Graph with edge_time")
        by_node = np.full(graph.num_nodes, ALWAYS) if graph.node_time is None else graph.node_time
        if times is not None:
            by_node = np.full(graph.num_nodes, ALWAYS)
            by_node[seeds] = int64s("times", to_unit("times", times, graph.time_unit), len(seeds))
        is_missing = ~has_time(by_node[seeds])
        if is_missing.any():
            raise UserError(
                f"sampler.time={sampler.time}: {np.count_nonzero(is_missing):,} of {len(seeds):,} seeds have no time: pass "
                "times=, one for each seed, or a graph with node_time"
            )
        return cls(sampler, by_node, graph)


def check_untyped(graph: Any, seeds: Any, time: str) -> None:
    """Raises `UserError` unless a loader can read the times of a graph and of seeds."""
    if names_a_type(seeds) or isinstance(graph, CSC | RelationGroups):
        given = f"a {type(graph).__name__}" if isinstance(graph, CSC | RelationGroups) else "seeds of a type"
        raise UserError(
            f"sampler.time={time}: a Loader reads the times of a Graph and of its nodes, got {given}: pass a Graph with "
            "edge_time, or for types use gnnkit.pyg.NeighborLoader(time_attr=, input_time=)"
        )
