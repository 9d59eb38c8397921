"""Small graphs and partitions with every corner.

Empty ranks, isolated nodes, self-loops, parallel edges, vertex-cuts.
"""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition

GRIDS = [Grid(r, c, s) for r in range(1, 9) for c in range(1, 9) for s in range(1, 9) if r * c * s <= 8]


def make_graph(src: npt.ArrayLike, dst: npt.ArrayLike, num_nodes: int, *, rich: bool = False, seed: int = 0) -> Graph:
    """A graph of the given edges; `rich` adds weights, edge features and types."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 4, num_nodes)
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=rng.normal(size=(num_nodes, 3)),
        labels=labels,
        split=np.where(labels < 0, 0, rng.integers(0, 4, num_nodes)).astype(np.int8),
        weight=rng.uniform(0.5, 2, np.size(src)) if rich else None,
        edge_features=rng.normal(size=(np.size(src), 2)) if rich else None,
        edge_types=rng.integers(0, 3, np.size(src)) if rich else None,
        node_types=(("some", num_nodes // 2), ("none", 0), ("rest", num_nodes - num_nodes // 2)) if rich else None,
    )


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    return make_graph(rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges), num_nodes)


def complete_graph(num_nodes: int) -> Graph:
    """Every node reads from every other: all rows are needed."""
    src, dst = np.nonzero(~np.eye(num_nodes, dtype=bool))
    return make_graph(src, dst, num_nodes)


def cliques(count: int, size: int, links: list[tuple[int, int]] | None = None) -> Graph:
    """Complete graphs of `size` nodes, with one edge for each link between two of them.

    Node ids are shuffled. Clique k has the labels k.
    """
    src, dst = np.nonzero(~np.eye(size, dtype=bool))
    first = np.arange(count)[:, None] * size
    ends = size * np.array(links or [], np.int64).reshape(-1, 2)
    sources, targets = np.r_[(first + src).ravel(), ends[:, 0]], np.r_[(first + dst).ravel(), ends[:, 1]]
    ids = np.random.default_rng(1).permutation(count * size)
    labels = np.empty(count * size, np.int64)
    labels[ids] = np.repeat(np.arange(count), size)
    return Graph.from_edges(ids[sources], ids[targets], count * size, labels=labels)


def destinations(graph: Graph) -> np.ndarray:
    return np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    num_nodes = draw(st.integers(0, 14))
    nodes = st.integers(0, max(num_nodes - 1, 0))
    edges = draw(st.lists(st.tuples(nodes, nodes), max_size=40 if num_nodes else 0))
    return (
        make_graph(*zip(*edges, strict=True), num_nodes, rich=draw(st.booleans()))
        if edges
        else make_graph([], [], num_nodes)
    )


@st.composite
def partitions(draw: st.DrawFn, graph: Graph) -> Partition:
    """Any owners, any grid up to 8 ranks, and a vertex-cut every other time."""
    grid = draw(st.sampled_from(GRIDS))

    def values(count: int, bound: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, bound - 1), min_size=count, max_size=count)), np.int32)

    node_rank = values(graph.num_nodes, grid.world_size)
    return Partition(node_rank, values(graph.num_edges, grid.num_cells) if draw(st.booleans()) else None, grid)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, Partition]:
    graph = draw(graphs())
    return graph, draw(partitions(graph))
