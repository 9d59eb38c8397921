"""Selects the layouts that `partition=auto` tries, by their exact counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gnnkit import plugins
from gnnkit.config.settings import Choice, PartitionSettings, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.launch.progress import progress
from gnnkit.partition.grid import Grid, make_grid, unequal_columns
from gnnkit.partition.quality import Quality, measure
from gnnkit.prepare.run_partition import Cutter, format_grid, overrides
from gnnkit.utils.ranges import num_cores

PARTITIONING_BUDGET = 2.0  # seconds for all partitioners, by their `auto_seconds`
BORDER_SECONDS = 0.1  # approximate seconds per million edges for an improved border
CHOSEN = "chosen"  # key of the configured layout in tables of layouts

_BORDERS = ("none", "min_words", "cover", "min_words+cover")
_GRIDS = ("1d", "1.5d", "2d", "3d")
Candidates = Mapping[str, PartitionSettings]
Measured = dict[str, Quality]


def auto_names() -> list[str]:
    """Lists the partitioners that `partition=auto` compares, fastest first.

    A plugin takes part if it sets `Partitioner.auto_seconds`. Plugins that cannot be
    imported are skipped.
    """
    seconds: dict[str, float] = {}
    for name in plugins.names("partition"):
        with suppress(UserError):
            if (auto_seconds := plugins.load("partition", name).auto_seconds) is not None:
                seconds[name] = auto_seconds
    return sorted(seconds, key=lambda name: (seconds[name], name))


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
        seen_shapes = {_shapes("1d", workers, None)}
        for spec in (*_GRIDS[1:], [1, 1, workers]):
            if (shapes := _shapes(spec, workers, None)) not in seen_shapes:
                seen_shapes.add(shapes)
                on_grid = names if shapes[0].num_cells > 1 else names[:1]  # a single cell makes all alike
                layouts |= {f"{name} {format_grid(spec)}": replace(layouts[name], grid=spec) for name in on_grid}
    return layouts


def alternatives(settings: Settings) -> dict[str, PartitionSettings]:
    """Returns the configured layout, the other grids, and the plain partitioners.

    Grids have the configured node assignment, and the names of `partition.grid`. Grids
    that coincide come once. Raises `UserError` for an impossible grid.
    """
    section, workers = settings.partition, settings.workers
    layouts = {CHOSEN: section}
    seen_shapes = {_shapes(section.grid, workers, section.replication)}
    for spec in (*_GRIDS, [1, 1, workers]):
        replication = section.replication if spec == "1.5d" else None
        with suppress(UserError):  # the configured replication does not fit
            if (shapes := _shapes(spec, workers, replication)) not in seen_shapes:
                seen_shapes.add(shapes)
                layouts[format_grid(spec)] = replace(section, grid=spec, replication=replication)
    others = [name for name in auto_names() if name != section.nodes.name] if workers > 1 else []
    return layouts | {name: PartitionSettings(Choice("partition", name, {}), "1d", None, "none") for name in others}


def measure_candidates(settings: Settings, graph: Graph, sections: Candidates) -> Measured:
    """Measures the candidates that may be best.

    Each partitioner that is not slow is measured in its first layout. Borders and grids
    follow for the configured partitioner, or for those with the fewest words and with
    the least work there, borders only if the graph is not too large for them. Layouts
    that coincide come once. Raises `UserError` if the configured layout is impossible.

    Args:
        sections: The candidates, simplest first.
    """
    slow, cutter = slow_partitioners(sections, graph.num_edges), Cutter(graph, settings.workers)
    measurements: Measured = {}

    def add(selects: Callable[[str, PartitionSettings], bool]) -> None:
        for name, section in sections.items():
            if name not in measurements and section.nodes.name not in slow and selects(name, section):
                progress(f"a look at {overrides(section)}")
                try:
                    measurements[name] = measure(graph, cutter.cut(section), threads=num_cores())
                except UserError:  # the grid does not support this node assignment
                    if name == CHOSEN:
                        raise

    first = {section.nodes.name: name for name, section in reversed([*sections.items()])}
    add(lambda name, _: name in first.values())
    best = {sections[name].nodes.name for name in ([CHOSEN] if CHOSEN in sections else _best_of(measurements))}
    border = BORDER_SECONDS * graph.num_edges / 1e6 <= PARTITIONING_BUDGET
    add(lambda _, section: section.nodes.name in best and (border or section.border == "none"))
    add(lambda _, section: make_grid(section.grid, settings.workers, section.replication).num_cells == 1)
    names: dict[tuple[str, str, str], str] = {}  # by layout: unequal columns that need no fewer words are not used
    for name in filter(measurements.__contains__, sections):
        section = sections[name]
        names.setdefault((section.nodes.name, section.border, measurements[name].partition.layout), name)
    return {name: measurements[name] for name in names.values()}


def _best_of(qualities: Measured) -> set[str]:
    """Returns the layouts with the fewest words, and with the least work."""
    return {min(qualities, key=lambda name: key(qualities[name])) for key in (words_of, work_of) if qualities}


def is_plain(name: str) -> bool:
    """Returns whether a candidate has neither an improved border nor a grid but 1d."""
    return " " not in name


def words_of(quality: Quality) -> float:
    """Returns the words that the busiest rank receives, per column."""
    return float(quality.words.max())


def work_of(quality: Quality) -> float:
    """Returns the words, edges and rows of the busiest rank, per column."""
    return float((quality.words + quality.num_held + quality.traffic.num_owned).max())


def slow_partitioners(sections: Candidates, num_edges: int) -> list[str]:
    """Lists the partitioners that `partition=auto` skips for a large graph.

    The first one is always used. The next ones are used as long as their seconds add up
    to at most `PARTITIONING_BUDGET`.

    Args:
        sections: The candidates, those of the fastest partitioner first.
        num_edges: Number of edges in the graph.
    """
    seconds = {layout.nodes.name: layout.nodes.load().auto_seconds or 0.0 for layout in sections.values()}
    budget, slow = PARTITIONING_BUDGET, list[str]()
    for name, of_a_million in list(seconds.items())[1:]:
        budget -= of_a_million * num_edges / 1e6
        if budget < 0:
            slow.append(name)
    return slow


def _shapes(spec: str | Sequence[int], workers: int, replication: int | None) -> tuple[Grid, tuple[int, ...]]:
    """Returns the grid and the unequal columns that `partition.grid` allows."""
    return make_grid(spec, workers, replication), unequal_columns(spec, workers, replication)
