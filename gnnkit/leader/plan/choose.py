"""Selects a run's partition, and compares it with other layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from gnnkit.config.settings import Choice, PartitionSettings, Settings
from gnnkit.dataset.base import ONE_WAY, both_ways
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.launch.progress import progress
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.border import improve_border
from gnnkit.partition.columns import fewest_words, in_columns
from gnnkit.partition.grid import Grid, make_grid, remark, unequal_columns
from gnnkit.partition.quality import Quality, measure
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import num_cores

if TYPE_CHECKING:
    from gnnkit.leader.plan.layout import LayoutFigures

COMPARED_EDGES = 20_000_000  # largest graph for which a run compares layouts, which takes a few seconds
PARTITIONING_BUDGET = 2.0  # seconds for all partitioners, by their `auto_seconds`
MEASURING_BUDGET = 1.5  # seconds for measuring further borders and grids
LAYOUT_SECONDS, BORDER_SECONDS = 0.01, 0.07  # rough estimates per million edges, for measuring each of them
MAX_TRIALS = 6  # maximum number of candidates in trials
LOAD_TOLERANCE = 0.02  # differences in load below 2 % are within trial noise
TIE_TOLERANCE = 0.08  # trials of equal layouts differ by up to 8 % in seconds
TRIED_MEMORY_SHARE = 0.9  # share of the memory that a layout may fill in a trial
UNTRIED_MEMORY_SHARE = 0.5  # share for counted tensors, as operations need as much again. Larger ones are not tried
CHOSEN = "chosen"  # key of the configured layout in tables of layouts

_PLANES = ("1d", "1.5d", "2d", "3d")
_BORDERS = ("none", "min_words", "cover", "min_words+cover")
MAX_WORK_RATIO = 1.25  # skip further grids of partitioners with this multiple of the least work on 1d
ROW_WORK = 30  # approximate work per row, in units of an aggregated edge
_WORD_WORK = 15  # approximate work per exchanged word, in units of an aggregated edge


_Load = tuple[float, float, float]  # words, edges and rows of the busiest ranks


class Cutter:
    """Partitions a graph in several ways, and reuses node assignments across grids."""

    def __init__(self, graph: Graph, workers: int) -> None:
        """Stores the graph.

        Args:
            graph: The full graph.
        """
        self.graph, self.workers = graph, workers
        self._owners: dict[str, Ids] = {}  # by partitioner with arguments, if independent of the grid

    def cut(self, chosen: PartitionSettings) -> Partition:
        """Returns the partition that the configuration describes."""
        grid = make_grid(chosen.grid, self.workers, chosen.replication)
        partition = improve_border(self.graph, self._assigned(chosen, grid), chosen.border)
        numbers = unequal_columns(chosen.grid, self.workers, chosen.replication)
        if not numbers or partition.edge_cell is not None:
            return partition
        if chosen.replication is not None:
            return in_columns(self.graph, partition, chosen.replication)
        return fewest_words(self.graph, partition, numbers)

    def reuse(self, chosen: PartitionSettings, partition: Partition) -> None:
        """Reuses the node assignment of an existing partition."""
        if chosen.border in (None, "none") and not chosen.nodes.create().reads_grid:
            self._owners[_partitioner_key(chosen)] = partition.node_rank

    def _assigned(self, chosen: PartitionSettings, grid: Grid) -> Partition:
        name = _partitioner_key(chosen)
        if (owners := self._owners.get(name)) is not None:
            return Partition(owners, None, grid)
        partitioner: Partitioner = chosen.nodes.create()
        partition = partitioner.assign(self.graph, grid)
        if not partitioner.reads_grid:
            self._owners[name] = partition.node_rank
        return partition


def _partitioner_key(chosen: PartitionSettings) -> str:
    return f"{chosen.nodes.name} {dict(chosen.nodes.arguments)}"


def assign(graph: Graph, chosen: PartitionSettings, workers: int) -> Partition:
    """Returns the partition that the configuration describes.

    Args:
        graph: The full graph.
        chosen: The section `partition`.
    """
    return Cutter(graph, workers).cut(chosen)


class LayoutSummary(TypedDict):
    """A layout's figures in `coordination.json`."""

    grid: list[int]
    words_per_column: float  # words that the busiest rank receives per feature column
    balance: Mapping[str, float]  # as `Quality.balance`


