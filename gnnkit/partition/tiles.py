from __future__ import annotations

from itertools import product

import numpy as np

from gnnkit.graph import Floats, Graph, Ids
from gnnkit.partition.base import NodePartitioner, Partition
from gnnkit.partition.border import min_words
from gnnkit.partition.grid import Grid
from gnnkit.partition.neighbours import Crossing
from gnnkit.partition.spectral import spectral_cells
from gnnkit.partition.undirected import undirected


class Tiles(NodePartitioner):
    """Tiles in the plane (P = a x b) or boxes in space (a x b x c).

    Choose this partition for graphs with node coordinates. Each axis is cut at equal
    numbers of nodes, and nodes with equal coordinates stay together. On a lattice, a
    tile has at most 4 neighbours that share a side, and a box 6. P is factored to
    minimise the cut area.

    Other graphs are divided over an a x b grid by `spectral_cells`. Boundary nodes then
    move between tiles where this reduces the words (`min_words`), and tiles are placed
    so that those that share many rows are next to each other. Edges between tiles that
    are not adjacent remain, and their rows are exchanged directly.
    """

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if graph.coordinates is None:
            return _tiles_of_edges(graph, num_parts)
        counts = _parts_per_axis(np.ptp(graph.coordinates, axis=0) if graph.num_nodes else np.ones(2), num_parts)
        index = np.zeros(graph.num_nodes, np.int64)
        for axis, count in enumerate(counts):
            index = index * count + _cut(graph.coordinates[:, axis], count)
        return index.astype(np.int32)


def _tiles_of_edges(graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
    """Returns the tiles of a graph without coordinates."""
    shape = _parts_per_axis(np.ones(2), num_parts)
    owners = spectral_cells(undirected(graph.csc)[0], shape).astype(np.int32)
    partition = min_words(graph, Partition(owners, None, Grid(num_parts, 1, 1)))
    rows = Crossing.of(graph, partition).traffic.gather_rows
    return _places(rows + rows.T, shape)[partition.node_rank]


def _places(rows: Ids, shape: tuple[int, ...]) -> Ids:  # [num_parts] int32
    """Places parts on a grid so that rows travel short distances.

    Swaps the two parts that reduce rows times distance most, until none do. This is a
    local search for the quadratic assignment problem.

    Args:
        rows: [num_parts, num_parts] rows exchanged by each pair, symmetric.
        shape: The grid.
    """
    position = np.indices(shape).reshape(len(shape), -1).T
    distance = np.abs(position[:, None] - position).sum(axis=2).astype(np.float64)
    places = np.arange(len(rows), dtype=np.int32)
    while True:
        apart = distance[np.ix_(places, places)]
        costs = rows.astype(np.float64) @ apart  # [i, j]: of part i at the place of part j. Exact, as all are integers
        current = np.diag(costs)
        gain = current[:, None] + current - costs - costs.T - 2 * rows * apart
        pair = list(np.unravel_index(gain.argmax(), gain.shape))
        if gain[tuple(pair)] <= 0:
            return places
        places[pair] = places[pair[::-1]]


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
