"""Charts as data: curves, stacked bars, matrices and networks.

The template renders each kind, curves with uPlot and all others without a script.
Colours are variables of `templates/style.css`: "c0" to "c9".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.leader.epochs import short

MOST_POINTS = 400  # longer curves are averaged
MOST_BARS = 64  # also the maximum number of matrix rows
MOST_CELLS = 16  # larger matrices show no numbers in their cells
NUM_COLOURS = 10
SPLITS = {"train": "c0", "val": "c1", "test": "c2"}  # the same in all charts
Point = tuple[float, float]


def colour(index: int) -> str:
    """Returns a colour's name. Colours repeat after the last one."""
    return f"c{index % NUM_COLOURS}"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a title and a caption."""

    name: str  # the element's id in the page
    title: str
    caption: str
    kind: str  # the template's macro: curves, bars, matrix or network
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve."""

    name: str
    points: Sequence[Point]
    colour: str


def curves(
    name: str,
    title: str,
    caption: str,
    lines: Sequence[Curve],
    mark: tuple[float, str] | None = None,
    x_name: str = "epoch",
    *,
    joined: bool = True,
) -> Chart:
    """Returns a chart of curves, which the page zooms and reads under the pointer.

    Args:
        lines: The curves, with at least one point each.
        mark: A marked place on the horizontal axis, and its label.
        x_name: The horizontal axis.
        joined: Whether lines connect the points.
    """
    points = [dict(thinned(curve.points)) for curve in lines]
    places = sorted({x for values in points for x in values})
    numbers = {
        "x": [_rounded(x) for x in places],
        "xName": x_name,
        "mark": mark,
        "joined": joined,
        "series": [
            [curve.name, curve.colour, [_rounded(values.get(x)) for x in places]]
            for curve, values in zip(lines, points, strict=True)
        ],
    }
    return Chart(name, title, caption, "curves", {"numbers": json.dumps(numbers, separators=(",", ":"))})


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Returns at most `MOST_POINTS` points: the means of neighbours."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points
    parts = [points[first : first + size] for first in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


@dataclass(frozen=True, slots=True)
class Part:
    """A component that every bar has, such as the seconds spent waiting."""

    name: str
    values: Sequence[float]  # by bar
    colour: str


def bars(name: str, title: str, caption: str, labels: Sequence[str], parts: Sequence[Part], unit: str) -> Chart:
    """Returns a chart with a horizontal bar for each label, its parts side by side.

    Args:
        parts: The parts of all bars.
        unit: Unit of the values.
    """
    columns = list(zip(*(part.values for part in parts), strict=True))
    longest = max(*map(sum, columns), 1e-12) / 100
    rows = [
        (
            label,
            f"{short(sum(values))} {unit}",
            [
                (value / longest, part.colour, f"{label}: {part.name} {value:.4g} {unit}")
                for part, value in zip(parts, values, strict=True)
            ],
        )
        for label, values in zip(labels, columns, strict=False)
    ]
    return Chart(name, title, caption, "bars", {"rows": rows, "legend": [(part.name, part.colour) for part in parts]})


def matrix(
    name: str, title: str, caption: str, cells: Sequence[Sequence[float]], labels: Sequence[str], axes: tuple[str, str]
) -> Chart:
    """Returns a square matrix in shades.

    Args:
        cells: Numbers by row, at least 0.
        labels: Row and column names.
        axes: Row and column titles.
    """
    largest = max(map(max, cells)) or 1.0
    rows = [
        [
            (
                80 * (max(value, 0) / largest) ** 0.6,  # per cent of the darkest shade
                f"{axes[0]} {labels[row]}, {axes[1]} {labels[column]}: {value:,.6g}",
                short(value) if len(cells) <= MOST_CELLS else "",
            )
            for column, value in enumerate(values)
        ]
        for row, values in enumerate(cells)
    ]
    return Chart(name, title, caption, "matrix", {"rows": list(zip(labels, rows, strict=True)), "axes": axes})


@dataclass(frozen=True, slots=True)
class NetworkNode:
    """A node of a network."""

    place: Point  # from 0 to 1
    radius: float  # pixels
    note: str  # tooltip
    label: str = ""

    @property
    def pixels(self) -> Point:
        """The place in the drawing, which has a margin of 20 pixels."""
        return 400 * self.place[0] + 20, 400 * self.place[1] + 20


@dataclass(frozen=True, slots=True)
class Colouring:
    """One way to colour a network's nodes. The page shows the one that is selected."""

    name: str
    colours: Sequence[str]  # by node
    legend: Sequence[tuple[str, str]]  # names and colours


def network(
    name: str,
    title: str,
    caption: str,
    nodes: Sequence[NetworkNode],
    edges: Sequence[tuple[int, int, str]],
    colourings: Sequence[Colouring],
    *,
    directed: bool = False,
) -> Chart:
    """Returns a drawing of nodes and edges.

    Args:
        edges: Positions of source and target in `nodes`, and a kind: weak or strong.
            Any other text is a tooltip.
        colourings: At least one. The first is visible initially.
        directed: Whether edges have arrows.
    """
    paths: dict[str, str] = {}
    for source, target, kind in edges:
        ends = [f"{x:.1f} {y:.1f}" for x, y in (nodes[source].pixels, nodes[target].pixels)]
        paths[kind] = f"{paths.get(kind, '')}M{'L'.join(ends)}"
    data = {"nodes": nodes, "paths": paths, "colourings": colourings, "directed": directed}
    return Chart(name, title, caption, "network", data)


def rank_names(count: int) -> list[str]:
    """Returns at most `MOST_BARS` rank labels."""
    return [f"rank {rank}" for rank in range(min(count, MOST_BARS))]