@dataclass(frozen=True, slots=True)
class Decision:
    """A run's layout, compared with others."""

    nodes: str  # name of the partitioner
    why: str
    layouts: Json  # figures by name, including "chosen"

    @classmethod
    def of(cls, settings: Settings, graph: Graph, quality: Quality, *, compares: bool = True) -> Decision:
        """Compares the chosen layout with others by the words of the busiest rank.

        Args:
            graph: The full graph.
            quality: The measured quality of the chosen layout.
            compares: Whether to measure others, if the graph has at most
                `COMPARED_EDGES`. Default: True.
        """
        chosen = settings.partition
        if settings.decided is not None:
            return cls(chosen.nodes.name, settings.decided["why"], settings.decided["layouts"])
        layouts: dict[str, LayoutSummary] = {"chosen": _figures(quality)}
        if settings.workers == 1:
            return cls(chosen.nodes.name, "workers=1: the graph is not divided", {**layouts})
        if compares and graph.num_edges <= COMPARED_EDGES:
            cutter = Cutter(graph, settings.workers)
            cutter.reuse(chosen, quality.partition)
            layouts |= {name: _figures(other) for name, other in alternatives(settings, cutter, quality)}
        words = {name: figures["words_per_column"] for name, figures in layouts.items()}
        others = ", ".join(f"{name} {number:,.1f}" for name, number in words.items() if name != "chosen")
        best = min(words, key=words.__getitem__)
        verdict = "no other layout has fewer" if words[best] == words["chosen"] else f"partition.grid={best} has fewest"
        why = (
            f"partition.grid={chosen.grid}: the busiest rank receives {words['chosen']:,.1f} words per feature "
            "column and aggregation; "
            + (f"{verdict} ({others})" if others else "job=plan compares it with other layouts")
        )
        return cls(chosen.nodes.name, why, {**layouts})


def alternatives(settings: Settings, cutter: Cutter, chosen: Quality) -> Iterator[tuple[str, Quality]]:
    """Measures all other named grids that fit the workers and the node assignment.

    Grids that coincide are measured once. Names are values of `partition.grid`.

    Args:
        cutter: The full graph's cutter.
        chosen: The measured quality of the chosen layout.
    """
    workers, configured = settings.workers, settings.partition
    measured = {_shapes(configured.grid, workers, configured.replication): chosen}
    for spec in ("1d", "1.5d", "2d", "3d", [1, 1, workers]):
        replication = configured.replication if spec == "1.5d" else None
        choice = replace(configured, grid=spec, replication=replication)
        try:
            shapes = _shapes(spec, workers, replication)
            if shapes not in measured:
                measured[shapes] = measure(cutter.graph, cutter.cut(choice), threads=num_cores())
        except UserError:  # the grid does not support this assignment of nodes or edges
            continue
        yield format_grid(spec), measured[shapes]


def candidates(workers: int, names: Sequence[str], *, grids: bool) -> dict[str, PartitionSettings]:
    """Returns the layouts that `partition=auto` compares by name, simplest first.

    Args:
        names: Partitioner names, fastest first.
        grids: Whether the strategy supports grids other than 1d.
    """
    nodes = {name: Choice("partition", name, {}) for name in names}
    layouts = {name: PartitionSettings(choice, "1d", None, "none") for name, choice in nodes.items()}
    if workers == 1:
        return {name: layout for name, layout in layouts.items() if name == names[0]}
    borders = _BORDERS[1:] if grids else _BORDERS[1:2]
    layouts |= {f"{name} {border}": replace(layouts[name], border=border) for border in borders for name in names}
    if grids:
        seen = {_shapes("1d", workers, None)}
        for spec in (*_PLANES[1:], [1, 1, workers]):
            shapes = _shapes(spec, workers, None)
            if shapes in seen:
                continue
            seen.add(shapes)
            on_grid = names if shapes[0].num_cells > 1 else names[:1]  # a single cell makes all alike
            layouts |= {f"{name} {format_grid(spec)}": replace(layouts[name], grid=spec) for name in on_grid}
    return layouts


