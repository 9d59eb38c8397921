"""Seeds of a loader that see the graph as of their own times."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, MiniBatch, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS, NEVER, Times, to_unit
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.typed_tables import names_a_type
from gnnkit.utils.checks import int64s


class TimedSeeds:
    """Draws a loader's batches by time, as a sampler written in Python."""

    def __init__(self, sampler: NativeSampler, times: Times) -> None:
        """Stores the sampler, and the time of each node [num_nodes] that is a seed."""
        self._sampler, self._times = copy.copy(sampler), times
        self._sampler.threads = sampler.threads or 1  # the loader's threads sample one batch each

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        return self._sampler.sample(graph, seeds, key=key, times=self._times[seeds])

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
        by_node = np.full(graph.num_nodes, ALWAYS) if graph.node_time is None else graph.node_time
        if times is not None:
            by_node = np.full(graph.num_nodes, ALWAYS)
            by_node[seeds] = int64s("times", to_unit("times", times, graph.time_unit), len(seeds))
        is_missing = np.isin(by_node[seeds], [ALWAYS, NEVER])
        if is_missing.any():
            raise UserError(
                f"sampler.time={sampler.time}: {np.count_nonzero(is_missing):,} of {len(seeds):,} seeds have no time: pass "
                "times=, one for each seed, or a graph with node_time"
            )
        return cls(sampler, by_node)


def check_untyped(graph: Any, seeds: Any, time: str) -> None:
    """Raises `UserError` unless a loader can read the times of a graph and of seeds."""
    if names_a_type(seeds) or isinstance(graph, CSC | RelationGroups):
        given = f"a {type(graph).__name__}" if isinstance(graph, CSC | RelationGroups) else "seeds of a type"
        raise UserError(
            f"sampler.time={time}: a Loader reads the times of a Graph and of its nodes, got {given}: pass a Graph with "
            "edge_time, or for types use gnnkit.pyg.NeighborLoader(time_attr=, input_time=)"
        )


def in_time(graph: Graph, time: str) -> Graph:
    """Returns the graph with the in-edges of each node sorted by time.

    Raises `UserError` for a graph without times.
    """
    if graph.edge_time is None and graph.node_time is None:
        raise UserError(f"sampler.time={time}: the graph has no times: pass a Graph with edge_time")
    graph = in_time_order(graph)
    csc = graph.csc
    return graph.derive(csc=CSC.trusted(csc.indptr, csc.indices, csc.weight, csc.num_sources, graph.edge_time))
