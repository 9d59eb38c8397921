"""A partition stored by `job=partition`."""

from __future__ import annotations

from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid
from gnnkit.utils.storage import load_arrays


class Stored(Partitioner):
    """Reads the partition from a `job=partition` run's folder.

    Choose this partition if cutting takes long, or if runs must share one cut.
    """

    reads_edges = False

    def __init__(self, path: str) -> None:
        """Stores the path.

        Args:
            path: A run folder, or its subfolder `partition`.
        """
        if not path or not Path(path).is_dir():
            raise UserError(f"partition.path={path} must be a folder")
        self.path = path

    def assign(self, graph: Graph, grid: Grid) -> Partition:
        folder = Path(self.path)
        arrays, meta = load_arrays(folder / "partition" if (folder / "partition").is_dir() else folder)
        if "node_rank" not in arrays or not isinstance(meta.get("grid"), dict):
            raise UserError(f"partition.path={self.path} holds no partition: job=partition stores one")
        stored_grid = Grid(**meta["grid"])
        if stored_grid != grid:
            keys = f"partition.grid=[{stored_grid.rows},{stored_grid.cols},{stored_grid.slices}] workers={stored_grid.world_size}"
            raise UserError(f"partition.path={self.path} was cut for a {stored_grid} grid, got {grid}: choose {keys}")
        if len(arrays["node_rank"]) != graph.num_nodes:
            raise UserError(
                f"partition.path={self.path} assigns {len(arrays['node_rank'])} nodes, the graph has {graph.num_nodes}"
            )
        return Partition(arrays["node_rank"], arrays.get("edge_cell"), grid, tuple(meta.get("columns", ())))
