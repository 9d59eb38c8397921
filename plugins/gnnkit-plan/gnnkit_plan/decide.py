"""Resolves `auto` for the partition, strategy and workers, with a one-line reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gnnkit import config
from gnnkit.config.settings import (
    AUTO,
    FEW_EDGES,
    SMALL_EDGES,
    Choice,
    PartitionSettings,
    Settings,
    settle,
    with_choice,
    with_partition,
    with_workers,
)
from gnnkit.errors import UserError
from gnnkit.jobs.order import Order, write_configuration
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.progress import say
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.inputs import load
from gnnkit.prepare.run_partition import overrides
from gnnkit.prepare.steps import read, sampling_rule
from gnnkit.strategy import ExecutionStrategy
from gnnkit_plan.candidates import (
    CHOSEN,
    Candidates,
    auto_names,
    candidates,
    measure_candidates,
    slow_partitioners,
    words_of,
)
from gnnkit_plan.layout import MEMORY_SHARE, LayoutFigures, Room, select_layout, table
from gnnkit_plan.layouts import Layouts, can_try, compare_layouts

FULL, SAMPLED = "vertex_centric", "individual_sample"  # candidates of strategy=auto
_CHOSE = "the leader chose "
GAIN = 1.1  # minimum speed-up for selecting more workers
_PLAINEST = PartitionSettings(Choice("partition", "contiguous", {}), "1d", None, "none")


@dataclass(frozen=True, slots=True)
class _Decision:
    """Resolved settings, and the measured epoch time."""

    settings: Settings
    seconds: float | None = None  # per epoch. None: not measured
    num_edges: int = 0  # set together with `seconds`


def possible(settings: Settings) -> list[Settings]:
    """Lists the settings that `strategy=auto` may select."""
    if settings.strategy.name != AUTO:
        return [settings]
    return [with_strategy(settings, FULL), _with_sampling(settings)]


def _with_sampling(settings: Settings) -> Settings:
    """Selects the sampling strategy and a compatible partition."""
    keeps = settings.partition.nodes.name != AUTO and settings.partition.grid == "1d"
    return with_partition(with_strategy(settings, SAMPLED), settings.partition if keeps else _PLAINEST)


def with_strategy(settings: Settings, name: str) -> Settings:
    """Selects a strategy with its defaults, including its sampler."""
    brought = settle(config.compose([f"strategy={name}"]))
    settings = with_choice(settings, brought.strategy)
    return settings if settings.sampler or brought.sampler is None else with_choice(settings, brought.sampler)


def decide(order: Order, meanwhile: Callable[[], None] = lambda: None) -> Settings:
    """Resolves `auto` for workers, partition and strategy, and records the decision.

    A resumed run reuses its checkpoint's decision if the number of workers is equal.

    Args:
        order: The request, with the run folder.
        meanwhile: Called a few times a second.
    """
    settings = _apply_stored(order.settings)
    if settings.auto_workers is not None:
        settings = _with_workers(replace(order, settings=settings), meanwhile)
    elif settings.is_open:
        settings = _decide(replace(order, settings=settings), meanwhile).settings
    write_configuration(order.run_folder, settings.composed)
    return settings


def _apply_stored(settings: Settings) -> Settings:
    """Applies the decision of the run that wrote the checkpoint, where it fits."""
    if settings.trainer.resume is None:
        return settings
    from gnnkit.training import resume  # loads Lightning

    identity = resume.load(settings.trainer.resume)["identity"]
    run, layout = identity["run"], identity["layout"]
    if settings.auto_workers is not None:
        settings = replace(with_workers(settings, layout["workers"]), auto_workers=None)
    if settings.strategy.name == AUTO:
        settings = with_strategy(settings, run["strategy"])
    if settings.partition.nodes.name == AUTO and layout["workers"] == settings.workers:
        first = "partition.nodes."
        arguments = {key.removeprefix(first): value for key, value in layout.items() if key.startswith(first)}
        keys = {key: layout[f"partition.{key}"] for key in ("grid", "replication", "border")}
        nodes = Choice("partition", layout["partition.nodes"], arguments)
        settings = with_partition(settings, PartitionSettings(nodes, **keys))
    reason = f"{_describe_keys(settings)}: as decided in the run of {settings.trainer.resume}"
    return replace(settings, decided={"why": reason, "layouts": {}})


def _with_workers(order: Order, meanwhile: Callable[[], None]) -> Settings:
    """Selects the number of workers, and resolves the rest. Arguments as in `decide`.

    Starts with the fewest workers, and stops when more are not `GAIN` times as fast.
    """
    settings = order.settings
    auto = settings.auto_workers
    assert auto is not None
    if order.graph is not None and order.graph.num_edges <= FEW_EDGES and auto.counts[0] == 1:
        reason = _describe_few_edges(order.graph.num_edges)
        if order.graph.num_edges <= SMALL_EDGES and auto.threads == AUTO:
            order = replace(order, settings=replace(settings, auto_workers=replace(auto, threads=1)))
            reason += " or threads"
        return _take_workers(order, 1, reason, meanwhile)
    if not can_try(order) or (settings.strategy.name != AUTO and not settings.create_strategy().reads.all_edges):
        return _take_workers(order, auto.usual, _UNKNOWN, meanwhile)
    best, least_seconds, slower = order.settings, float("inf"), ""
    for workers in auto.counts:
        decision = _decide(replace(order, settings=with_workers(settings, workers)), meanwhile)
        if decision.seconds is None:
            return _take_workers(order, auto.usual, _UNKNOWN, meanwhile)
        if least_seconds < GAIN * decision.seconds:
            slower = f", workers={workers} {decision.seconds:.3g} s"
            break
        best, least_seconds = decision.settings, decision.seconds
        if workers == 1 and decision.num_edges <= FEW_EDGES:
            slower = f"; {_describe_few_edges(decision.num_edges)}"
            break
    return _with_reason(best, f"{least_seconds:.3g} s an epoch in a trial{slower}")


# Reason for the default number.
_UNKNOWN = "the default number, because trials measure only full-graph training of node tasks (job=compare: others)"


def _describe_few_edges(edges: int) -> str:
    return f"{edges:,} edges are too few for several workers"


def _take_workers(order: Order, workers: int, reason: str, meanwhile: Callable[[], None]) -> Settings:
    """Sets the number of workers, and resolves the rest."""
    settings = replace(with_workers(order.settings, workers), auto_workers=None)
    if settings.is_open:
        settings = _decide(replace(order, settings=settings), meanwhile).settings
    return _with_reason(settings, reason)


def _with_reason(settings: Settings, reason: str) -> Settings:
    """Prepends the reason for the number of workers."""
    decision = settings.decided or {"layouts": {}, "why": ""}
    why = _why(f"workers={settings.workers}: {reason}", decision["why"].removeprefix(_CHOSE))
    return replace(settings, auto_workers=None, decided={**decision, "why": why})


def _why(*reasons: str) -> str:
    """Joins the leader's reasons."""
    return f"{_CHOSE}{'; '.join(filter(None, reasons))}"


