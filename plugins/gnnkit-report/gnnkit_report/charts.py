"""Charts: curves, stacked bars and matrices."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.leader.epochs import short
from gnnkit_report.drawing import CHAR, WIDTH, Figure, Plot, Point, Shape, box, dot, line, strokes, text

LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 26.0, 34.0
HEIGHT = 250.0
MOST_POINTS = 400  # longer curves are averaged
MOST_BARS = 64  # also the maximum number of matrix rows
MOST_LETTERS = 24  # of a bar's label, whose middle is left out
MOST_CELLS = 16  # larger matrices show no numbers in their cells
FEW_POINTS = 60  # shorter evaluation curves have a dot at each point
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve."""

    name: str
    points: tuple[Point, ...]
    colour: str
    dots: bool = False

    @classmethod
    def of(cls, name: str, metric: str, points: tuple[Point, ...], colour: str) -> Curve:
        """Returns a metric's curve, with dots if there are few evaluations."""
        return cls(name, points, colour, dots=metric != "train_loss" and len(points) < FEW_POINTS)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its range, and the pixels at both ends."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """Returns an axis with a margin around the values.

        Args:
            begin: Pixel of the lower end.
            end: Pixel of the upper end.
        """
        low, high = min(values), max(values)
        margin = (high - low) * 0.06 or max(abs(high) * 0.1, 1e-9)
        least = 0.0 if low >= 0 else -math.inf
        return cls(max(low - margin, least), high + margin, begin, end)

    def at(self, value: float) -> float:
        """Returns a value's pixel."""
        return self.begin + (value - self.low) / max(self.high - self.low, 1e-300) * (self.end - self.begin)

    def ticks(self, count: int = 5, *, integers: bool = False) -> list[float]:
        """Returns about `count` round numbers on the axis, or only integers."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = next(power * nice for nice in _NICE if power * nice >= rough * 0.999)
        step = max(round(step), 1) if integers else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [step * index for index in range(first, min(last, first + 50) + 1)]


def curves(
    name: str, title: str, caption: str, lines: Sequence[Curve], mark: tuple[float, str] | None = None
) -> Figure:
    """Draws curves over epochs.

    Args:
        lines: The curves, with at least one point each.
        mark: A marked epoch, and its label.
    """
    lines = [Curve(curve.name, thinned(curve.points), curve.colour, curve.dots) for curve in lines]
    points = [point for curve in lines for point in curve.points]
    names, top = legend([(curve.name, curve.colour) for curve in lines])
    top += 0 if mark is None else 10
    height = HEIGHT + max(top - TOP, 0)  # a long legend does not shrink the chart
    x = Axis.around([point[0] for point in points], LEFT, WIDTH - RIGHT)
    y = Axis.around([point[1] for point in points], height - BOTTOM, top)
    mark = mark if mark is not None and x.low <= mark[0] <= x.high else None
    shapes = [*frame(x, y, "epoch", integers=True), *_mark(x, y, mark), *_lines(x, y, lines)]
    numbers = {
        "x": [x.low, x.high, x.begin, x.end],
        "y": [y.low, y.high, y.begin, y.end],
        "name": "epoch",
        "mark": mark,
        "curves": [[curve.name, curve.colour, curve.dots, _round_points(curve.points)] for curve in lines],
    }
    plot = Plot(tuple(shapes), json.dumps(numbers, separators=(",", ":")))
    return Figure(name, title, caption, height, tuple(names), plot)


def _round_points(points: Sequence[Point]) -> list[list[float]]:
    return [[float(f"{x:.6g}"), float(f"{y:.5g}")] for x, y in points]


def _mark(x: Axis, y: Axis, mark: tuple[float, str] | None) -> list[Shape]:
    """Draws a dashed line at the mark, with its label on top."""
    if mark is None:
        return []
    at, label = x.at(mark[0]), mark[1]
    steps = range(int(y.end), int(y.begin), 6)
    side = "end" if at > (x.begin + x.end) / 2 else "start"
    dashes = strokes([((at, step), (at, min(step + 3.0, y.begin))) for step in steps], "muted", 1.0)
    return [dashes, text(at, y.end - 4, label, side, "ink")]


def _lines(x: Axis, y: Axis, lines: Sequence[Curve]) -> list[Shape]:
    shapes: list[Shape] = []
    for curve in lines:
        places = [(x.at(a), y.at(b)) for a, b in curve.points]
        if len(places) > 1:
            shapes.append(line(places, curve.colour))
        if curve.dots or len(places) == 1:
            shapes += [
                dot(a, b, 2.6, curve.colour, f"{curve.name} {value:.4g} at epoch {epoch:g}")
                for (a, b), (epoch, value) in zip(places, curve.points, strict=True)
            ]
    return shapes


def thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Returns at most `MOST_POINTS` points: the means of neighbours."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return tuple(points)
    parts = [points[first : first + size] for first in range(0, len(points), size)]
    return tuple((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts)


def frame(x: Axis, y: Axis, title: str, *, integers: bool = False) -> list[Shape]:
    """Draws grid lines and labels of two axes. `title` is below the horizontal one."""
    lines = [((x.begin, y.at(tick)), (x.end, y.at(tick))) for tick in y.ticks()]
    below = y.begin + 15
    return [
        strokes(lines, "grid", 0.8),
        *(text(x.begin - 6, y.at(tick) + 4, short(tick), "end") for tick in y.ticks()),
        *(text(x.at(tick), below, short(tick), "middle") for tick in x.ticks(6, integers=integers)),
        text((x.begin + x.end) / 2, below + 14, title, "middle"),
    ]


def legend(entries: Sequence[tuple[str, str]], margin: float = LEFT) -> tuple[list[Shape], float]:
    """Returns labels with colours, and the pixel below them.

    Args:
        entries: Labels and names of colours.
        margin: Pixel of the first label. Default: where the axis begins.
    """
    shapes: list[Shape] = []
    x, y = margin, 12.0
    for name, tint in entries:
        label = clipped(name, 40)
        width = 26 + CHAR * len(label)
        if x > margin and x + width > WIDTH:
            x, y = margin, y + 15
        shapes += [box(x, y - 8, 9, 9, tint), text(x + 13, y, label)]
        x += width
    return shapes, y + 12


def clipped(text: str, length: int) -> str:
    """Shortens text to at most `length` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


