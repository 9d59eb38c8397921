"""Tiles in the plane or boxes in space, also of graphs without coordinates."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import CSC, Floats, Graph, Ids
from gnnkit.graph.types import offsets_of
from gnnkit.partition.base import NodePartitioner, Partition, hash_ids, undirected
from gnnkit.partition.border import min_words
from gnnkit.partition.grid import Grid
from gnnkit.partition.quality import Crossing

_Vectors = npt.NDArray[np.float64]  # [num_nodes, k] or [num_nodes]

_ROUNDS, _DEGREE = 10, 10  # filters, and the degree of their polynomials


def spectral_cells(csc: CSC, shape: tuple[int, ...]) -> Ids:  # [num_nodes] int64
    """Divides a graph over a grid of cells, whose node counts differ by at most one.

    Halves the longest axis recursively. A cut divides the nodes by their values in one
    of the leading eigenvectors of the subgraph's normalised Laplacian, the one that
    leaves the fewest boundary nodes. This is recursive spectral bisection (Pothen,
    Simon, Liou, SIAM J. Matrix Anal. Appl. 1990), after the quadratic placement of Hall
    (Management Science 1970). Degrees are enlarged, which keeps small components and
    isolated nodes out of the leading eigenvectors (Chaudhuri, Chung, Tsiatas, COLT
    2012).

    Args:
        csc: A symmetric graph without self-loops, see `undirected`.
        shape: Number of cells on both axes. Cells are numbered row by row.
    """
    cells = np.zeros(csc.num_nodes, np.int64)
    _divide(csc, np.arange(csc.num_nodes), np.arange(np.prod(shape)).reshape(shape), cells)
    return cells


def _divide(csc: CSC, nodes: Ids, grid: Ids, cells: Ids) -> None:
    """Writes the cells of `nodes`, whose subgraph is `csc`."""
    if grid.size == 1:
        cells[nodes] = grid.item()
        return
    grid = grid if grid.shape[0] >= grid.shape[1] else grid.T
    middle = len(grid) // 2
    first = _bisect(csc, csc.num_nodes * middle // len(grid))
    for side, part in ((first, grid[:middle]), (~first, grid[middle:])):
        _divide(_subgraph(csc, side), nodes[side], part, cells)


def _subgraph(csc: CSC, mask: npt.NDArray[np.bool_]) -> CSC:
    """Returns the edges between the selected nodes, renumbered."""
    dst = _destinations(csc)
    inside = mask[dst] & mask[csc.indices]
    new_ids = np.cumsum(mask) - 1
    counts = np.bincount(dst[inside], minlength=csc.num_nodes)[mask]
    return CSC(offsets_of(counts), new_ids[csc.indices[inside]])


def _destinations(csc: CSC) -> Ids:  # [num_edges]
    return np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))


def _bisect(csc: CSC, size: int) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Selects `size` nodes at one end of an eigenvector, with few boundary nodes."""
    dst = _destinations(csc)
    best = np.arange(csc.num_nodes) < size
    if not csc.num_edges:
        return best
    fewest = csc.num_nodes + 1
    for values in _leading_eigenvectors(csc).T:
        order = np.argsort(values, kind="stable")
        for end in (order[:size], order[csc.num_nodes - size :]):
            side = np.zeros(csc.num_nodes, bool)
            side[end] = True
            boundary = np.zeros(csc.num_nodes, bool)
            boundary[dst[side[dst] != side[csc.indices]]] = True
            if (count := int(np.count_nonzero(boundary))) < fewest:
                best, fewest = side, count
    return best


def _leading_eigenvectors(csc: CSC) -> _Vectors:
    """Approximates the smoothest functions on the graph.

    These are eigenvectors of the regularised normalised Laplacian, by subspace
    iteration with Chebyshev filters (Zhou, Saad, Tiago, Chelikowsky, J. Comput. Phys.
    2006). Products are summed in one order, which BLAS does not promise. Values are
    rounded, so that small differences between machines do not change the order of
    nodes.
    """
    aggregator = _core.Aggregator(csc.indptr, csc.indices, csc.num_nodes)
    # A share of the mean degree is added to every degree.
    scale = 1 / np.sqrt(np.diff(csc.indptr) + 0.03 * csc.num_edges / csc.num_nodes)

    def multiply(x: _Vectors) -> _Vectors:
        result = np.empty_like(x)
        aggregator.sum(x, result, source=scale, destination=scale)
        return result

    hashes = [hash_ids(csc.num_nodes, key=key) for key in range(8)]
    x = np.stack(hashes, axis=1) / 2.0**64 - 0.5
    cutoff = 0.0
    for _ in range(_ROUNDS):
        x = _independent(_apply_filter(multiply, x, cutoff))
        values, rotation = np.linalg.eigh(np.einsum("ni,nj->ij", x, multiply(x)))
        x = np.einsum("ni,ij->nj", x, rotation[:, ::-1])
        cutoff = float(values.min(initial=1.0))
    leading: _Vectors = np.round(x * scale[:, None] * np.sqrt(csc.num_edges), 6)
    return leading


def _apply_filter(multiply: Callable[[_Vectors], _Vectors], x: _Vectors, cutoff: float) -> _Vectors:
    """Applies the Chebyshev polynomial that is small from -1 to `cutoff`."""
    centre, radius = (cutoff - 1) / 2, (cutoff + 1) / 2
    before, x = x, (multiply(x) - centre * x) / radius
    for _ in range(_DEGREE - 1):
        before, x = x, (multiply(x) - centre * x) * (2 / radius) - before
    return x


def _independent(x: _Vectors) -> _Vectors:
    """Returns an orthonormal basis of the columns, without dependent ones."""
    squares, directions = np.linalg.eigh(np.einsum("ni,nj->ij", x, x))
    # Shorter vectors depend on the others.
    long = squares > 1e-10 * squares.max(initial=0)
    basis: _Vectors = np.einsum("ni,ij->nj", x, directions[:, long] / np.sqrt(squares[long]))
    return basis


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
