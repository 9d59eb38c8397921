"""A partition's quality: cut, words, copies, balance, peers and boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import Graph, Ids, Split
from gnnkit.partition.base import Partition
from gnnkit.partition.traffic import Traffic
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import save_arrays


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """The edges between regions, and the rows required by cells."""

    count: int  # number of edges between two regions
    boundary: npt.NDArray[np.bool_]  # [num_nodes] whether a node has such an edge
    links: npt.NDArray[np.bool_]  # [world_size, world_size] whether two ranks share such an edge, in either direction
    cell_edges: Ids  # [num_cells] int64 edges of each cell
    traffic: Traffic
    copies: int  # number of pairs of a node and a cell that owns it or holds one of its edges

    @classmethod
    def of(cls, graph: Graph, partition: Partition, threads: int = 1) -> Crossing:
        """Reads all edges once.

        Raises `UserError` if graph and partition do not match.

        Args:
            threads: Number of threads that read edges.
        """
        partition.check(graph)
        grid = partition.grid
        owner, held_by = np.ascontiguousarray(partition.node_rank, np.int32), partition.edge_cell
        cells = None if held_by is None else np.ascontiguousarray(held_by, np.int32)
        plane = (grid.rows, grid.cols, grid.slices)
        count, boundary, links, cell_edges, gather_rows, reduce_rows, copies = _core.csc_crossing(
            graph.csc.indptr, graph.csc.indices, owner, plane, cells, threads
        )
        links = links.reshape(grid.world_size, grid.world_size)
        square = (grid.num_cells, grid.num_cells)
        num_owned = np.bincount(owner, minlength=grid.world_size)
        traffic = Traffic(grid, num_owned, gather_rows.reshape(square), reduce_rows.reshape(square))
        return cls(count, boundary, links | links.T, cell_edges, traffic, copies)

    @property
    def neighbours(self) -> list[list[int]]:
        """Each rank's neighbours, the ranks that share edges with it, ascending."""
        return [np.flatnonzero(row).tolist() for row in self.links]


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """Measurements of a partition. A region is the nodes owned by one rank.

    Words are received by a rank in one aggregation, per feature column. With S slices,
    a rank processes 1/S of the columns.
    """

    partition: Partition
    num_edges: int
    traffic: Traffic
    num_held: Ids  # [world_size] int64 held edges, equal within a cell
    num_train: Ids  # [world_size] int64 owned training nodes
    edge_cut: int  # number of edges between two regions
    replication_factor: float  # mean number of cells that own a node or hold one of its edges
    boundary: npt.NDArray[np.bool_]  # [num_nodes] whether a node has an edge to or from another region
    neighbours: list[list[int]]  # [world_size] each rank's neighbours, the ranks that share edges with it

    @property
    def gather_words(self) -> npt.NDArray[np.float64]:  # [world_size] per feature column
        return self._per_column(self.traffic.words(self.partition.grid.slices).gather)

    @property
    def reduce_words(self) -> npt.NDArray[np.float64]:  # [world_size] per feature column
        return self._per_column(self.traffic.words(self.partition.grid.slices).reduce)

    @property
    def slice_words(self) -> npt.NDArray[np.float64]:  # [world_size] per feature column, both directions
        words = self.traffic.words(self.partition.grid.slices)
        return self._per_column(words.slice + words.unslice)

    @property
    def words(self) -> npt.NDArray[np.float64]:  # [world_size] per feature column
        return self.gather_words + self.reduce_words + self.slice_words

    def _per_column(self, words: Ids) -> npt.NDArray[np.float64]:
        return words / self.partition.grid.slices  # at that width, every slice has one column

    def balance(self) -> dict[str, float]:
        """Returns maximum over mean of the ranks' loads.

        1 is balanced, also for loads that are all 0.
        """
        shares = {
            "nodes": self.traffic.num_owned,
            "edges": self.num_held,
            "train_nodes": self.num_train,
            "gather_words": self.gather_words,
            "reduce_words": self.reduce_words,
            "words": self.words,
        }
        return {name: max_over_mean(values) for name, values in shares.items()}

    def to_dict(self) -> Json:
        """Returns all values except arrays over nodes, as JSON values."""
        words = {"gather": self.gather_words, "reduce": self.reduce_words, "slice": self.slice_words, "all": self.words}
        return {
            "grid": asdict(self.partition.grid),
            "columns": list(self.partition.columns),
            "num_nodes": len(self.partition.node_rank),
            "num_edges": self.num_edges,
            "edge_cut": self.edge_cut,
            "replication_factor": self.replication_factor,
            "words_per_column": {name: {"total": float(w.sum()), "max": float(w.max())} for name, w in words.items()},
            "balance": self.balance(),
            "regions": list(self._regions()),
            "peers": [asdict(pair) | {"messages": pair.messages} for pair in self.traffic.peers()],
        }

    def _regions(self) -> Iterator[Json]:
        num_boundary = np.bincount(self.partition.node_rank[self.boundary], minlength=len(self.num_held))
        for rank in range(self.partition.grid.world_size):
            row, col, slice_ = self.partition.position(rank)
            yield {
                "rank": rank,
                "row": row,
                "col": col,
                "slice": slice_,
                "nodes": int(self.traffic.num_owned[rank]),
                "boundary_nodes": int(num_boundary[rank]),
                "edges": int(self.num_held[rank]),
                "train_nodes": int(self.num_train[rank]),
                "gather_words": float(self.gather_words[rank]),
                "reduce_words": float(self.reduce_words[rank]),
                "slice_words": float(self.slice_words[rank]),
            }

    def table(self) -> list[str]:
        """Returns the report as lines of text, one per rank."""
        regions = list(self._regions())
        num_peers = np.bincount([pair.rank for pair in self.traffic.peers()], minlength=len(regions))
        rows = [
            [*(_format_number(value) for value in region.values()), str(num_peers[region["rank"]])]
            for region in regions
        ]
        header = [*(name.replace("_", " ") for name in regions[0]), "peers"]
        words, balance = self.words, self.balance()
        return [
            *_align([header, *rows]),
            f"{self.partition.layout}: cut {self.edge_cut} of {self.num_edges} edges, "
            f"{self.replication_factor:.3f} copies of a node",
            "words per feature column and aggregation: "
            f"total {_format_number(words.sum())}, max {_format_number(words.max())}",
            "max/mean: " + ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in balance.items()),
        ]

    def save(self, folder: Path) -> None:
        """Writes the report as `meta.json`, and arrays to the same folder.

        The arrays are `node_rank.npy` [num_nodes], `edge_cell.npy` [num_edges] for
        vertex-cuts, `boundary.npy` and `boundary_start.npy` [world_size + 1]. Region r
        has the boundary nodes `boundary[boundary_start[r]:boundary_start[r + 1]]`.
        """
        ids = np.flatnonzero(self.boundary)
        ranks = self.partition.node_rank[ids]
        arrays = {
            "node_rank": self.partition.node_rank,
            "edge_cell": self.partition.edge_cell,
            "boundary": ids[np.argsort(ranks, kind="stable")],
            "boundary_start": np.cumsum(np.bincount(ranks + 1, minlength=len(self.num_held) + 1)),
        }
        save_arrays(folder, arrays, self.to_dict())