def _decide(order: Order, meanwhile: Callable[[], None]) -> _Decision:
    """Resolves everything except the number of workers. Arguments as in `decide`."""
    settings = order.settings
    full = with_strategy(settings, FULL) if settings.strategy.name == AUTO else settings
    strategy: ExecutionStrategy = full.create_strategy()
    is_named = settings.job.reads_checkpoint and settings.strategy.name != AUTO
    if not (order.source.trains and strategy.reads.all_edges) or is_named:
        return _Decision(_fewest_words(order, meanwhile))
    is_open = settings.partition.nodes.name == AUTO
    sections = candidates(settings.workers, auto_names(), grids=True) if is_open else {CHOSEN: settings.partition}
    layouts = compare_layouts(replace(order, settings=full), sections, meanwhile)
    by_name, room = layouts.by_name, layouts.room
    if not can_try(order) or AUTO not in (settings.strategy.name, settings.partition.nodes.name):
        room = replace(room, size=math.inf)
    figures = {name: layout.to_dict() for name, layout in by_name.items()}
    name = select_layout(by_name, room)
    if name is not None:
        rows = {key: entry for key, entry in by_name.items() if entry.trial is not None or key == name}
        say("\n".join(table(rows, layouts.room)))
        reasons = [why_layout(sections, layouts, name)] if is_open else []
        if settings.strategy.name == AUTO:
            fits = f"ranks take {_memory(by_name[name], room)}"
            fits = fits if can_try(order) else f"memory is not measured for task={settings.task.name}"
            reasons = [f"strategy={FULL}, whose {fits}", *reasons]
        decision = {"why": _why(*reasons), "layouts": figures, "chosen": name}
        resolution = replace(with_partition(full, sections[name]), decided=decision)
        return _Decision(resolution, by_name[name].seconds, layouts.num_edges)
    least = min(by_name.values(), key=room.needed)
    needs = f"{_memory(least, room)}, and a layout may fill {MEMORY_SHARE:.0%} of these"
    if settings.strategy.name != AUTO:
        raise UserError(
            f"partition=auto: no layout of strategy={full.strategy.name} fits: the ranks would take {needs}: choose "
            f"strategy={SAMPLED}, or more hosts"
        )
    reason = f"strategy={SAMPLED}, as the ranks of strategy={FULL} would take {needs}"
    return _Decision(replace(_with_sampling(settings), decided={"why": _why(reason), "layouts": figures}))


