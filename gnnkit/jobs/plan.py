"""job=plan: words, seconds and memory of a step on every layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gnnkit.config.settings import AUTO, Settings
from gnnkit.graph import Graph
from gnnkit.jobs.decide import FULL, compared, why_layout, with_strategy
from gnnkit.jobs.foresee import Foreseen, foresee, pays, table
from gnnkit.jobs.order import Order
from gnnkit.partition.quality import Quality, measure
from gnnkit.plan.choose import Cutter, alternatives, assign, candidates, least, overrides, promising
from gnnkit.ranges import num_cores
from gnnkit.result.result import Result

CHOSEN, ALONE = "chosen", "one worker"


def plan(order: Order) -> Result:
    """Compares the layouts for the workers, node assignment and model. Names the best.

    Counts the words and messages of one training step that exchanges, forward and
    backward, or of one step of a program. The step is not the first of the run. The
    counts are exact. Seconds and memory are predicted. Raises `UserError` for a chosen
    layout that cannot be. Leaves out other layouts that cannot be.
    """
    settings = order.settings
    if settings.strategy.name == AUTO:
        settings = with_strategy(settings, FULL)
        order = replace(order, settings=settings)
    if settings.partition.nodes.name == AUTO:
        named = candidates(settings.workers, compared(), grids=True)
        foreseen = foresee(order, functools.partial(promising, named=named))
        chosen = least(foreseen.layouts, math.inf)
        assert chosen is not None
        for name, layout in foreseen.layouts.items():
            layout["overrides"] = overrides(named[name])
        why = f"partition=auto takes {why_layout(named, foreseen, chosen)}"
    else:
        foreseen, chosen = foresee(order, _layouts), CHOSEN
        why = _why(settings, foreseen)
    alone = _alone(order) if foreseen.machine is not None and settings.workers > 1 else None
    rows = foreseen.layouts if alone is None else {**foreseen.layouts, ALONE: alone}
    lines = [*foreseen.about, *table(rows), *pays(foreseen, chosen), why, *_against(alone, foreseen.layouts[chosen])]
    figures = {
        "job": "plan",
        "model": order.source.name,
        "choice": chosen,
        "why": why,
        "machine": None if foreseen.machine is None else foreseen.machine.to_dict(),
        "layouts": foreseen.layouts,
        "one_worker": alone,
    }
    return Result("plan", figures, "\n".join(lines))


def _layouts(settings: Settings, graph: Graph) -> Iterator[tuple[str, Quality]]:
    cutter = Cutter(graph, settings.workers)
    quality = measure(graph, cutter.cut(settings.partition))
    yield CHOSEN, quality
    yield from alternatives(settings, cutter, quality)


def _alone(order: Order) -> dict[str, Any]:
    """Returns the figures of one worker, which holds the whole graph."""
    (partition,) = candidates(1, ["contiguous"], grids=False).values()
    threads = min(order.settings.threads * order.settings.workers_here, num_cores())
    settings = replace(order.settings, workers=1, processes=None, threads=threads, partition=partition)

    def whole(settings: Settings, graph: Graph) -> Iterator[tuple[str, Quality]]:
        yield ALONE, measure(graph, assign(graph, settings.partition, 1))

    figures: dict[str, Any] = foresee(replace(order, settings=settings), whole).layouts[ALONE]
    return figures


def _against(alone: dict[str, Any] | None, chosen: dict[str, Any]) -> list[str]:
    """Says in a line whether workers pay."""
    if alone is None:
        return []
    one, several = alone["seconds"], chosen["seconds"]
    verdict = f"the workers are {one / several:.1f} times as fast" if several < one else "workers=1 is no slower"
    return [f"one worker takes {one:.4g} s an epoch, the chosen layout {several:.4g} s: {verdict}"]


def _why(settings: Settings, foreseen: Foreseen) -> str:
    """Says whether another layout moves fewer words than the chosen one."""
    layouts = foreseen.layouts
    best = min(layouts, key=lambda name: (layouts[name]["words"]["max"], layouts[name]["memory"]))
    chosen, least = layouts[CHOSEN]["words"]["max"], layouts[best]["words"]["max"]
    if chosen == least:
        return f"partition.grid={settings.partition.grid}: no layout moves fewer words to its busiest rank"
    return f"{best} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {chosen:,}"