def measure(graph: Graph, partition: Partition, *, threads: int = 1) -> Quality:
    """Measures a partition, in one pass over the edges.

    Use it to compare partitions before training: words estimate communication, and
    balance estimates waiting.

    Args:
        threads: Number of threads, which does not affect the result.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import Graph
        >>> from gnnkit.partition import Grid, Partition, measure
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
        >>> owners = numpy.array([0, 0, 1, 1], numpy.int32)
        >>> measure(graph, Partition(owners, None, Grid(2, 1, 1))).edge_cut
        2
    """
    crossing, grid = Crossing.of(graph, partition, threads), partition.grid
    train_ranks = partition.node_rank[graph.split == Split.TRAIN]
    return Quality(
        partition,
        graph.num_edges,
        crossing.traffic,
        np.repeat(crossing.cell_edges, grid.slices),
        np.bincount(train_ranks, minlength=grid.world_size),
        crossing.count,
        crossing.copies / max(graph.num_nodes, 1),
        crossing.boundary,
        crossing.neighbours,
    )


def max_over_mean(values: npt.NDArray[np.generic]) -> float:
    """Returns maximum over mean of loads [world_size], 1 if all are 0."""
    mean = values.mean()
    return float(values.max() / mean) if mean else 1.0


def _format_number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
