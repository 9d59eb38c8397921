"""job=plan: words, seconds and memory of a step on every layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from gnnkit import plugins
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.decide import FULL, why_layout, with_strategy
from gnnkit.jobs.foresee import Foreseen, foresee, pays, table
from gnnkit.jobs.order import Order
from gnnkit.leader.choose import alternatives, assign, candidates, least, overrides, promising
from gnnkit.leader.result import Result
from gnnkit.partition.quality import Quality, measure
from gnnkit.settings import AUTO, Settings

CHOSEN = "chosen"


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
    if not settings.strategy.load().full_graph:
        raise UserError(
            f"job=plan: strategy={settings.strategy.name} exchanges no rows of layers, nothing is to be planned"
        )
    if settings.partition.nodes.name == AUTO:
        named = candidates(settings.workers, plugins.names("partition"), grids=True)
        foreseen = foresee(order, functools.partial(promising, named=named))
        chosen = least(foreseen.layouts, math.inf)
        assert chosen is not None
        for name, layout in foreseen.layouts.items():
            layout["overrides"] = overrides(named[name])
        why = f"partition=auto takes {why_layout(named, foreseen, chosen)}"
    else:
        foreseen, chosen = foresee(order, _layouts), CHOSEN
        why = _why(settings, foreseen)
    lines = [*foreseen.about, *table(foreseen.layouts), *pays(foreseen, chosen), why]
    figures = {
        "job": "plan",
        "model": order.source.name,
        "choice": chosen,
        "why": why,
        "machine": None if foreseen.machine is None else foreseen.machine.to_dict(),
        "layouts": foreseen.layouts,
    }
    return Result("plan", figures, "\n".join(lines))


def _layouts(settings: Settings, graph: Graph) -> Iterator[tuple[str, Quality]]:
    quality = measure(graph, assign(graph, settings.partition, settings.workers))
    yield CHOSEN, quality
    yield from alternatives(settings, graph, quality)


def _why(settings: Settings, foreseen: Foreseen) -> str:
    """Says whether another layout moves fewer words than the chosen one."""
    layouts = foreseen.layouts
    best = min(layouts, key=lambda name: (layouts[name]["words"]["max"], layouts[name]["memory"]))
    chosen, least = layouts[CHOSEN]["words"]["max"], layouts[best]["words"]["max"]
    if chosen == least:
        return f"partition.grid={settings.partition.grid}: no layout moves fewer words to its busiest rank"
    return f"{best} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {chosen:,}"
