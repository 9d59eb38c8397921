"""Spells a figure as SVG. Colours are variables of the page's style."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnnkit.report.drawing import WIDTH, Box, Dot, Figure, Line, Shape, Strokes, Text
from gnnkit.report.markup import Markup, element


def svg(figure: Figure) -> Markup:
    """Returns the drawing as an element of a page."""
    parts = _spelt(figure.shapes)
    if figure.plot is not None:
        parts.append(element("g", *_spelt(figure.plot.shapes), class_="plot", data_numbers=figure.plot.numbers))
    for index, layer in enumerate(figure.layers):
        hidden = {"style": "display:none"} if index else {}
        parts.append(element("g", *_spelt(layer.shapes), class_="layer", **hidden))
    box = f"0 0 {_number(WIDTH)} {_number(figure.height)}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=f"{figure.title}. {figure.caption}")


def _spelt(shapes: Iterable[Shape]) -> list[Markup]:
    return [_SPELLERS[type(shape)](shape) for shape in shapes]


def _line(line: Line) -> Markup:
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in line.points)
    style = f"fill:none;{_stroke(line.colour, line.width)}"
    return element("polyline", *_note(line.note), points=points, style=style)


def _strokes(strokes: Strokes) -> Markup:
    path = "".join(f"M{_number(a)} {_number(b)}L{_number(c)} {_number(d)}" for (a, b), (c, d) in strokes.ends)
    return element("path", d=path, style=f"fill:none;{_stroke(strokes.colour, strokes.width)}", opacity=strokes.opacity)


def _box(box: Box) -> Markup:
    place = {name: _number(getattr(box, name)) for name in ("x", "y", "width", "height")}
    fill = f"fill:var(--{box.colour})"
    faint = {} if box.opacity == 1 else {"fill_opacity": _number(box.opacity)}
    return element("rect", *_note(box.note), **place, style=fill, **faint)


def _dot(dot: Dot) -> Markup:
    fill = f"fill:var(--{dot.colour})"
    return element("circle", *_note(dot.note), cx=_number(dot.x), cy=_number(dot.y), r=_number(dot.radius), style=fill)


def _text(text: Text) -> Markup:
    style = f"fill:var(--{text.colour});font-size:{_number(text.size)}px"
    return element("text", text.text, x=_number(text.x), y=_number(text.y), text_anchor=text.anchor, style=style)


_SPELLERS: dict[type, Callable[[Any], Markup]] = {Line: _line, Strokes: _strokes, Box: _box, Dot: _dot, Text: _text}


def _note(note: str) -> list[Markup]:
    return [element("title", note)] if note else []


def _stroke(colour: str, width: float) -> str:
    return f"stroke:var(--{colour});stroke-width:{_number(width)}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
