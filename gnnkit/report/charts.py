"""Charts: curves, stacked columns, bars by rank, and matrices."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.report.drawing import CHAR, WIDTH, Box, Dot, Figure, Line, Plot, Point, Shape, Strokes, Text

LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 26.0, 34.0
HEIGHT = 250.0
MOST_POINTS = 400  # of a curve. More are averaged
MOST_CELLS = 16  # of a side of a matrix with numbers in the cells
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve."""

    name: str
    points: tuple[Point, ...]
    colour: str
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The numbers of an axis, and the pixels where these stand."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """Leaves a little room around values.

        Args:
            values: The values.
            begin: Pixel of the lower end.
            end: Pixel of the upper end.
        """
        low, high = min(values), max(values)
        room = (high - low) * 0.06 or max(abs(high) * 0.1, 1e-9)
        least = 0.0 if low >= 0 else -math.inf
        return cls(max(low - room, least), high + room, begin, end)

    def at(self, value: float) -> float:
        """Returns the pixel of a value."""
        return self.begin + (value - self.low) / max(self.high - self.low, 1e-300) * (self.end - self.begin)

    def ticks(self, count: int = 5, *, whole: bool = False) -> list[float]:
        """Returns round numbers on the axis.

        Args:
            count: About how many.
            whole: Whether only whole numbers count. Default: no.
        """
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = next(power * nice for nice in _NICE if power * nice >= rough * 0.999)
        step = max(round(step), 1) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [step * index for index in range(first, min(last, first + 50) + 1)]


def spelt(value: float) -> str:
    """Spells a number for an axis or a cell, in few characters."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.99995:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}" if value else "0"


