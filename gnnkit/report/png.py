"""Paints a figure as PNG, with Pillow: small, quick to import, and no fonts to find."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from gnnkit.report.drawing import WIDTH, Box, Dot, Figure, Line, Strokes, Text
from gnnkit.report.style import LIGHT

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SCALE = 2  # pixels of the file for one of the page
_FINER = 2  # painted so many times larger, then averaged
_Colour = tuple[int, int, int]
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def png(figure: Figure) -> bytes:
    """Returns the drawing as a file, in the colours of the light page."""
    from PIL import Image, ImageDraw

    scale = SCALE * _FINER
    image = Image.new("RGB", (round(WIDTH * scale), round(figure.height * scale)), _rgb("paper"))
    brush = ImageDraw.Draw(image)
    for shape in figure.shown:
        _paint(brush, shape, scale)
    buffer = io.BytesIO()
    fine = image.reduce(_FINER).quantize(128, Image.Quantize.MAXCOVERAGE)  # faster than the default, and nearer
    fine.save(buffer, "PNG")
    return buffer.getvalue()


def _paint(brush: ImageDraw, shape: Any, scale: int) -> None:
    match shape:
        case Line():
            points = [(x * scale, y * scale) for x, y in shape.points]
            brush.line(points, _rgb(shape.colour), max(round(shape.width * scale), 1), joint="curve")
        case Strokes():
            fill = _rgb(shape.colour, shape.opacity)
            for (a, b), (c, d) in shape.ends:
                brush.line((a * scale, b * scale, c * scale, d * scale), fill, max(round(shape.width * scale), 1))
        case Box():
            _rectangle(brush, shape, scale)
        case Dot():
            left, top = (shape.x - shape.radius) * scale, (shape.y - shape.radius) * scale
            right, low = (shape.x + shape.radius) * scale, (shape.y + shape.radius) * scale
            brush.ellipse((left, top, right, low), _rgb(shape.colour))
        case Text():
            place, text = (shape.x * scale, shape.y * scale), " ".join(shape.text.split())
            font = _font(shape.size * scale)
            brush.text(place, text, _rgb(shape.colour), font, anchor=_ANCHORS[shape.anchor])


def _rectangle(brush: ImageDraw, box: Box, scale: int) -> None:
    left, top = round(box.x * scale), round(box.y * scale)
    right, low = round((box.x + box.width) * scale), round((box.y + box.height) * scale)
    if right > left and low > top:
        brush.rectangle((left, top, right - 1, low - 1), _rgb(box.colour, box.opacity))


def _rgb(name: str, opacity: float = 1.0) -> _Colour:
    """Returns a colour, mixed with the paper."""
    parts = zip(_parts(LIGHT[name]), _parts(LIGHT["paper"]), strict=True)
    red, green, blue = (round(own * opacity + under * (1 - opacity)) for own, under in parts)
    return red, green, blue


def _parts(spelt: str) -> list[int]:
    return [int(spelt[index : index + 2], 16) for index in (1, 3, 5)]


_fonts: dict[float, Any] = {}


def _font(size: float) -> Any:
    from PIL import ImageFont

    if size not in _fonts:
        _fonts[size] = ImageFont.load_default(size)  # a font that Pillow brings
    return _fonts[size]
