"""A figure as a list of shapes, in units of a pixel of the page."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 440.0  # of every figure: readable on a narrow window, three beside each other on a wide one
CHAR = 6.3  # mean width of a character of 11 pixels
Point = tuple[float, float]

# Names of colours: "ink", "muted", "grid", "paper", "shade" of a table, "c0" to "c9"
# for things. A split has one colour in all charts.
NUM_COLOURS = 10
SPLITS = {"train": "c0", "val": "c1", "test": "c2"}


def colour(index: int) -> str:
    """Returns the name of the colour of a thing. Colours repeat after the last."""
    return f"c{index % NUM_COLOURS}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.6
    note: str = ""  # shown under the pointer


@dataclass(frozen=True, slots=True)
class Strokes:
    """Many straight lines of one colour."""

    ends: tuple[tuple[Point, Point], ...]
    colour: str
    width: float = 0.6
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    note: str = ""  # shown under the pointer


@dataclass(frozen=True, slots=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    radius: float
    colour: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text. `anchor` is start, middle or end."""

    x: float
    y: float  # of the line that letters stand on
    text: str
    anchor: str = "start"
    colour: str = "muted"
    size: float = 11.0


Shape = Line | Strokes | Box | Dot | Text


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over an axis, as shapes, and as numbers that the page's script redraws."""

    shapes: tuple[Shape, ...]
    numbers: str  # JSON: axes, curves and the mark, as `charts.curves` writes them


@dataclass(frozen=True, slots=True)
class Layer:
    """Shapes of which the reader of a page sees one set at a time."""

    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with a title and a sentence."""

    name: str  # of the PNG, and of the element in the page
    title: str
    caption: str
    height: float
    shapes: tuple[Shape, ...]
    plot: Plot | None = None
    layers: tuple[Layer, ...] = ()  # the first one is shown at first

    @property
    def shown(self) -> tuple[Shape, ...]:
        """All shapes that are shown at first."""
        plotted = () if self.plot is None else self.plot.shapes
        return (*self.shapes, *plotted, *(self.layers[0].shapes if self.layers else ()))
