"""Calls METIS with several weights per node, which pymetis does not support."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pymetis
from pymetis import _internal

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids

_NUM_OPTIONS, _OK = 40, 1  # METIS_NOPTIONS and METIS_OK of metis.h
_FLOAT = np.dtype(np.float32)  # METIS's real_t in all pymetis wheels


def part_graph(
    adjacency: CSC,
    edge_weights: Ids,
    node_weights: Ids,
    bounds: npt.NDArray[np.float64],
    num_parts: int,
    options: pymetis.Options,
) -> Ids:  # [num_nodes] int32
    """Partitions a graph so that the parts share each weight equally.

    This is multi-constraint partitioning (Karypis & Kumar, SC 1998). Raises
    `RuntimeError` if METIS rejects the graph, and `UserError` if pymetis does not
    export METIS.

    Args:
        adjacency: Simple and symmetric, with more nodes than parts.
        edge_weights: [num_edges] at least 1.
        node_weights: [num_nodes, num_weights] at least 0, with positive sums.
        bounds: [num_weights] maximum size of a part, relative to the mean.
        num_parts: Number of parts, at least 2.
        options: METIS's options. `bounds` replaces its `ufactor`.
    """
    library = ctypes.CDLL(_internal.__file__)
    if not hasattr(library, "METIS_PartGraphKway"):
        raise UserError(
            "partition.options.balance=all and classes need a pymetis that exports METIS's functions, as its wheels for "
            "Linux do: install one, or use nodes, edges or train"
        )
    ints = np.dtype(pymetis.zero_copy_dtype())
    parts, cut = np.zeros(adjacency.num_nodes, ints), np.zeros(1, ints)
    arguments: list[npt.NDArray[Any] | None] = [
        np.array([adjacency.num_nodes], ints),
        np.array([node_weights.shape[1]], ints),
        adjacency.indptr.astype(ints),
        adjacency.indices.astype(ints),
        np.ascontiguousarray(node_weights, ints),
        None,  # node sizes for the volume: 1
        edge_weights.astype(ints),
        np.array([num_parts], ints),
        None,  # target shares of the parts: equal
        bounds.astype(_FLOAT),
        np.array([options._get(place) for place in range(_NUM_OPTIONS)], ints),
        cut,
        parts,
    ]
    code = library.METIS_PartGraphKway(
        *(None if array is None else array.ctypes.data_as(ctypes.c_void_p) for array in arguments)
    )
    if code != _OK:
        raise RuntimeError(f"METIS failed with code {code}")
    return parts.astype(np.int32)
