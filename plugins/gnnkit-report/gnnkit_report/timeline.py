"""Each rank's time, by epoch and in total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnkit_report.charts import MOST_BARS, NUM_COLOURS, Chart, Curve, Part, bars, colour, curves, rank_names
from gnnkit_report.run import KINDS, RunFiles, numbers

COLOURS = {"compute": "c4", "exchange": "c5", "sync": "c6", "wait": "c3"}  # distinct from the colours of splits

Seconds = list[dict[str, float]]  # seconds by kind, for each rank


def seconds(epoch: Mapping[str, Any]) -> Seconds:
    """Returns an epoch's seconds by rank, empty for a damaged line."""
    columns = {kind: numbers(epoch.get(f"seconds_{kind}")) for kind in KINDS}
    if len({len(values) for values in columns.values()}) != 1:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _epochs(run: RunFiles) -> dict[float, Seconds]:
    """Returns the seconds by epoch, from 1, of the epochs with the most ranks."""
    epochs = {epoch["epoch"] + 1.0: ranks for epoch in run.epochs if (ranks := seconds(epoch))}
    count = max(map(len, epochs.values()), default=0)
    return {epoch: ranks for epoch, ranks in epochs.items() if len(ranks) == count}


def totals(run: RunFiles) -> Seconds:
    """Adds up all epochs' seconds by rank."""
    by_rank = zip(*_epochs(run).values(), strict=True)
    return [{kind: sum(epoch[kind] for epoch in epochs) for kind in COLOURS} for epochs in by_rank]


def shares(run: RunFiles) -> dict[str, float]:
    """Returns each kind's share of all ranks' time, empty without epochs."""
    total = totals(run)
    everything = sum(sum(rank.values()) for rank in total)
    if not everything:
        return {}
    return {kind: sum(rank[kind] for rank in total) / everything for kind in COLOURS}


def drawings(run: RunFiles) -> list[Chart]:
    """Draws the time by epoch and by rank."""
    epochs, total = _epochs(run), totals(run)
    if not total:
        return []
    busiest = sorted(range(len(total)), key=lambda rank: -total[rank]["compute"])[:NUM_COLOURS]
    kinds = [
        Curve(kind, [(at, sum(rank[kind] for rank in ranks) / len(ranks)) for at, ranks in epochs.items()], tint)
        for kind, tint in COLOURS.items()
    ]
    ranks = [
        Curve(f"rank {rank}", [(at, epoch[rank]["compute"]) for at, epoch in epochs.items()], colour(rank))
        for rank in sorted(busiest)
    ]
    limit = "" if len(ranks) == len(total) else f" The {len(ranks)} busiest of {len(total)} ranks."
    parts = [Part(kind, [rank[kind] for rank in total[:MOST_BARS]], tint) for kind, tint in COLOURS.items()]
    caption = "Seconds of all training steps. Exchange and sync include waiting for slower ranks."
    return [
        curves("timeline", "Time by epoch", "Seconds of an epoch, mean of the ranks.", kinds),
        curves("ranks", "Computation by epoch", f"Seconds of an epoch in which a rank computes.{limit}", ranks),
        bars("time", "Where the time went", caption, rank_names(len(total)), parts, "s"),
    ]