@dataclass(frozen=True, slots=True)
class Part:
    """A component that every bar has, such as the seconds spent waiting."""

    name: str
    values: tuple[float, ...]  # by bar
    colour: str


def bars(name: str, title: str, caption: str, labels: Sequence[str], parts: Sequence[Part], unit: str) -> Figure:
    """Draws a horizontal bar for each label, with its parts side by side.

    Args:
        parts: The parts of all bars.
        unit: Unit of the values, for the axis.
    """
    names = [label if len(label) <= MOST_LETTERS else f"{label[:10]}…{label[11 - MOST_LETTERS :]}" for label in labels]
    margin = 12 + CHAR * max(map(len, names))
    shapes, top = legend([(part.name, part.colour) for part in parts], margin)
    totals = [sum(values) for values in zip(*(part.values for part in parts), strict=True)]
    step = max(min(26.0, 520 / len(labels)), 12.0)
    x = Axis(0, max(*totals, 1e-12) * 1.04, margin, WIDTH - RIGHT)
    low = top + step * len(labels)
    shapes.append(strokes([((x.at(tick), top), (x.at(tick), low)) for tick in x.ticks(4)], "grid", 0.8))
    shapes += [text(x.at(tick), low + 14, short(tick), "middle") for tick in x.ticks(4)]
    shapes.append(text(WIDTH - RIGHT, low + 28, unit, "end"))
    for index, label in enumerate(labels):
        y, before = top + step * index, 0.0
        shapes.append(text(margin - 6, y + step / 2 + 4, names[index], "end"))
        for part in parts:
            value = part.values[index]
            begin, end = x.at(before), x.at(before + value)
            note = f"{label}: {part.name} {value:.4g} {unit}"
            shapes.append(box(begin, y + 2, max(end - begin, 0), step - 4, part.colour, note=note))
            before += value
    return Figure(name, title, caption, low + 34, tuple(shapes))


def heat(
    name: str, title: str, caption: str, cells: Sequence[Sequence[float]], labels: Sequence[str], axes: tuple[str, str]
) -> Figure:
    """Draws a square matrix in shades.

    Args:
        cells: Numbers by row, at least 0.
        labels: Row and column names.
        axes: Row and column titles.
    """
    short_labels = [clipped(label, 12) for label in labels]
    margin, top = 26 + CHAR * max(map(len, short_labels)), 40.0
    side = (WIDTH - margin - RIGHT) / len(cells)
    is_numbered = len(cells) <= MOST_CELLS
    height = min(side, 34.0) if is_numbered else side
    every = max(math.ceil(11.5 / height), 1)  # rows per label
    length = max(int(side * every / CHAR), 1)  # characters of a column's label
    largest = max(max(row) for row in cells) or 1.0
    shapes: list[Shape] = [text(margin, 12, f"{axes[1]} →"), text(4, top - 8, f"{axes[0]} ↓")]
    for row, values in enumerate(cells):
        y = top + height * row
        if row % every == 0:
            shapes.append(text(margin - 6, y + height / 2 + 4, short_labels[row], "end"))
            if length >= min(len(labels[row]), 4):  # one or two letters identify nothing
                shapes.append(text(margin + side * (row + 0.5), top - 8, clipped(labels[row], length), "middle"))
        for column, value in enumerate(values):
            x, note = margin + side * column, f"{axes[0]} {labels[row]}, {axes[1]} {labels[column]}: {value:,.6g}"
            if value or is_numbered:
                shapes.append(box(x, y, side - 1, height - 1, "shade", 0.04 + 0.8 * (value / largest) ** 0.6, note))
            if is_numbered and (value or row == column):
                shapes.append(text(x + side / 2, y + height / 2 + 4, short(value), "middle", "ink", 10))
    return Figure(name, title, caption, top + height * len(cells) + 8, tuple(shapes))


def rank_names(count: int) -> list[str]:
    """Returns at most `MOST_BARS` rank labels."""
    return [f"rank {rank}" for rank in range(min(count, MOST_BARS))]