def curves(
    name: str,
    title: str,
    caption: str,
    given: Sequence[Curve],
    x_name: str = "epoch",
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Draws curves over a common axis.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        caption: A sentence about the figure.
        given: The curves, one point each at least.
        x_name: Name of the axis below.
        mark: A place on the axis that is marked, and its name. Default: none.
    """
    drawn = [Curve(each.name, thinned(each.points), each.colour, each.dots) for each in given]
    every = [point for each in drawn for point in each.points]
    names, top = legend([(each.name, each.colour) for each in drawn])
    top += 0 if mark is None else 10
    height = HEIGHT + max(top - TOP, 0)  # a long legend makes no low chart
    x = Axis.around([point[0] for point in every], LEFT, WIDTH - RIGHT)
    y = Axis.around([point[1] for point in every], height - BOTTOM, top)
    mark = mark if mark is not None and x.low <= mark[0] <= x.high else None
    shapes = [*_frame(x, y, x_name), *_marked(x, y, mark), *_lines(x, y, x_name, drawn)]
    numbers = {
        "x": [x.low, x.high, x.begin, x.end],
        "y": [y.low, y.high, y.begin, y.end],
        "name": x_name,
        "mark": mark,
        "curves": [[each.name, each.colour, each.dots, _rounded(each.points)] for each in drawn],
    }
    plot = Plot(tuple(shapes), json.dumps(numbers, separators=(",", ":")))
    return Figure(name, title, caption, height, tuple(names), plot)


def _rounded(points: Sequence[Point]) -> list[list[float]]:
    return [[float(f"{x:.6g}"), float(f"{y:.5g}")] for x, y in points]


def _marked(x: Axis, y: Axis, mark: tuple[float, str] | None) -> list[Shape]:
    """Draws a broken line at the mark, with its name on top."""
    if mark is None:
        return []
    at, text = x.at(mark[0]), mark[1]
    steps = range(int(y.end), int(y.begin), 6)
    side = "end" if at > (x.begin + x.end) / 2 else "start"
    dashes = Strokes(tuple(((at, step), (at, min(step + 3.0, y.begin))) for step in steps), "muted", 1.0)
    return [dashes, Text(at, y.end - 4, text, side, "ink")]


def _lines(x: Axis, y: Axis, x_name: str, drawn: Sequence[Curve]) -> list[Shape]:
    shapes: list[Shape] = []
    for each in drawn:
        at = tuple((x.at(a), y.at(b)) for a, b in each.points)
        if len(at) > 1:
            shapes.append(Line(at, each.colour))
        if each.dots or len(at) == 1:
            noted = zip(at, each.points, strict=True)
            shapes += [
                Dot(a, b, 2.6, each.colour, f"{each.name} {v:.4g} at {x_name} {e:g}") for (a, b), (e, v) in noted
            ]
    return shapes


def thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Returns at most `MOST_POINTS` points: the means of neighbours."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return tuple(points)
    parts = [points[first : first + size] for first in range(0, len(points), size)]
    return tuple((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts)


def _frame(x: Axis, y: Axis, x_name: str) -> list[Shape]:
    lines = tuple(((x.begin, y.at(tick)), (x.end, y.at(tick))) for tick in y.ticks())
    below = y.begin + 15
    return [
        Strokes(lines, "grid", 0.8),
        *(Text(x.begin - 6, y.at(tick) + 4, spelt(tick), "end") for tick in y.ticks()),
        *(Text(x.at(tick), below, spelt(tick), "middle") for tick in x.ticks(6, whole=True)),
        Text((x.begin + x.end) / 2, below + 14, x_name, "middle"),
    ]


def legend(named: Sequence[tuple[str, str]], left: float = LEFT) -> tuple[list[Shape], float]:
    """Returns names with colours, and the pixel below the names.

    Args:
        named: Names and names of colours.
        left: Pixel of the first. Default: where the axis begins.
    """
    shapes: list[Shape] = []
    x, y = left, 12.0
    for name, tint in named:
        text = clipped(name, 40)
        width = 26 + CHAR * len(text)
        if x > left and x + width > WIDTH:
            x, y = left, y + 15
        shapes += [Box(x, y - 8, 9, 9, tint), Text(x + 13, y, text)]
        x += width
    return shapes, y + 12


def clipped(text: str, length: int) -> str:
    """Returns a text of at most so many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


@dataclass(frozen=True, slots=True)
class Part:
    """A share of every bar, such as the seconds of waiting."""

    name: str
    values: tuple[float, ...]  # by bar
    colour: str


def bars(name: str, title: str, caption: str, labels: Sequence[str], parts: Sequence[Part], unit: str) -> Figure:
    """Draws a lying bar for each label, of parts one after the other.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        caption: A sentence about the figure.
        labels: Names of the bars.
        parts: The parts of each bar.
        unit: Unit of the values, for the axis.
    """
    left = 12 + CHAR * max(len(clipped(label, 14)) for label in labels)
    names, top = legend([(part.name, part.colour) for part in parts], left)
    totals = [sum(values) for values in zip(*(part.values for part in parts), strict=True)]
    step = max(min(26.0, 520 / len(labels)), 12.0)
    x = Axis(0, max(*totals, 1e-12) * 1.04, left, WIDTH - RIGHT)
    low = top + step * len(labels)
    shapes = [*names, Strokes(tuple(((x.at(t), top), (x.at(t), low)) for t in x.ticks(4)), "grid", 0.8)]
    shapes += [Text(x.at(tick), low + 14, spelt(tick), "middle") for tick in x.ticks(4)]
    shapes.append(Text(WIDTH - RIGHT, low + 28, unit, "end"))
    for index, label in enumerate(labels):
        y, before = top + step * index, 0.0
        shapes.append(Text(left - 6, y + step / 2 + 4, clipped(label, 14), "end"))
        for part in parts:
            value = part.values[index]
            note = f"{label}: {part.name} {value:.4g} {unit}"
            shapes.append(
                Box(x.at(before), y + 2, max(x.at(before + value) - x.at(before), 0), step - 4, part.colour, note=note)
            )
            before += value
    return Figure(name, title, caption, low + 34, tuple(shapes))


def heat(
    name: str, title: str, caption: str, cells: Sequence[Sequence[float]], labels: Sequence[str], axes: tuple[str, str]
) -> Figure:
    """Draws a square table of numbers in shades.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        caption: A sentence about the figure.
        cells: Numbers of at least 0, by row.
        labels: Names of rows and columns.
        axes: Names of rows and of columns.
    """
    shortened = [clipped(label, 12) for label in labels]
    left = 26 + CHAR * max(map(len, shortened))
    side = (WIDTH - left - RIGHT) / len(cells)
    height = min(side, 34.0) if len(cells) <= MOST_CELLS else side
    top, largest = 40.0, max(max(row) for row in cells) or 1.0
    numbered = len(cells) <= MOST_CELLS
    every = max(math.ceil(11.5 / height), 1)
    room = max(int(side * every / CHAR), 1)
    shapes: list[Shape] = [Text(left, 12, f"{axes[1]} →"), Text(4, top - 8, f"{axes[0]} ↓")]
    for row, values in enumerate(cells):
        y = top + height * row
        if row % every == 0:
            shapes.append(Text(left - 6, y + height / 2 + 4, shortened[row], "end"))
            if room >= min(len(labels[row]), 4):  # names of a letter or two tell nothing
                shapes.append(Text(left + side * (row + 0.5), top - 8, clipped(labels[row], room), "middle"))
        for column, value in enumerate(values):
            x, note = left + side * column, f"{axes[0]} {labels[row]}, {axes[1]} {labels[column]}: {value:,.6g}"
            if value or numbered:
                shapes.append(Box(x, y, side - 1, height - 1, "shade", 0.04 + 0.8 * (value / largest) ** 0.6, note))
            if numbered and (value or row == column):
                shapes.append(Text(x + side / 2, y + height / 2 + 4, spelt(value), "middle", "ink", 10))
    return Figure(name, title, caption, top + height * len(cells) + 8, tuple(shapes))


def rank_names(count: int) -> list[str]:
    return [f"rank {rank}" for rank in range(count)]
