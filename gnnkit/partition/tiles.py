from __future__ import annotations

from itertools import product

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids
from gnnkit.partition.base import NodePartitioner


class Tiles(NodePartitioner):
    """Tiles in the plane (P = a x b) or boxes in space (a x b x c).

    Choose this partition for graphs with node coordinates. Each axis is cut at equal
    numbers of nodes, and nodes with equal coordinates stay together. On a lattice, a
    tile has at most 4 neighbours that share a side, and a box 6. P is factored to
    minimise the cut area.
    """

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if graph.coordinates is None:
            raise UserError("partition.nodes=tiles needs a graph with coordinates, which this dataset has not")
        counts = _parts_per_axis(np.ptp(graph.coordinates, axis=0) if graph.num_nodes else np.ones(2), num_parts)
        index = np.zeros(graph.num_nodes, np.int64)
        for axis, count in enumerate(counts):
            index = index * count + _cut(graph.coordinates[:, axis], count)
        return index.astype(np.int32)


def _parts_per_axis(extent: Floats, num_parts: int) -> tuple[int, ...]:
    """Factors `num_parts` to minimise the cut area.

    Among equal areas, the most similar factors are chosen.
    """
    longest = float(extent.max())
    extent = np.maximum(extent / longest if longest else extent, 1e-6)  # avoids cuts along an axis without extent
    divisors = [d for d in range(1, num_parts + 1) if num_parts % d == 0]
    choices = [counts for counts in product(divisors, repeat=len(extent)) if np.prod(counts) == num_parts]
    return min(choices, key=lambda counts: (round(_cut_area(counts, extent), 9), sum(counts), counts))


def _cut_area(counts: tuple[int, ...], extent: Floats) -> float:
    """Returns all cuts' area, relative to the volume.

    An axis cut into k parts has k - 1 cuts, each spanning the other axes.
    """
    return float(np.sum((np.array(counts) - 1) / extent))


def _cut(coordinate: Floats, count: int) -> Ids:  # [num_nodes] 0..count-1
    """Cuts one axis at equal node counts.

    Nodes with equal coordinates are placed by their median position.
    """
    _, value, size = np.unique(coordinate, return_inverse=True, return_counts=True)
    end = np.cumsum(size)
    part = (2 * end - size) * count // max(2 * len(coordinate), 1)
    return part[value]
