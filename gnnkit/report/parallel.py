"""Parallel coordinates: a line for each run, across an axis for each key."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnkit.report.charts import clipped, legend, short_number
from gnnkit.report.drawing import CHAR, WIDTH, Figure, Shape, line, strokes, text
from gnnkit.report.importance import as_numbers

MOST_AXES, MOST_NAMES, MOST_LINES = 7, 12, 500
_LEFT, _TOP, _BOTTOM, _HEIGHT = 34.0, 48.0, 16.0, 300.0
_ORDERS = 30.0  # an axis is logarithmic if largest / smallest exceeds this
_KINDS = {"best": ("ink", 2.6), "best quarter": ("c5", 1.4), "others": ("muted", 0.6)}

_Tick = tuple[float, str]  # position on the axis from 0 (bottom) to 1, label


def parallel(
    keys: Sequence[str], main: str, lines: Sequence[tuple[Sequence[str], float]], notes: Sequence[str]
) -> Figure:
    """Draws runs as lines across axes for keys and, on the right, for the figure."""
    keys, lines, notes = list(keys[:MOST_AXES]), lines[:MOST_LINES], notes[:MOST_LINES]
    columns = [[values[index] for values, _ in lines] for index in range(len(keys))]
    placed = [_placed(column) for column in [*columns, [repr(score) for _, score in lines]]]
    step = (WIDTH - _LEFT - 60) / max(len(keys), 1)
    at = [_LEFT + step * index for index in range(len(keys) + 1)]
    shapes, _ = legend([(name, tint) for name, (tint, _) in _KINDS.items()], _LEFT)
    for rank, note in reversed(list(enumerate(notes))):  # draw the best run on top
        tint, width = _KINDS["best" if rank == 0 else "best quarter" if rank < len(lines) / 4 else "others"]
        points = [(x, _y(shares[rank])) for x, (shares, _) in zip(at, placed, strict=True)]
        shapes.append(line(points, tint, width, note))
    for index, (name, x, (_, ticks)) in enumerate(zip([*keys, main], at, placed, strict=True)):
        shapes += _axis(name, x, ticks, step, high=index % 2 == 0)
    caption = f"Each line is a run, from its keys to its {main} on the right. The best run has the strongest line."
    limit = f" {len(keys)} keys are shown." if len(keys) == MOST_AXES else ""
    return Figure("parallel", "Runs across keys", caption + limit, _HEIGHT, tuple(shapes))


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def _axis(name: str, x: float, ticks: Sequence[_Tick], room: float, *, high: bool) -> list[Shape]:
    """Draws an axis. `high` places its name on the upper of two lines."""
    title = clipped(name.rpartition(".")[2] or name, max(int(2 * room / CHAR) - 1, 6))
    axis = strokes([((x, _y(0)), (x, _y(1)))], "muted", 1.0)
    names = [
        text(x + 4, _y(share) + 4, clipped(label, max(int((room - 8) / CHAR), 3)), "start", "ink", 10)
        for share, label in ticks
    ]
    return [axis, text(x, _TOP - (18 if high else 7), title, "middle", "ink"), *names]


def _placed(values: Sequence[str]) -> tuple[list[float], list[_Tick]]:
    """Returns each value's place on its axis, from 0 to 1, and place names."""
    numbers = as_numbers(values)
    if numbers is None or len(set(numbers)) == 1:
        names = sorted(set(values))
        shares = {name: (index + 0.5) / len(names) for index, name in enumerate(names)}
        every = -(-len(names) // MOST_NAMES)
        return [shares[value] for value in values], [(shares[name], name) for name in names[::every]]
    low, high = min(numbers), max(numbers)
    is_log = low > 0 and high / low > _ORDERS
    scale = [math.log(value) for value in numbers] if is_log else numbers
    least, span = min(scale), max(scale) - min(scale)
    shares_of = [(value - least) / span for value in scale]
    ticks = dict(zip(numbers, shares_of, strict=True))
    if len(ticks) > 6:
        ticks = {low: 0.0, high: 1.0}
    return shares_of, [(share, short_number(value)) for value, share in ticks.items()]
