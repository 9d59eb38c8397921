"""Chooses the partition of a run, and compares the other layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from gnnkit.ranges import num_cores

if TYPE_CHECKING:
    from gnnkit.plan.layout import Layout

COMPARED_EDGES = 20_000_000  # up to so many edges a run compares layouts, in some seconds
CUTTING = 2.0  # seconds of all partitioners, by what these say of themselves
LOOKING = 1.5  # seconds of all looks at borders and grids, by the two numbers below
MEASURING, IMPROVING = 0.01, 0.07  # seconds of a look at a million edges, and of a border there. Rough numbers
TRIED = 6  # candidates that are tried at most
ALIKE = 0.02  # loads within this share are alike: a trial would tell noise
TIE = 0.08  # seconds within this share of the least count as equal, as trials of equal layouts differ by more
MARGIN = 0.9  # share of the memory that a layout may fill in a trial
SAFE = 0.5  # share of the memory that counted tensors may fill: operations need as much again. More is not tried
CHOSEN = "chosen"  # name of the configured layout, among others

_PLANES = ("1d", "1.5d", "2d", "3d")
_BORDERS = ("none", "min_words", "cover", "min_words+cover")
WORSE = 1.25  # times the least work on 1d, from which a partitioner is not cut on further grids
ROW = 30  # work of a row, in sums of an edge. A rough number
_WORD = 15  # work of a word that travels, in sums of an edge. A rough number


_Load = tuple[float, float, float]  # words, edges and rows of the busiest ranks


class Cutter:
    """Cuts one graph in several ways. Owners of nodes are found once for all grids."""

    def __init__(self, graph: Graph, workers: int) -> None:
        """Keeps the graph.

        Args:
            graph: The whole graph.
            workers: Number of ranks.
        """
        self.graph, self.workers = graph, workers
        self._owners: dict[str, Ids] = {}  # by partitioner with arguments, where no grid changes these

    def cut(self, chosen: PartitionSettings) -> Partition:
        """Makes the partition that the configuration names."""
        grid = make_grid(chosen.grid, self.workers, chosen.replication)
        partition = improve_border(self.graph, self._assigned(chosen, grid), chosen.border)
        numbers = unequal_columns(chosen.grid, self.workers, chosen.replication)
        if not numbers or partition.edge_cell is not None:
            return partition
        if chosen.replication is not None:
            return in_columns(self.graph, partition, chosen.replication)
        return fewest_words(self.graph, partition, numbers)

    def know(self, chosen: PartitionSettings, partition: Partition) -> None:
        """Takes the owners of a partition that was made before.

        Args:
            chosen: The configuration of the partition.
            partition: What was made.
        """
        if chosen.border in (None, "none") and not chosen.nodes.create().reads_grid:
            self._owners[_spelt_nodes(chosen)] = partition.node_rank

    def _assigned(self, chosen: PartitionSettings, grid: Grid) -> Partition:
        name = _spelt_nodes(chosen)
        if (owners := self._owners.get(name)) is not None:
            return Partition(owners, None, grid)
        partitioner: Partitioner = chosen.nodes.create()
        partition = partitioner.assign(self.graph, grid)
        if not partitioner.reads_grid:
            self._owners[name] = partition.node_rank
        return partition


def _spelt_nodes(chosen: PartitionSettings) -> str:
    return f"{chosen.nodes.name} {dict(chosen.nodes.arguments)}"


def assign(graph: Graph, chosen: PartitionSettings, workers: int) -> Partition:
    """Makes the partition that the configuration names.

    Args:
        graph: The whole graph.
        chosen: The settings of `partition`.
        workers: Number of ranks.
    """
    return Cutter(graph, workers).cut(chosen)


@dataclass(frozen=True, slots=True)
class Decision:
    """The layout of a run beside the others."""

    nodes: str  # the partitioner
    why: str
    layouts: dict[str, Any]  # figures by name, the chosen one under "chosen"

    @classmethod
    def of(cls, settings: Settings, graph: Graph, quality: Quality, *, compares: bool = True) -> Decision:
        """Compares the chosen layout with the others by the words of the busiest rank.

        Args:
            settings: The configuration.
            graph: The whole graph.
            quality: The measured quality of the chosen layout.
            compares: Whether to measure others, up to `COMPARED_EDGES`. Default: True.
        """
        chosen = settings.partition
        if settings.decided is not None:
            return cls(chosen.nodes.name, settings.decided["why"], settings.decided["layouts"])
        layouts = {"chosen": _figures(quality)}
        if compares and graph.num_edges <= COMPARED_EDGES:
            cutter = Cutter(graph, settings.workers)
            cutter.know(chosen, quality.partition)
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
        return cls(chosen.nodes.name, why, layouts)


def alternatives(settings: Settings, cutter: Cutter, chosen: Quality) -> Iterator[tuple[str, Quality]]:
    """Measures every other named grid that fits the workers and this node assignment.

    Grids that coincide are measured once. Names are values of `partition.grid`.

    Args:
        settings: The configuration.
        cutter: Of the whole graph.
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
                measured[shapes] = measure(cutter.graph, cutter.cut(choice), threads=num_cores())
        except UserError:  # this assignment of nodes or edges does not go with that grid
            continue
        yield spelt(spec), measured[shapes]


