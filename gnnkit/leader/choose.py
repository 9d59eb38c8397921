"""Chooses the partition of a run, and compares the other layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.border import improve_border
from gnnkit.partition.columns import fewest_words, in_columns
from gnnkit.partition.grid import Grid, make_grid, remark, unequal_columns
from gnnkit.partition.quality import Quality, measure
from gnnkit.settings import PartitionSettings, Settings

COMPARED_EDGES = 20_000_000  # up to so many edges a run compares layouts, in some seconds


def assign(graph: Graph, chosen: PartitionSettings, workers: int) -> Partition:
    """Makes the partition that the configuration names.

    Args:
        graph: The whole graph.
        chosen: The settings of `partition`.
        workers: Number of ranks.
    """
    grid = make_grid(chosen.grid, workers, chosen.replication)
    partition: Partition = chosen.nodes.create().assign(graph, grid)
    partition = improve_border(graph, partition, chosen.border)
    numbers = unequal_columns(chosen.grid, workers, chosen.replication)
    if not numbers or partition.edge_cell is not None:
        return partition
    if chosen.replication is not None:
        return in_columns(graph, partition, chosen.replication)
    return fewest_words(graph, partition, numbers)


@dataclass(frozen=True, slots=True)
class Decision:
    """The layout of a run beside the others."""

    nodes: str  # the partitioner
    why: str
    layouts: dict[str, Any]  # figures by name, the chosen one under "chosen"

    @classmethod
    def of(cls, settings: Settings, graph: Graph, quality: Quality) -> Decision:
        """Compares the chosen layout with the others by the words of the busiest rank.

        Args:
            settings: The configuration.
            graph: The whole graph.
            quality: The measured quality of the chosen layout.
        """
        chosen = settings.partition
        layouts = {"chosen": _figures(quality)}
        if graph.num_edges <= COMPARED_EDGES:
            layouts |= {name: _figures(other) for name, other in alternatives(settings, graph, quality)}
        words = {name: figures["words_per_column"] for name, figures in layouts.items()}
        others = ", ".join(f"{name} {number:,.1f}" for name, number in words.items() if name != "chosen")
        best = min(words, key=words.__getitem__)
        verdict = "no other layout has fewer" if words[best] == words["chosen"] else f"partition.grid={best} has fewest"
        why = (
            f"partition.grid={chosen.grid}: the busiest rank receives {words['chosen']:,.1f} words per feature "
            "column and aggregation; "
            + (f"{verdict} ({others})" if others else "job=plan compares it with other layouts")
        )
        return cls(chosen.nodes.name, why, layouts)


def alternatives(settings: Settings, graph: Graph, chosen: Quality) -> Iterator[tuple[str, Quality]]:
    """Measures every other named grid that fits the workers and this node assignment.

    Grids that coincide are measured once. Names are values of `partition.grid`.

    Args:
        settings: The configuration.
        graph: The whole graph.
        chosen: The measured quality of the chosen layout.
    """
    workers, own = settings.workers, settings.partition
    measured = {_shapes(own.grid, workers, own.replication): chosen}
    for spec in ("1d", "1.5d", "2d", "3d", [1, 1, workers]):
        replication = own.replication if spec == "1.5d" else None
        choice = replace(own, grid=spec, replication=replication)
        try:
            shapes = _shapes(spec, workers, replication)
            if shapes not in measured:
                measured[shapes] = measure(graph, assign(graph, choice, workers))
        except UserError:  # this assignment of nodes or edges does not go with that grid
            continue
        yield str(spec).replace(" ", ""), measured[shapes]


def _shapes(spec: str | Sequence[int], workers: int, replication: int | None) -> tuple[Grid, tuple[int, ...]]:
    """Returns the grid and the unequal columns that `partition.grid` may mean."""
    return make_grid(spec, workers, replication), unequal_columns(spec, workers, replication)


def describe(graph: Graph, settings: Settings, partition: Partition) -> list[str]:
    """Describes the graph and the cut, in lines for people.

    Args:
        graph: The whole graph.
        settings: The configuration.
        partition: The partition of the graph.
    """
    chosen = settings.partition
    note = remark(chosen.grid, partition.grid, partition.columns)
    return [
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.features.shape[1]:,} features, "
        f"{labels_of(graph)}; {chosen.nodes.name} nodes on a {partition.grid} grid",
        *([note] if note else []),
    ]


def labels_of(graph: Graph) -> str:
    """Says how many classes, or numbers of each node, the labels have."""
    return f"{graph.num_classes} {'numbers to predict' if graph.labels.dtype.kind == 'f' else 'classes'}"


def shape(grid: Grid) -> list[int]:
    """Returns the grid as a value of `partition.grid`."""
    return [grid.rows, grid.cols, grid.slices]


def _figures(quality: Quality) -> dict[str, Any]:
    return {
        "grid": shape(quality.partition.grid),
        "words_per_column": float(quality.words.max()),
        "balance": quality.balance(),
    }
