"""Assigns a run's nodes and edges to ranks, and describes the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gnnkit.config.settings import PartitionSettings, Settings
from gnnkit.dataset.base import ONE_WAY, both_ways
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.border import improve_border
from gnnkit.partition.columns import fewest_words, in_columns
from gnnkit.partition.grid import Grid, make_grid, remark, unequal_columns
from gnnkit.partition.quality import Quality
from gnnkit.utils.documents import Json


class Cutter:
    """Partitions a graph in several ways, and reuses node assignments across grids."""

    def __init__(self, graph: Graph, workers: int) -> None:
        """Stores the graph.

        Args:
            graph: The full graph.
        """
        self.graph, self.workers = graph, workers
        self._owners: dict[str, Ids] = {}  # by partitioner with arguments, if independent of the grid

    def cut(self, section: PartitionSettings) -> Partition:
        """Returns the partition that the configuration describes."""
        grid = make_grid(section.grid, self.workers, section.replication)
        partition = improve_border(self.graph, self._assigned(section, grid), section.border)
        numbers = unequal_columns(section.grid, self.workers, section.replication)
        if not numbers or partition.edge_cell is not None:
            return partition
        if section.replication is not None:
            return in_columns(self.graph, partition, section.replication)
        return fewest_words(self.graph, partition, numbers)

    def _assigned(self, section: PartitionSettings, grid: Grid) -> Partition:
        name = f"{section.nodes.name} {dict(section.nodes.arguments)}"
        if (owners := self._owners.get(name)) is not None:
            return Partition(owners, None, grid)
        partitioner: Partitioner = section.nodes.create()
        partition = partitioner.assign(self.graph, grid)
        if not partitioner.reads_grid:
            self._owners[name] = partition.node_rank
        return partition


def assign(graph: Graph, section: PartitionSettings, workers: int) -> Partition:
    """Returns the partition that the configuration describes.

    Args:
        graph: The full graph.
        section: The section `partition`.
    """
    return Cutter(graph, workers).cut(section)


@dataclass(frozen=True, slots=True)
class Decision:
    """A run's layout, with the figures of those that the leader compared, if any."""

    nodes: str  # name of the partitioner
    why: str
    layouts: Json  # figures by name, including "chosen"

    @classmethod
    def of(cls, settings: Settings, quality: Quality) -> Self:
        """Describes the layout by the busiest rank's words, or by the leader's reason.

        Args:
            quality: The measured quality of the layout.
        """
        section, leader_choice = settings.partition, settings.decided
        if leader_choice is not None:
            return cls(section.nodes.name, leader_choice["why"], leader_choice["layouts"])
        words = float(quality.words.max())
        figures: Mapping[str, Json] = {
            "chosen": {"grid": shape(quality.partition.grid), "words_per_column": words, "balance": quality.balance()}
        }
        reason = (
            "workers=1: the graph is not divided"
            if settings.workers == 1
            else f"partition.grid={section.grid}: the busiest rank receives {words:,.1f} words per feature column and "
            "aggregation; job=plan compares other layouts"
        )
        return cls(section.nodes.name, reason, dict(figures))


def overrides(partition: PartitionSettings) -> str:
    """Returns the overrides that select a layout."""
    keys = {"border": partition.border, "grid": format_grid(partition.grid)}
    further_keys = [f"partition.{key}={value}" for key, value in keys.items() if value not in ("none", "1d")]
    return " ".join([f"partition={partition.nodes.name}", *further_keys])


def format_grid(grid: str | list[int]) -> str:
    """Formats a grid as on the command line."""
    return str(grid).replace(" ", "")


def describe(graph: Graph, settings: Settings, partition: Partition) -> list[str]:
    """Describes the graph and its partition, in lines for users.

    Args:
        graph: The full graph.
    """
    section = settings.partition
    note = remark(section.grid, partition.grid, partition.columns)
    return [f"{sizes_of(graph)}; {section.nodes.name} nodes on a {partition.layout}", *([note] if note else [])]


def sizes_of(graph: Graph) -> str:
    """Describes a graph's size, features and labels."""
    share = both_ways(graph.csc)
    note = f" ({100 * share:.2g} % have a reverse edge)" if share < ONE_WAY else ""
    return f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges{note}, {graph.features.shape[1]:,} features, {graph.label_summary}"


def shape(grid: Grid) -> list[int]:
    """Returns the grid as a value of `partition.grid`."""
    return [grid.rows, grid.cols, grid.slices]
