"""Suggestions for further runs, based on a run's figures."""

from __future__ import annotations

from collections.abc import Iterator

from gnnkit.utils.approximate import SAVES_BYTES
from gnnkit.utils.documents import number
from gnnkit_report.learning import best_of, main_figure, points_of
from gnnkit_report.run import RunFiles, section
from gnnkit_report.timeline import shares

# Thresholds for shares of the time, balances and gaps.
EXCHANGE, WAIT, SYNC, BALANCE = 0.3, 0.1, 0.25, 1.25
GAP, UNDERFIT, LATE = 0.1, 0.7, 0.9
LONG = 10.0  # seconds of training from which faster settings pay
SETUP = 2.0  # seconds of set-up per second of training


def suggestions(run: RunFiles) -> list[str]:
    """Returns sentences that name figures and keys, or an empty list."""
    training = run.number("phases", "training") or run.number("seconds_total") or 0.0
    faster = [*_speed(run), *_balance(run)] if training >= LONG else []
    return [*_failures(run), *faster, *_fit(run), *_others(run)]


def _failures(run: RunFiles) -> Iterator[str]:
    lost_workers, skipped_steps = run.result.get("lost_workers"), run.number("skipped_steps") or 0
    if isinstance(lost_workers, list) and lost_workers:
        yield f"{len(lost_workers)} workers were lost: see the run's standard error for the cause."
    if skipped_steps:
        yield f"{skipped_steps:.0f} steps were skipped because of non-finite numbers: try a smaller trainer.lr, or trainer.clip_norm=1."


def _speed(run: RunFiles) -> Iterator[str]:
    by_kind, keys = shares(run), section(run, "strategy")
    exchange, sync = by_kind.get("exchange", 0), by_kind.get("sync", 0)
    wait = max(run.number("wait_share") or 0, by_kind.get("wait", 0))
    fewer = ["a larger strategy.batch_size exchanges and synchronises less often"] * ("batch_size" in keys)
    if exchange > EXCHANGE:
        is_cut = run.result.get("nodes") == "metis"
        nodes = [] if is_cut else ["partition.nodes=metis cuts fewer edges (install gnnkit-metis)"]
        cheaper = fewer or [SAVES_BYTES] * ("quantized" not in str(run.result.get("exchange")))
        yield f"Exchange takes {exchange:.0%} of the time: {'; '.join([*nodes, *cheaper]) or 'use fewer workers'}."
    if wait > WAIT:
        prefetch = ["a larger strategy.prefetch"] * ("prefetch" in keys)
        fanouts = ["smaller sampler.fanouts"] * ("fanouts" in section(run, "sampler"))
        yield f"Workers wait {wait:.0%} of the time for batches: try {' or '.join(['more threads', *prefetch, *fanouts])}."
    if sync > SYNC:
        local = ["strategy.local_iterations=4 synchronises less often (not exact)"] * ("local_iterations" in keys)
        cures = ", or ".join([*fewer, *local, "use fewer workers"])
        yield f"Synchronisation takes {sync:.0%} of the time, including waits for slower ranks: {cures}."


def _balance(run: RunFiles) -> Iterator[str]:
    worst = run.number("balance", "work_mean") or run.number("balance", "edges") or 1.0
    if worst > BALANCE:
        yield f"The busiest worker has {worst:.2f} times the mean work: try partition.nodes=balanced, or partition=auto."
    stragglers = run.result.get("stragglers")
    if isinstance(stragglers, dict) and stragglers:
        workers = ", ".join(str(name) for name in list(stragglers)[:5])
        yield f"{workers} computed slower than the others: check for other load on that machine, or set threads so that ranks do not share cores."


def _fit(run: RunFiles) -> Iterator[str]:
    name = main_figure(run)
    if name is None:
        return
    metric = name.removeprefix("val_")
    train, val = run.number(f"train_{metric}"), run.number(name)
    if train is not None and val is not None and metric == "accuracy":
        if train - val > GAP:
            yield f"train_{metric} {train:.3f} is far above {name} {val:.3f}, so the model overfits: try {_against_overfitting(run)}."
        elif train < UNDERFIT:
            yield f"train_{metric} is {train:.3f}, so the model underfits: try a larger model.hidden, more epochs, or a larger trainer.lr."
    best, limit = best_of(run), number(section(run, "trainer").get("max_epochs"))
    if best is None or limit is None or run.result.get("stopped") or not LATE * limit < best.epoch <= limit:
        return
    if all(value != best.value for epoch, value in points_of(run, best.name) if epoch <= LATE * limit):
        yield f"{best.name} was best in epoch {best.epoch:g} of {limit:g}: more epochs may help, trainer.max_epochs={2 * limit:g}."


def _against_overfitting(run: RunFiles) -> str:
    """Lists keys that the run has not changed yet."""
    model, trainer = (section(run, name) for name in ("model", "trainer"))
    dropout = number(model.get("dropout"))
    keys = [] if dropout is None or dropout >= 0.7 else [f"model.dropout={0.5 if dropout < 0.5 else 0.7}"]
    keys += [] if trainer.get("weight_decay") else ["trainer.weight_decay=0.0005"]
    keys += [] if trainer.get("patience") else ["trainer.patience=5"]
    return " or ".join(keys) or "a smaller model.hidden, or more training nodes"


def _others(run: RunFiles) -> Iterator[str]:
    setup, training = run.number("seconds_setup"), run.number("phases", "training")
    is_uncached = bool(run.settings) and run.settings.get("cache") in (None, False)
    if setup and training and setup > SETUP * training and setup > 5 and is_uncached:
        yield f"Set-up took {setup:.1f} s, and training {training:.1f} s: a cached partition (cache=auto) shortens the next run."
    if run.result.get("exact") is False:
        yield "The steps differ from single-rank training. inexact in result.json gives the reasons, and job=verify measures the difference."
