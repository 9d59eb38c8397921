"""Node and edge rows from which a loader gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Graph, Ids, MiniBatch
from gnnkit.sampler.loaded_batch import LoadedBatch
from gnnkit.utils.checks import array


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The rows of all nodes and edges of a graph, edges in CSC order."""

    features: npt.NDArray[Any] | None = None  # [num_nodes, ...] C-contiguous
    labels: npt.NDArray[Any] | None = None  # [num_nodes, ...]
    edge_features: npt.NDArray[Any] | None = None  # [num_edges, ...]
    edge_weight: Floats | None = None  # [num_edges]
    edge_positions: Ids | None = None  # [num_edges] position of each edge in the graph's original edge list

    @classmethod
    def of(cls, graph: Graph | CSC, features: object | None, labels: object | None) -> Tables:
        """Returns the graph's features and labels, unless others are given.

        Raises `UserError` unless a table has a row of fixed size for each node.

        Args:
            graph: The graph. A CSC only has weights.
            features: [num_nodes, ...] replacement of the graph's features, or None.
            labels: [num_nodes, ...] replacement of the graph's labels, or None.
        """
        tables = cls(edge_weight=graph.weight) if isinstance(graph, CSC) else _tables(graph)
        num_nodes = graph.num_sources if isinstance(graph, CSC) else graph.num_nodes
        replacements = {"features": features, "labels": labels}
        return replace(
            tables,
            **{
                name: rows_per_node(name, array(name, rows), num_nodes)
                for name, rows in replacements.items()
                if rows is not None
            },
        )

    def gather(self) -> list[tuple[int | None, str, npt.NDArray[Any]]]:
        """Returns first node, name and rows of each table that batches contain.

        The first node is None for tables of all nodes.
        """
        return [] if self.features is None else [(None, "features", self.features)]

    def load(self, minibatch: MiniBatch, positions: Ids, buffers: Sequence[npt.NDArray[np.uint8]]) -> LoadedBatch:
        """Joins a batch with its gathered rows, one buffer per table of `gathered`."""
        num_rows = len(minibatch.input_nodes)
        x = None if self.features is None else first_rows(buffers[0], self.features, num_rows)
        return LoadedBatch(minibatch, positions, x, self)


def _tables(graph: Graph) -> Tables:
    return Tables(
        np.asarray(graph.whole_features), graph.labels, graph.edge_features, graph.csc.weight, graph.edge_positions
    )


def rows_per_node(name: str, rows: npt.NDArray[Any], num_nodes: int) -> npt.NDArray[Any]:
    """Returns a table that has a row of fixed size for each node.

    Raises `UserError` with `name` for any other.
    """
    if rows.ndim == 0 or len(rows) != num_nodes or rows.dtype.hasobject:
        shape = f"{rows.dtype} of shape {list(rows.shape)}"
        raise UserError(f"{name} must have a row of fixed size for each of {num_nodes} nodes, got {shape}")
    return rows


def first_rows(buffer: npt.NDArray[np.uint8], table: npt.NDArray[Any], num_rows: int) -> npt.NDArray[Any]:
    """Views the first rows of `buffer` as rows of `table`."""
    shape = (num_rows, *table.shape[1:])
    return buffer[: math.prod(shape) * table.itemsize].view(table.dtype).reshape(shape)