def _fewest_words(order: Order, meanwhile: Callable[[], None]) -> Settings:
    """Selects a partition by communication volume, for sampled steps and programs.

    Arguments as in `decide`.
    """
    settings = order.settings
    has_grids = not order.source.trains
    sections = candidates(settings.workers, auto_names(), grids=has_grids)
    words = run_in_child(_words, order, sections, patience=Patience.of(settings.timeout), meanwhile=meanwhile)
    name = min(words, key=words.__getitem__)
    fewest = f"{words[name]:,.0f} nodes of other ranks, fewest of {len(words)} layouts{'' if has_grids else ' on one column'}"
    reason = f"{overrides(sections[name])}: the busiest rank reads {fewest}"
    return replace(with_partition(settings, sections[name]), decided={"why": _why(reason), "layouts": {}})


def _words(order: Order, sections: Candidates) -> dict[str, float]:
    settings = order.settings
    graph = load(settings, order.graph)
    if order.source.trains and not settings.job.reads_checkpoint:
        graph, _ = read(settings, graph, relational=order.source.reads_relations, rule=sampling_rule(settings))
    return {name: words_of(quality) for name, quality in measure_candidates(settings, graph, sections).items()}


def why_layout(sections: Candidates, layouts: Layouts, name: str) -> str:
    """Describes the choice of a layout in a line that begins with its overrides.

    Args:
        sections: The candidates.
        layouts: The compared candidates.
        name: The choice.
    """
    layout, by_name = layouts.by_name[name], layouts.by_name
    text = f"{overrides(sections[name])}: "
    if layout.seconds is None:
        return f"{text}the busiest rank receives {layout.words['max']:,} words in a step, the fewest that fit"
    num_tried = sum(entry.trial is not None for entry in by_name.values())
    text += f"{layout.seconds:.3g} s an epoch in a trial, {num_tried} of {len(by_name)} counted layouts tried"
    slow = slow_partitioners(sections, layouts.num_edges)
    return f"{text}; {' and '.join(slow)} would take long, try partition={slow[0]} for many epochs" if slow else text


def _memory(layout: LayoutFigures, room: Room) -> str:
    demand, size = room.needed(layout), room.size
    return f"{demand:,.0f} bytes ({demand / 2**30:.2f} GiB) of {size:,.0f} available ({size / 2**30:.2f} GiB)"


def _describe_keys(settings: Settings) -> str:
    return f"strategy={settings.strategy.name} {overrides(settings.partition)}"
