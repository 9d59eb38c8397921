"""Each rank's time, by epoch and in total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gnnkit.leader.epochs import short
from gnnkit.utils.documents import number
from gnnkit_report.charts import MOST_BARS, Part, bars, legend, rank_names
from gnnkit_report.drawing import WIDTH, Figure, Shape, box, strokes, text
from gnnkit_report.run import KINDS, RunFiles, numbers

COLOURS = {"compute": "c4", "exchange": "c5", "sync": "c6", "wait": "c3"}  # distinct from the colours of splits
MOST_BINS, MOST_RANKS = 60, 16  # limits of the timeline
_ROW, _LEFT, _TOP = 46.0, 56.0, 30.0

Seconds = list[dict[str, float]]  # seconds by kind, for each rank


def seconds(epoch: Mapping[str, Any]) -> Seconds:
    """Returns an epoch's seconds by rank, empty for a damaged line."""
    columns = {kind: numbers(epoch.get(f"seconds_{kind}")) for kind in KINDS}
    if len({len(values) for values in columns.values()}) != 1:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _epochs(run: RunFiles) -> list[Seconds]:
    return [ranks for epoch in run.epochs if (ranks := seconds(epoch))]


def totals(run: RunFiles) -> Seconds:
    """Adds up all epochs' seconds by rank."""
    epochs = _epochs(run)
    count = max(map(len, epochs), default=0)
    return _add_up([epoch for epoch in epochs if len(epoch) == count])


def shares(run: RunFiles) -> dict[str, float]:
    """Returns each kind's share of all ranks' time, empty without epochs."""
    total = totals(run)
    everything = sum(sum(rank.values()) for rank in total)
    if not everything:
        return {}
    return {kind: sum(rank[kind] for rank in total) / everything for kind in COLOURS}


def drawings(run: RunFiles) -> list[Figure]:
    """Draws the time by epoch and the run's total time, by rank."""
    epochs = _epochs(run)
    total = totals(run)
    if not total:
        return []
    parts = [Part(kind, tuple(rank[kind] for rank in total[:MOST_BARS]), tint) for kind, tint in COLOURS.items()]
    caption = "Seconds of all training steps. Exchange and sync include waiting for slower ranks."
    return [
        _by_epoch([epoch for epoch in epochs if len(epoch) == len(total)], run),
        bars("time", "Where the time went", caption, rank_names(len(total)), parts, "seconds"),
    ]


def _by_epoch(epochs: Sequence[Seconds], run: RunFiles) -> Figure:
    """Draws a row for each rank, with a stacked column for each epoch."""
    size = -(-len(epochs) // MOST_BINS)
    bins = [_add_up(epochs[first : first + size]) for first in range(0, len(epochs), size)]
    widths = [len(epochs[first : first + size]) for first in range(0, len(epochs), size)]
    ranks = _busiest_ranks(bins)
    heights = [
        max(sum(times[rank].values()) / width for rank in ranks) for times, width in zip(bins, widths, strict=True)
    ]
    highest = max(heights[1:] or heights)  # the first epoch also builds buffers
    step = (WIDTH - _LEFT - 10) / len(bins)
    shapes, _ = legend(list(COLOURS.items()), _LEFT)
    for row, rank in enumerate(ranks):
        low = _TOP + _ROW * (row + 1) - 6
        shapes += [
            text(_LEFT - 6, low - 12, f"rank {rank}", "end"),
            strokes([((_LEFT, low), (WIDTH - 10, low))], "grid"),
        ]
        for index, (times, width) in enumerate(zip(bins, widths, strict=True)):
            shapes += _column(times[rank], _LEFT + step * index, low, step, highest * width)
    low = _TOP + _ROW * len(ranks) + 8
    first, last = (number(run.epochs[index].get("epoch")) or 0 for index in (0, -1))
    shapes += [text(_LEFT, low, f"epoch {first + 1:.0f}"), text(WIDTH - 10, low, f"{last + 1:.0f}", "end")]
    limit = "" if len(ranks) == len(bins[0]) else f" The {len(ranks)} busiest of {len(bins[0])} ranks."
    cut = " The first column is higher than shown." if heights[0] > highest else ""
    column = "A column is an epoch." if size == 1 else f"A column is the mean of {size} epochs."
    caption = f"{column} The full height is {short(1e3 * highest)} ms.{cut}{limit}"
    return Figure("timeline", "Timeline of every rank", caption, low + 8, tuple(shapes))


def _column(parts: Mapping[str, float], x: float, low: float, step: float, highest: float) -> list[Shape]:
    boxes, y = [], low
    for kind, tint in COLOURS.items():
        height = min(parts[kind] / max(highest, 1e-12) * (_ROW - 10), y - (low - _ROW + 10))
        if height > 0.05:
            y -= height
            boxes.append(box(x, y, max(step - 0.6, 0.6), height, tint))
    return boxes


def _busiest_ranks(bins: Sequence[Seconds]) -> list[int]:
    """Returns the ranks to draw: all, or the busiest."""
    busy = [sum(times[rank]["compute"] for times in bins) for rank in range(len(bins[0]))]
    return sorted(sorted(range(len(busy)), key=lambda rank: -busy[rank])[:MOST_RANKS])


def _add_up(epochs: Sequence[Seconds]) -> Seconds:
    count = len(epochs[0]) if epochs else 0
    return [{kind: sum(epoch[rank][kind] for epoch in epochs) for kind in COLOURS} for rank in range(count)]