def measure_candidates(
    settings: Settings, graph: Graph, named: Mapping[str, PartitionSettings], most: int = MAX_TRIALS
) -> Iterator[tuple[str, Quality]]:
    """Measures candidates, and yields those that may be optimal.

    Skips `slow_partitioners`. The others are first measured on 1d. Further borders and
    grids follow in order of the partitioner's work on 1d, within `MEASURING_BUDGET`
    seconds and unless that work exceeds `MAX_WORK_RATIO` times the least. A candidate
    is dropped if another one on the same grid has no larger load, up to
    `LOAD_TOLERANCE`. The candidates with least work remain, and none with more than
    `MAX_WORK_RATIO` times the least.

    Args:
        named: The candidates, simplest first.
        most: Maximum number of candidates.
    """
    slow = slow_partitioners(named, graph.num_edges)
    named = {name: choice for name, choice in named.items() if choice.nodes.name not in slow}
    measured = _Measurements(Cutter(graph, settings.workers))
    first: dict[str, str] = {}  # first candidate of each partitioner
    for name, choice in named.items():
        if first.setdefault(choice.nodes.name, name) == name:
            measured.add(name, choice)
    others = [name for name in named if name not in first.values()]
    left = MEASURING_BUDGET
    for name in sorted(others, key=lambda name: measured.work_on_1d(named[name])):
        choice = named[name]
        seconds = _measuring_seconds(choice, graph.num_edges)
        if seconds <= left and measured.may_be_optimal(choice):
            left -= seconds
            measured.add(name, choice)
    works = {name: work_of(quality) for name, (quality, _) in measured.by_name.items()}
    selected = sorted(works, key=works.__getitem__)[:most]
    for name in named:
        if name in selected and works[name] <= MAX_WORK_RATIO * min(works.values()):
            yield name, measured.by_name[name][0]


class _Measurements:
    """Measured candidates, without those that another one dominates."""

    def __init__(self, cutter: Cutter) -> None:
        self._cutter = cutter
        self.by_name: dict[str, tuple[Quality, _Load]] = {}
        self._on_1d: dict[str, float] = {}  # work of each partitioner's first candidate, on 1d

    def add(self, name: str, choice: PartitionSettings) -> None:
        progress(f"a look at {overrides(choice)}")
        with suppress(UserError):  # the grid does not support this node assignment
            quality = measure(self._cutter.graph, self._cutter.cut(choice), threads=num_cores())
            load = _load(quality)
            self._on_1d.setdefault(choice.nodes.name, work_of(quality))
            if not any(_dominates(other, quality, lower, load) for other, lower in self.by_name.values()):
                self.by_name[name] = quality, load

    def work_on_1d(self, choice: PartitionSettings) -> float:
        """Returns the work of the candidate's partitioner on 1d, if measured."""
        return self._on_1d.get(choice.nodes.name, math.inf)

    def may_be_optimal(self, choice: PartitionSettings) -> bool:
        """Checks the partitioner's work on 1d, which no single cell depends on."""
        if make_grid(choice.grid, self._cutter.workers, choice.replication).num_cells == 1:
            return True
        return self.work_on_1d(choice) <= MAX_WORK_RATIO * min(self._on_1d.values(), default=math.inf)


def slow_partitioners(named: Mapping[str, PartitionSettings], num_edges: int) -> list[str]:
    """Lists the partitioners that `partition=auto` skips for a large graph.

    The first one is always used. The next ones are used as long as their seconds add up
    to at most `PARTITIONING_BUDGET`.

    Args:
        named: The candidates, those of the fastest partitioner first.
        num_edges: Number of edges in the graph.
    """
    seconds = {layout.nodes.name: layout.nodes.load().auto_seconds or 0.0 for layout in named.values()}
    left, slow = PARTITIONING_BUDGET, list[str]()
    for name, of_a_million in list(seconds.items())[1:]:
        left -= of_a_million * num_edges / 1e6
        if left < 0:
            slow.append(name)
    return slow


