"""job=plan: words, seconds and memory of an epoch on every layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import asdict, replace

from gnnkit.config.settings import AUTO, Settings
from gnnkit.graph import Graph
from gnnkit.jobs.decide import FULL, compared, why_layout, with_strategy
from gnnkit.jobs.layouts import Layouts, compare_layouts
from gnnkit.jobs.order import Order
from gnnkit.leader.plan.choose import (
    CHOSEN,
    Cutter,
    alternatives,
    candidates,
    measure_candidates,
    overrides,
    select_layout,
)
from gnnkit.leader.plan.layout import LayoutFigures, table
from gnnkit.partition.quality import Quality, measure
from gnnkit.result.result import Result
from gnnkit.utils.approximate import SAVES_BYTES
from gnnkit.utils.ranges import num_cores

ALONE = "one worker"  # name of its row
PAYS = 0.2  # share of exchange above which fewer words save more than balanced edges


def plan(order: Order) -> Result:
    """Compares layouts for the workers and the model, and selects the best.

    The words and messages of one training step or program step are counted exactly,
    after the first step of the run. Time and memory are measured, or predicted for
    another machine. Raises `UserError` if the configured layout is impossible. Other
    impossible layouts are left out.
    """
    settings = order.settings
    if settings.strategy.name == AUTO:
        settings = with_strategy(settings, FULL)
        order = replace(order, settings=settings)
    if settings.partition.nodes.name == AUTO:
        named = candidates(settings.workers, compared(), grids=True)
        layouts = compare_layouts(order, functools.partial(measure_candidates, named=named))
        by_name = {name: replace(layout, overrides=overrides(named[name])) for name, layout in layouts.by_name.items()}
        layouts = replace(layouts, by_name=by_name)
        choice = select_layout(by_name, math.inf)
        assert choice is not None
        why = f"partition=auto takes {why_layout(named, layouts, choice)}"
    else:
        layouts, choice = compare_layouts(order, _layouts), CHOSEN
        why = _why(settings, layouts.by_name)
    alone = _alone(order) if layouts.machine is not None and settings.workers > 1 else None
    rows = layouts.by_name if alone is None else {**layouts.by_name, ALONE: alone}
    chosen = layouts.by_name[choice]
    lines = [*layouts.about, *table(rows), *_source(layouts), *_pays(layouts, chosen), why, *_against(alone, chosen)]
    figures = {
        "job": "plan",
        "model": order.source.name,
        "choice": choice,
        "why": why,
        "machine": None if layouts.machine is None else asdict(layouts.machine),
        "layouts": {name: layout.to_dict() for name, layout in layouts.by_name.items()},
        "one_worker": None if alone is None else alone.to_dict(),
    }
    return Result("plan", figures, "\n".join(lines))


def _layouts(settings: Settings, graph: Graph) -> Iterator[tuple[str, Quality]]:
    cutter = Cutter(graph, settings.workers)
    quality = measure(graph, cutter.cut(settings.partition))
    yield CHOSEN, quality
    yield from alternatives(settings, cutter, quality)


def _alone(order: Order) -> LayoutFigures:
    """Returns the figures of one worker with the full graph."""
    (partition,) = candidates(1, ["contiguous"], grids=False).values()
    threads = min(order.settings.threads * order.settings.workers_here, num_cores())
    settings = replace(order.settings, workers=1, processes=None, threads=threads, partition=partition)
    return compare_layouts(replace(order, settings=settings), _layouts).by_name[CHOSEN]


def _source(layouts: Layouts) -> list[str]:
    """Describes the origin of time and memory."""
    if layouts.machine is None:
        return []
    if layouts.by_formula:
        return [
            "seconds and memory follow a formula: steps of single ranks on this machine, plus messages times latency and "
            "bytes over bandwidth; every rank has its cores to itself"
        ]
    untried = [name for name, layout in layouts.by_name.items() if layout.timing is None]
    rest = f"; {', '.join(untried)}: not tried, too large or beyond the time for trials" if untried else ""
    return [f"seconds and memory are those of a few epochs on this machine{rest}"]


def _pays(layouts: Layouts, layout: LayoutFigures) -> list[str]:
    """Describes whether words or compute determine a layout's time."""
    if layout.timing is None or not layout.words["max"]:
        return []
    share = layout.timing.exchange / layout.timing.seconds
    what = (
        "reduce words: try partition=auto, partition.border=min_words, and grids of several columns"
        if share > PAYS
        else "compute dominates: balance edges rather than words"
    )
    degree = layouts.num_edges / max(layouts.num_nodes, 1)
    return [f"mean degree {degree:.1f}: exchange is {share:.0%} of the step, {what}", SAVES_BYTES]


def _against(alone: LayoutFigures | None, chosen: LayoutFigures) -> list[str]:
    """Describes whether several workers are faster than one."""
    if alone is None or alone.seconds is None or chosen.seconds is None:
        return []
    one, several = alone.seconds, chosen.seconds
    verdict = f"the workers are {one / several:.1f} times as fast" if several < one else "workers=1 is no slower"
    return [f"one worker takes {one:.4g} s an epoch, the chosen layout {several:.4g} s: {verdict}"]


def _why(settings: Settings, layouts: dict[str, LayoutFigures]) -> str:
    """Describes whether another layout moves fewer words than the selected one."""
    best = min(layouts, key=lambda name: (layouts[name].words["max"], layouts[name].memory))
    chosen, fewest = layouts[CHOSEN].words["max"], layouts[best].words["max"]
    if chosen == fewest:
        return f"partition.grid={settings.partition.grid}: no layout moves fewer words to its busiest rank"
    return f"{best} moves fewest words to its busiest rank, {fewest:,} in a step; the chosen layout {chosen:,}"