def candidates(workers: int, names: Sequence[str], *, grids: bool) -> dict[str, PartitionSettings]:
    """Names the layouts that `partition=auto` compares, the plainest first.

    Args:
        workers: Number of ranks.
        names: Of partitioners, the quickest first.
        grids: Whether the strategy goes with grids other than 1d.
    """
    nodes = {name: Choice("partition", name, {}) for name in names}
    found = {name: PartitionSettings(choice, "1d", None, "none") for name, choice in nodes.items()}
    if workers == 1:
        return {name: each for name, each in found.items() if name == names[0]}
    borders = _BORDERS[1:] if grids else _BORDERS[1:2]
    found |= {f"{name} {border}": replace(found[name], border=border) for border in borders for name in names}
    if grids:
        seen = {_shapes("1d", workers, None)}
        for spec in (*_PLANES[1:], [1, 1, workers]):
            shapes = _shapes(spec, workers, None)
            if shapes in seen:
                continue
            seen.add(shapes)
            on_grid = names if shapes[0].num_cells > 1 else names[:1]  # with a single cell all nodes are alike
            found |= {f"{name} {spelt(spec)}": replace(found[name], grid=spec) for name in on_grid}
    return found


def promising(
    settings: Settings, graph: Graph, named: Mapping[str, PartitionSettings], most: int = TRIED
) -> Iterator[tuple[str, Quality]]:
    """Cuts candidates, and gives those that may be best.

    Leaves out a candidate whose busiest rank has as many words, edges and nodes as that
    of one before on the same grid, up to `ALIKE`, and the partitioners with `WORSE`
    times the least work on 1d. Of the others the ones with least work by a rough count
    are left, none with `WORSE` times the least. Begins with 1d, goes on with the
    partitioner that has least work there, and leaves out looks beyond `LOOKING`. Leaves
    out those that are `too_slow`.

    Args:
        settings: The configuration.
        graph: The whole graph.
        named: The candidates, the plainest first.
        most: Number of candidates given at most. Default: `TRIED`.
    """
    cutter, slow = Cutter(graph, settings.workers), too_slow(named, graph.num_edges)
    named = {name: choice for name, choice in named.items() if choice.nodes.name not in slow}
    measured: dict[str, tuple[Quality, _Load]] = {}
    plain: dict[str, float] = {}  # work of the first candidate of each partitioner, on 1d

    def look(name: str, choice: PartitionSettings) -> None:
        progress(f"a look at {overrides(choice)}")
        with suppress(UserError):  # this assignment of nodes does not go with that grid
            quality = measure(graph, cutter.cut(choice), threads=num_cores())
            load = _load(quality)
            plain.setdefault(choice.nodes.name, work_of(quality))
            if not any(_beats(other, quality, lower, load) for other, lower in measured.values()):
                measured[name] = quality, load

    first: dict[str, str] = {}  # candidate by partitioner
    for name, choice in named.items():
        if first.setdefault(choice.nodes.name, name) == name:
            look(name, choice)
    others = [name for name in named if name not in first.values()]
    left = LOOKING
    for name in sorted(others, key=lambda name: plain.get(named[name].nodes.name, math.inf)):
        choice = named[name]
        seconds = _look_seconds(choice, graph.num_edges)
        if seconds > left:
            continue
        alike = make_grid(choice.grid, settings.workers, choice.replication).num_cells == 1  # whatever the partitioner
        if alike or plain.get(choice.nodes.name, math.inf) <= WORSE * min(plain.values(), default=math.inf):
            left -= seconds
            look(name, choice)
    works = {name: work_of(quality) for name, (quality, _) in measured.items()}
    kept = sorted(works, key=works.__getitem__)[:most]
    for name in named:
        if name in kept and works[name] <= WORSE * min(works.values()):
            yield name, measured[name][0]


