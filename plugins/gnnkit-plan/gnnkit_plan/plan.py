"""job=plan: words, seconds and memory of an epoch on every layout."""

from __future__ import annotations

from dataclasses import replace

from gnnkit.config.settings import AUTO, Settings
from gnnkit.exchange import RowExchange
from gnnkit.jobs.models import create_steps
from gnnkit.jobs.order import Order
from gnnkit.prepare.run_partition import overrides
from gnnkit.result.result import Result
from gnnkit.utils.approximate import SAVES_BYTES
from gnnkit_plan.candidates import CHOSEN, alternatives, auto_names, candidates
from gnnkit_plan.decide import FULL, SAMPLED, why_layout, with_strategy
from gnnkit_plan.layout import LayoutFigures, select_layout, table
from gnnkit_plan.layouts import Layouts, can_try, compare_layouts, is_elsewhere

PAYS = 0.2  # share of exchange above which fewer words save more than balanced edges


def plan(order: Order) -> Result:
    """Compares layouts for the workers and the model, and recommends one.

    The words, bytes and messages of one training step are counted exactly, after the
    first step of the run. Time and memory of a few layouts are measured, and memory of
    the others is predicted from these. Raises `UserError` if the configured layout is
    impossible. Other impossible layouts are left out.
    """
    settings = order.settings
    if settings.strategy.name == AUTO:
        settings = with_strategy(settings, FULL)
        order = replace(order, settings=settings)
    is_open = settings.partition.nodes.name == AUTO
    sections = candidates(settings.workers, auto_names(), grids=True) if is_open else alternatives(settings)
    layouts = compare_layouts(order, sections)
    best = select_layout(layouts.by_name, layouts.room)
    choice = best if is_open else CHOSEN
    if best is None:
        reason = f"no layout fits the memory: use more workers, or strategy={SAMPLED}"
    else:
        reason = f"recommended: {why_layout(sections, layouts, best)}"
    lines = [*layouts.about, *table(layouts.by_name, layouts.room), *_source(order, layouts), *_scheme(order)]
    if choice is not None:
        lines += _pays(settings, layouts, layouts.by_name[choice])
    figures = {
        "job": "plan",
        "model": order.source.name,
        "choice": choice,
        "why": reason,
        "layouts": {
            name: layout.to_dict() | {"overrides": overrides(sections[name])}
            for name, layout in layouts.by_name.items()
        },
    }
    return Result("plan", figures, "\n".join([*lines, reason]))


def _source(order: Order, layouts: Layouts) -> list[str]:
    """Describes the origin of time and memory."""
    by_name, bandwidth = layouts.by_name, order.settings.plan.bandwidth
    if any(layout.trial for layout in by_name.values()):
        names = [name for name, layout in by_name.items() if layout.trial is None]
        note = f"; {', '.join(names)}: not tried, memory is predicted from the others" if names else ""
        return [f"seconds and memory are those of a few epochs on this machine{note}"]
    lines = ["memory is three times the counted tensors, as operations need more, and 0.45 GB for the process"]
    if not can_try(order):
        return lines
    if bandwidth is None:
        return [*lines, "plan.bandwidth=GB/s predicts the seconds of communication"]
    durations = (f"{name} {layout.bytes_sent['max'] / (bandwidth * 1e9):.3g} s" for name, layout in by_name.items())
    return [*lines, f"communication of an epoch at plan.bandwidth={bandwidth:g} GB/s: {', '.join(durations)}"]


def _scheme(order: Order) -> list[str]:
    """Describes how an approximate scheme's bytes differ from the exact counts."""
    strategy, sync = create_steps(order.settings, order.source)
    keys = [line.partition(":")[0] for line in (*strategy.costs().splitlines(), *sync.costs().splitlines())]
    exact = "words and seconds" if strategy.finishes == "always" or is_elsewhere(order.settings) else "words"
    line = f"{exact} are those of exact exchange, and {', '.join(keys)} sends fewer bytes (benchmarks/schedules.md)"
    return [line] if keys else []


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
