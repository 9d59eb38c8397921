"""A figure as a list of SVG shapes, in page pixels.

Colours are variables of `templates/style.css`: "ink", "muted", "grid", "paper", "shade"
for the cells of a matrix, and "c0" to "c9".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH = 440.0  # width of every figure: readable in narrow windows, three per row in wide ones
CHAR = 6.3  # mean character width at 11 pixels
Point = tuple[float, float]

NUM_COLOURS = 10
SPLITS = {"train": "c0", "val": "c1", "test": "c2"}  # the same in all charts


def colour(index: int) -> str:
    """Returns a colour's name. Colours repeat after the last one."""
    return f"c{index % NUM_COLOURS}"


@dataclass(frozen=True, slots=True)
class Shape:
    """An SVG element without children. The templates escape all of its text."""

    tag: str
    attributes: Mapping[str, str]
    note: str = ""  # tooltip
    text: str = ""  # content of a text element


def line(points: Sequence[Point], colour: str, width: float = 1.6, note: str = "") -> Shape:
    """Returns a line through points."""
    coordinates = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
    return Shape("polyline", {"points": coordinates, "style": f"fill:none;{_stroke(colour, width)}"}, note)


def strokes(ends: Sequence[tuple[Point, Point]], colour: str, width: float = 0.6, opacity: float = 1.0) -> Shape:
    """Returns many straight lines in one colour."""
    path = "".join(f"M{_short(a)} {_short(b)}L{_short(c)} {_short(d)}" for (a, b), (c, d) in ends)
    faint = {} if opacity == 1 else {"opacity": _short(opacity)}
    return Shape("path", {"d": path, "style": f"fill:none;{_stroke(colour, width)}", **faint})


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0, note: str = "") -> Shape:
    """Returns a filled rectangle."""
    place = {"x": _short(x), "y": _short(y), "width": _short(width), "height": _short(height)}
    faint = {} if opacity == 1 else {"fill-opacity": _short(opacity)}
    return Shape("rect", {**place, "style": f"fill:var(--{colour})", **faint}, note)


def dot(x: float, y: float, radius: float, colour: str, note: str = "") -> Shape:
    """Returns a filled circle."""
    place = {"cx": _short(x), "cy": _short(y), "r": _short(radius)}
    return Shape("circle", {**place, "style": f"fill:var(--{colour})"}, note)


def text(x: float, y: float, text: str, anchor: str = "start", colour: str = "muted", size: float = 11.0) -> Shape:
    """Returns a text line.

    Args:
        x: Pixel of the anchor.
        y: Pixel of the baseline.
        anchor: start, middle or end.
        size: Of the font, in pixels.
    """
    style = f"fill:var(--{colour});font-size:{_short(size)}px"
    return Shape("text", {"x": _short(x), "y": _short(y), "text-anchor": anchor, "style": style}, text=text)


def _stroke(colour: str, width: float) -> str:
    return f"stroke:var(--{colour});stroke-width:{_short(width)}"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over an axis, as shapes, and as numbers that the page's script redraws."""

    shapes: tuple[Shape, ...]
    numbers: str  # JSON with axes, curves and mark, written by `charts.curves`


@dataclass(frozen=True, slots=True)
class FigureLayer:
    """A set of shapes. The page shows one set at a time."""

    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with a title and a caption."""

    name: str  # file name, and the element's id in the page
    title: str
    caption: str
    height: float
    shapes: tuple[Shape, ...]
    plot: Plot | None = None
    layers: tuple[FigureLayer, ...] = ()  # initially, the first one is visible

    @property
    def view_box(self) -> str:
        """The figure's SVG `viewBox`."""
        return f"0 0 {_short(WIDTH)} {_short(self.height)}"