def too_slow(named: Mapping[str, PartitionSettings], num_edges: int) -> list[str]:
    """Names the partitioners that `partition=auto` does not cut a large graph by.

    Sums the seconds of the quickest ones up to `CUTTING`. The first one is never slow.

    Args:
        named: The candidates, those of the quickest partitioner first.
        num_edges: Of the graph.
    """
    seconds = {each.nodes.name: each.nodes.load().auto_seconds or 0.0 for each in named.values()}
    left, slow = CUTTING, list[str]()
    for name, of_a_million in list(seconds.items())[1:]:
        left -= of_a_million * num_edges / 1e6
        if left < 0:
            slow.append(name)
    return slow


def _look_seconds(choice: PartitionSettings, num_edges: int) -> float:
    """Returns about the seconds of a look at a candidate whose owners are known."""
    borders = 0 if choice.border in (None, "none") else len(choice.border.split("+"))
    return (MEASURING + IMPROVING * borders) * num_edges / 1e6


def _load(quality: Quality) -> _Load:
    return float(quality.words.max()), float(quality.num_held.max()), float(quality.traffic.num_owned.max())


def work_of(quality: Quality) -> float:
    """Returns a rough count of the work of the busiest ranks, in sums of an edge."""
    words, edges, rows = _load(quality)
    return _WORD * words + edges / quality.partition.grid.slices + ROW * rows


def _beats(other: Quality, quality: Quality, lower: tuple[float, ...], load: tuple[float, ...]) -> bool:
    """Says whether one layout of a grid is about as good as another in each load."""
    same = other.partition.grid == quality.partition.grid
    return same and all(a <= b * (1 + ALIKE) for a, b in zip(lower, load, strict=True))


def least(layouts: Mapping[str, Layout], memory: float) -> str | None:
    """Names the layout that a run takes. None: none of them fits the memory.

    Takes the least seconds of those that were tried. Ties are broken by the counted
    work, which unlike seconds is exact, then by the order. If no layout was tried, the
    words of the busiest rank and the counted memory decide.

    Args:
        layouts: The layouts by name.
        memory: Bytes that the ranks of a host may take.
    """
    tried = {name: layout for name, layout in layouts.items() if layout.timing is not None}
    fitting = {name: one for name, one in (tried or layouts).items() if one.host_memory <= share_of(one) * memory}
    seconds = {name: layout.seconds for name, layout in fitting.items() if layout.seconds is not None}
    if seconds:
        bound = min(seconds.values()) * (1 + TIE)
        return min((name for name in seconds if seconds[name] <= bound), key=lambda name: layouts[name].work)
    return min(fitting, key=lambda name: (fitting[name].words["max"], fitting[name].counted_memory), default=None)


def share_of(layout: Layout) -> float:
    """Returns the share of the memory that a layout may fill by its figures."""
    return SAFE if layout.timing is None else MARGIN


def overrides(partition: PartitionSettings) -> str:
    """Spells a candidate as overrides that repeat the choice."""
    keys = {"border": partition.border, "grid": spelt(partition.grid)}
    rest = [f"partition.{key}={value}" for key, value in keys.items() if value not in ("none", "1d")]
    return " ".join([f"partition={partition.nodes.name}", *rest])


def spelt(grid: str | list[int]) -> str:
    """Spells a grid as on the command line."""
    return str(grid).replace(" ", "")


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
    return [f"{sizes_of(graph)}; {chosen.nodes.name} nodes on a {partition.layout}", *([note] if note else [])]


def sizes_of(graph: Graph) -> str:
    """Says how large a graph is, and what its nodes have."""
    share = both_ways(graph.csc)
    few = f" ({100 * share:.2g} % have a reverse edge)" if share < ONE_WAY else ""
    return f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges{few}, {graph.features.shape[1]:,} features, {graph.label_summary}"


def shape(grid: Grid) -> list[int]:
    """Returns the grid as a value of `partition.grid`."""
    return [grid.rows, grid.cols, grid.slices]


def _figures(quality: Quality) -> dict[str, Any]:
    return {
        "grid": shape(quality.partition.grid),
        "words_per_column": float(quality.words.max()),
        "balance": quality.balance(),
    }
