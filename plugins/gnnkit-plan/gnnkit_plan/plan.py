"""job=plan: words, seconds and memory of an epoch on every layout."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from gnnkit.config.settings import AUTO, Settings
from gnnkit.exchange import RowExchange
from gnnkit.jobs.models import create_steps
from gnnkit.jobs.order import Order
from gnnkit.prepare.assign import overrides
from gnnkit.result.result import Result
from gnnkit.utils.approximate import SAVES_BYTES
from gnnkit.utils.ranges import num_cores
from gnnkit_plan.candidates import BESIDE, CHOSEN, auto_names, candidates, measure_candidates, measure_configured
from gnnkit_plan.decide import FULL, why_layout, with_strategy
from gnnkit_plan.layout import LayoutFigures, merge_equal, select_layout, table
from gnnkit_plan.layouts import Layouts, can_try, compare_layouts, is_elsewhere

ALONE = "one worker"  # name of its row
# Bytes of 100 epochs over those of exact training, with parts of METIS, by scheme.
SHARES = {"quantized": 0.32, "sampled": 0.37, "pipelined": 0.68, "async": 0.39, "ssp": 0.39, "4": 0.48}
PAYS = 0.2  # share of exchange above which fewer words save more than balanced edges


def plan(order: Order) -> Result:
    """Compares layouts for the workers and the model, and recommends one.

    The words, bytes and messages of one training step or program step are counted
    exactly, after the first step of the run. Time and memory of a few layouts are
    measured, and memory of the others is predicted from these. Raises `UserError` if
    the configured layout is impossible. Other impossible layouts are left out.
    """
    settings = order.settings
    if settings.strategy.name == AUTO:
        settings = with_strategy(settings, FULL)
        order = replace(order, settings=settings)
    if settings.partition.nodes.name == AUTO:
        sections = candidates(settings.workers, auto_names(), grids=True)
        layouts = compare_layouts(order, functools.partial(measure_candidates, sections=sections))
        keys = {name: {"overrides": overrides(section)} for name, section in sections.items()}
        choice = select_layout(layouts.by_name, replace(layouts.room, size=float("inf")))
        assert choice is not None
        reason = f"partition=auto takes {why_layout(sections, layouts, choice)}"
    else:
        layouts, choice, keys = compare_layouts(order, measure_configured), CHOSEN, {}
        reason = _recommend(settings, layouts)
    alone = _alone(order) if can_try(order) and not is_elsewhere(settings) and settings.workers > 1 else None
    rows, layout = merge_equal(layouts.by_name), layouts.by_name[choice]
    lines = [
        *layouts.about,
        *table(rows if alone is None else {**rows, ALONE: alone}, layouts.room),
        *_source(order, rows),
        *_scheme(order),
        *_pays(settings, layouts, layout),
        reason,
        *_against(alone, layout),
    ]
    figures = {
        "job": "plan",
        "model": order.source.name,
        "choice": choice,
        "why": reason,
        "layouts": {name: layout.to_dict() | keys.get(name, {}) for name, layout in layouts.by_name.items()},
        "one_worker": None if alone is None else alone.to_dict(),
    }
    return Result("plan", figures, "\n".join(lines))


def _alone(order: Order) -> LayoutFigures:
    """Returns the figures of one worker with the full graph."""
    (partition,) = candidates(1, ["contiguous"], grids=False).values()
    threads = min(order.settings.threads * order.settings.workers_here, num_cores())
    settings = replace(order.settings, workers=1, processes=None, threads=threads, partition=partition)
    return compare_layouts(replace(order, settings=settings), measure_configured).by_name[CHOSEN]


def _source(order: Order, layouts: Mapping[str, LayoutFigures]) -> list[str]:
    """Describes the origin of time and memory."""
    if not can_try(order):
        return ["memory is counted in tensors, and doubled, as operations need as much again"]
    if not is_elsewhere(order.settings):
        names = [name for name, layout in layouts.items() if layout.trial is None]
        note = f"; {', '.join(names)}: not tried, memory is predicted from the others" if names else ""
        return [f"seconds and memory are those of a few epochs on this machine{note}"]
    lines = ["memory is predicted from a step of the busiest rank on this machine"]
    if (bandwidth := order.settings.plan.bandwidth) is None:
        return [*lines, "plan.bandwidth=GB/s predicts the seconds of communication"]
    rate = bandwidth * 1e9
    durations = ", ".join(f"{name} {layout.bytes_sent['max'] / rate:.3g} s" for name, layout in layouts.items())
    return [*lines, f"communication of an epoch at plan.bandwidth={bandwidth:g} GB/s: {durations}"]


def _scheme(order: Order) -> list[str]:
    """Describes how an approximate scheme's bytes differ from the exact counts."""
    strategy, sync = create_steps(order.settings, order.source)
    keys = [line.partition(":")[0] for line in f"{strategy.costs()}\n{sync.costs()}".split("\n")]
    shares = {key: SHARES.get(key.rpartition("=")[2]) for key in keys if key}
    sent = [f"{key} sends {f'about {share:g} of these' if share else 'fewer'} bytes" for key, share in shares.items()]
    exact = "words and seconds" if strategy.finishes == "always" or is_elsewhere(order.settings) else "words"
    line = f"{exact} are those of exact exchange; by default, {', '.join(sent)} (benchmarks/schedules.md)"
    return [line] if sent else []


def _pays(settings: Settings, layouts: Layouts, layout: LayoutFigures) -> list[str]:
    """Describes whether words or compute determine a layout's time."""
    if layout.trial is None or not layout.words["max"]:
        return []
    exchange, section = getattr(settings.create_strategy(), "exchange", RowExchange()), settings.partition
    tries = ["partition=auto", *["partition.border=min_words"] * ("min_words" not in section.border)]
    tries += ["grids of several columns"] * (layout.grid[1] == 1 and not exchange.needs_in_edges)
    words = "words dominate" if section.nodes.name == AUTO else f"reduce words: try {', '.join(tries)}"
    bottleneck = words if layout.trial.exchange > PAYS else "compute dominates: balance edges rather than words"
    degree = layouts.num_edges / max(layouts.num_nodes, 1)
    line = f"mean degree {degree:.1f}: exchange is {layout.trial.exchange:.0%} of the step, {bottleneck}"
    return [line, *[SAVES_BYTES] * (exchange.codec() is None)]


def _against(alone: LayoutFigures | None, layout: LayoutFigures) -> list[str]:
    """Describes whether several workers are faster than one."""
    if alone is None or alone.seconds is None or layout.seconds is None:
        return []
    single, several = alone.seconds, layout.seconds
    verdict = f"the workers are {single / several:.1f} times as fast" if several < single else "workers=1 is no slower"
    return [f"one worker takes {single:.4g} s an epoch, the chosen layout {several:.4g} s: {verdict}"]


def _recommend(settings: Settings, layouts: Layouts) -> str:
    """Describes which layout is best, and which one moves the fewest words."""
    by_name = layouts.by_name
    best = select_layout(by_name, layouts.room)
    advice = (
        "none fits the memory: use more workers, or strategy=individual_sample"
        if best is None
        else f"partition={best}"
        if best in BESIDE
        else f"partition.grid={settings.partition.grid if best == CHOSEN else best}"
    )
    fewest = min(by_name, key=lambda name: by_name[name].words["max"])
    words, least = (by_name[name].words["max"] for name in (CHOSEN, fewest))
    fewest_words = (
        "no layout moves fewer words to its busiest rank"
        if words == least
        else f"{fewest} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {words:,}"
    )
    return f"recommended: {advice}; {fewest_words}"