def _measuring_seconds(choice: PartitionSettings, num_edges: int) -> float:
    """Estimates the seconds for measuring a candidate, given the node owners."""
    borders = 0 if choice.border in (None, "none") else len(choice.border.split("+"))
    return (LAYOUT_SECONDS + BORDER_SECONDS * borders) * num_edges / 1e6


def _load(quality: Quality) -> _Load:
    return float(quality.words.max()), float(quality.num_held.max()), float(quality.traffic.num_owned.max())


def work_of(quality: Quality) -> float:
    """Returns the busiest ranks' approximate work, in units of an aggregated edge."""
    words, edges, rows = _load(quality)
    return _WORD_WORK * words + edges / quality.partition.grid.slices + ROW_WORK * rows


def _dominates(other: Quality, quality: Quality, lower: tuple[float, ...], load: tuple[float, ...]) -> bool:
    """Returns whether `other` has the same grid and no noticeably larger load."""
    same = other.partition.grid == quality.partition.grid
    return same and all(a <= b * (1 + LOAD_TOLERANCE) for a, b in zip(lower, load, strict=True))


def select_layout(layouts: Mapping[str, LayoutFigures], memory: float) -> str | None:
    """Returns the name of the best layout, or None if none fits the memory.

    The fastest layout in trials wins. Ties are broken by the counted work, which is
    exact, then by the order. Without trials, the words of the busiest rank and the
    counted memory decide.

    Args:
        layouts: The layouts by name.
        memory: Bytes available to the ranks of a host.
    """
    tried = {name: layout for name, layout in layouts.items() if layout.timing is not None}
    fitting = {name: one for name, one in (tried or layouts).items() if one.host_memory <= share_of(one) * memory}
    seconds = {name: layout.seconds for name, layout in fitting.items() if layout.seconds is not None}
    if seconds:
        bound = min(seconds.values()) * (1 + TIE_TOLERANCE)
        return min((name for name in seconds if seconds[name] <= bound), key=lambda name: layouts[name].work)
    return min(fitting, key=lambda name: (fitting[name].words["max"], fitting[name].counted_memory), default=None)


def share_of(layout: LayoutFigures) -> float:
    """Returns the share of the memory that a layout's figures may fill."""
    return UNTRIED_MEMORY_SHARE if layout.timing is None else TRIED_MEMORY_SHARE


def overrides(partition: PartitionSettings) -> str:
    """Returns the overrides that select a candidate."""
    keys = {"border": partition.border, "grid": format_grid(partition.grid)}
    rest = [f"partition.{key}={value}" for key, value in keys.items() if value not in ("none", "1d")]
    return " ".join([f"partition={partition.nodes.name}", *rest])


def format_grid(grid: str | list[int]) -> str:
    """Formats a grid as on the command line."""
    return str(grid).replace(" ", "")


def _shapes(spec: str | Sequence[int], workers: int, replication: int | None) -> tuple[Grid, tuple[int, ...]]:
    """Returns the grid and the unequal columns that `partition.grid` allows."""
    return make_grid(spec, workers, replication), unequal_columns(spec, workers, replication)


def describe(graph: Graph, settings: Settings, partition: Partition) -> list[str]:
    """Describes the graph and its partition, in lines for users.

    Args:
        graph: The full graph.
    """
    chosen = settings.partition
    note = remark(chosen.grid, partition.grid, partition.columns)
    return [f"{sizes_of(graph)}; {chosen.nodes.name} nodes on a {partition.layout}", *([note] if note else [])]


def sizes_of(graph: Graph) -> str:
    """Describes a graph's size, features and labels."""
    share = both_ways(graph.csc)
    few = f" ({100 * share:.2g} % have a reverse edge)" if share < ONE_WAY else ""
    return f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges{few}, {graph.features.shape[1]:,} features, {graph.label_summary}"


def shape(grid: Grid) -> list[int]:
    """Returns the grid as a value of `partition.grid`."""
    return [grid.rows, grid.cols, grid.slices]


def _figures(quality: Quality) -> LayoutSummary:
    return {
        "grid": shape(quality.partition.grid),
        "words_per_column": float(quality.words.max()),
        "balance": quality.balance(),
    }
