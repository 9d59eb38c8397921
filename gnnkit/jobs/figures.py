"""The figures of `result.json`, by job."""

from __future__ import annotations

import math
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import LEADER, Survivors
from gnnkit.config.settings import AUTO
from gnnkit.engine import Tally
from gnnkit.errors import UserError
from gnnkit.jobs.outputs import Scores, write_rows
from gnnkit.jobs.rank_job import RankJob
from gnnkit.kernels.products import library
from gnnkit.launch.progress import warn
from gnnkit.leader.epochs import short
from gnnkit.leader.watch import WorkerState
from gnnkit.prepare.run_partition import MAX_RANKS
from gnnkit.result.figures import (
    Circumstances,
    Classes,
    EvaluationProtocol,
    Exactness,
    Load,
    Pace,
    Plugins,
    Progress,
    Resources,
    Restarts,
    Skipped,
    TrafficFigures,
    Verdict,
    merge,
)
from gnnkit.result.result import WORDS, versions
from gnnkit.sampler.targets import NODES
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit.task.classes import HALF
from gnnkit.training.exact_epochs import PARTS
from gnnkit.training.monitor import learned_nothing
from gnnkit.utils.documents import Json, read_or_empty
from gnnkit.utils.ranges import num_cores

if TYPE_CHECKING:
    from gnnkit.jobs.rank_run import RankRun


def plugins(job: RankJob, worker: Worker) -> Plugins:
    """Returns the names of the data set, the model and the other plugins."""
    settings = job.settings
    return Plugins(
        strategy=settings.strategy.name,
        sampler=None if settings.sampler is None else settings.sampler.name,
        exchange=None if settings.exchange is None else settings.exchange.name,
        partition=str(settings.partition.grid),
        nodes=settings.partition.nodes.name,
        grid=job.prepared.grid,
        world_size=worker.comm.world_size,
        dataset=settings.dataset.name,
        model=job.source.name,
        task=settings.task.name,
    )


def protocol(job: RankJob, worker: Worker, task: Task) -> EvaluationProtocol:
    """Returns which edges are held out, and what their evaluation reads."""
    rows = worker.rows if job.settings.job.needs_labels else NODES  # job=predict holds out no edges
    is_fresh = worker.samples_by_time or task.reads_events
    return EvaluationProtocol(rows.edge_split, "fresh" if is_fresh else "frozen" if rows.is_frozen else None)


def circumstances(job: RankJob) -> Circumstances:
    """Returns why the layout was chosen, the versions and the seed."""
    return Circumstances(job.prepared.why, versions() | {"products": library()}, job.settings.seed)


def by_name(task: Task, metrics: dict[str, float]) -> dict[str, float | None]:
    """Returns the task's figures by name.

    A figure is None if its split has no nodes. Optional metrics that were not measured
    are omitted.
    """
    missing_names = {f"{split}_{metric}" for split in task.splits for metric in task.metrics_of_some} - metrics.keys()
    return {name: metrics.get(name) for name in task.names if name not in missing_names}


def traffic(tally: Tally, repetitions: int, worker: Worker) -> TrafficFigures:
    """Returns the words and bytes of one epoch or step for each rank. Collective.

    Args:
        tally: TrafficFigures of this rank.
        repetitions: Number of epochs or steps in the tally.
        worker: This rank.
    """
    far = (count for (_, _, peer), count in tally.words.items() if peer not in worker.comm.beside)
    totals = {
        "words_gathered": tally.total("gather"),
        "words_reduced": tally.total("reduce"),
        "words_sliced": tally.total("slice"),
        "words_fetched": tally.total("fetch"),
        "words_between_processes": sum(far),
        "bytes_sent": tally.bytes_sent,
    }
    table = worker.comm.all_gather([count // max(repetitions, 1) for count in totals.values()])
    columns = dict(zip(totals, table.t().tolist(), strict=True))
    return TrafficFigures(**{name: max(values) for name, values in columns.items()}, per_rank=columns)


def words_between(tally: Tally, repetitions: int, worker: Worker) -> Tensor | None:
    """Returns the words of one epoch between each pair of ranks. Collective.

    Args:
        tally: TrafficFigures of this rank.
        repetitions: Number of epochs in the tally.
        worker: This rank.

    Returns:
        [from, to] int64 on the leader of at most `MAX_RANKS` ranks, else None.
    """
    num_ranks = worker.comm.world_size
    if num_ranks > MAX_RANKS:
        return None
    table = torch.zeros(num_ranks, num_ranks, dtype=torch.int64, device=worker.device)
    for (_, _, peer), count in tally.words.items():
        table[peer, worker.comm.rank] += count
    matrix = worker.comm.all_reduce(table) // max(repetitions, 1)
    return matrix if worker.comm.rank == LEADER else None


def collect(run: RankRun, scores: Scores) -> Json:
    """Returns the figures of completed training on the leader. Collective.

    The traffic matrix is quadratic in ranks, so it is written to a separate file.
    """
    job, worker, site, watch = run.job, run.worker, run.site, run.site.watch
    tally, num_epochs = run.strategy.tally, len(site.epoch_seconds)
    words = traffic(tally, num_epochs, worker)
    write_rows(run.folder / WORDS, words_between(tally, num_epochs, worker))
    skipped = Skipped(int(worker.comm.all_gather(run.guard.skipped_steps).max()), run.guard.rollbacks)
    if watch is None:
        return {}
    main_figure = {"name": run.task.progress, "lower_is_better": run.task.lower_is_better}
    seconds = site.epoch_seconds[1:] or site.epoch_seconds or [0.0]
    classes = Classes.of(scores.details, job.prepared.class_names)
    lost_ranks = sorted(worker.comm.lost) if isinstance(worker.comm, Survivors) else []
    return merge(
        plugins(job, worker),
        protocol(job, worker, run.task),
        Progress(num_epochs, watch.train_loss, watch.stragglers),
        by_name(run.task, scores.figures),
        Pace(statistics.median(seconds), main_figure, site.validations.time_to_accuracy),
        words,
        Load(watch.wait_share, {**job.prepared.balance, **watch.balance}),
        run.strategy.figures(),
        _resources(run, watch.states),
        circumstances(job),
        classes,
        run.figures.drift,
        skipped,
        run.sync.figures(),
        run.figures.exactness,
        _verdict(run, scores, classes, words),
        run.figures.selection,
        {"lost_workers": [f"rank {rank}" for rank in lost_ranks], "rebalanced": []},
        *(hook.figures() for hook in run.hooks),
        run.figures.tests,
        Restarts(),  # which the launching process replaces
    )


def _resources(run: RankRun, states: Sequence[WorkerState]) -> Resources:
    """Returns the resources that the run has used, and the prediction, if any."""
    parameter_counts = [parameter.numel() for parameter in run.module.model.parameters() if parameter.requires_grad]
    if run.module.learned is not None:
        parameter_counts.append(run.worker.shard.num_nodes * run.module.learned.width)
    phases = {**run.job.prepared.seconds, **run.site.seconds}
    prediction, measurement = _compare_prediction(run.job.settings.predicted, states, run.site.epoch_seconds[1:])
    return Resources(sum(parameter_counts), device_name(run.worker.device), phases, prediction, measurement)


def _compare_prediction(
    layout: Mapping[str, Any] | None, states: Sequence[WorkerState], seconds: Sequence[float]
) -> tuple[Mapping[str, object] | None, Mapping[str, object] | None]:
    """Returns the planned and the measured figures, or None if nothing was planned.

    Args:
        layout: Figures of the selected layout.
        states: Final states of all workers.
        seconds: Duration of each epoch after the first one.
    """
    if layout is None:
        return None, None
    prediction = {
        "seconds_per_epoch": layout["seconds"],
        "memory": layout["memory"],
        "bytes_sent": layout["bytes_sent"]["max"],
    }
    measurement = {
        "seconds_per_epoch": statistics.median(seconds) if seconds else None,
        "memory": max((state.memory for state in states), default=None),
        # The first step also sends rows that later steps reuse.
        "bytes_sent": max(state.bytes_sent for state in states) if seconds else None,
    }
    return prediction, measurement


def exactness(run: RankRun) -> Exactness:
    """Returns whether several ranks train the same model as one, with reasons.

    Prints the reasons that lie in the model, and the scheme's approximations. Raises
    `UserError` for a model whose results differ systematically, unless inexact=allow.
    """
    worker, settings, world_size = run.worker, run.job.settings, run.worker.comm.world_size
    costs, approximate = run.strategy.costs(), _approximations(run)
    reasons = [line.partition(",")[0] for line in approximate]
    if world_size == 1:
        return Exactness(not reasons, reasons, None, approximate)
    if not run.sync.exact:
        reasons.append(f"sync={settings.sync.name}: its steps are not those of the exact gradient")
    elif (costs or not run.strategy.steps.drift) and run.job.alone(worker) is None:  # K=1 has no drift
        reasons.append(f"strategy={settings.strategy.name}: its steps depend on the number of workers")
    check = run.job.check_model(worker)
    if check.systematic and run.strategy.reads.all_edges and settings.inexact == "refuse":
        raise UserError(
            f"workers={world_size}: model {'; model '.join(check.systematic)}; or use workers=1; or set inexact=allow "
            "to train with results that depend on the number of workers"
        )
    for reason in check.reasons:
        reasons.append(f"model {reason}")
        _print_line(f"not exact on {world_size} workers: model {reason}")
    if check.unchecked is not None:
        _print_line(f"not checked whether the model is exact on {world_size} workers: {check.unchecked}")
    return Exactness(False if reasons else None if check.unchecked else True, reasons, check.unchecked, approximate)


def _approximations(run: RankRun) -> list[str]:
    """Returns the scheme's approximations. Prints them, and keys without effect."""
    costs, several = run.strategy.costs(), run.worker.comm.world_size > 1
    lines = [*costs.splitlines(), *run.sync.costs().splitlines()]
    has_batches = run.strategy.reads.sampler or not run.strategy.has_whole_steps  # approximate on one rank, too
    approximate = [line for line in lines if several or (has_batches and line in costs)]
    for line in lines:
        _print_line(line if line in approximate else f"{line.partition(':')[0]} has no effect with one worker")
    if not approximate and run.job.settings.trainer.exact_shares != AUTO:
        _print_line("trainer.exact_shares has no effect: no epoch is approximate")
    return approximate


def _verdict(run: RankRun, scores: Scores, classes: Classes, words: TrafficFigures) -> Verdict:
    """Returns which model was saved and whether it has learned. Called on the leader.

    Prints warnings, and what approximate training has measured.
    """
    trainer, task, rule, best = run.trainer, run.task, run.site.rule, run.site.validations.best
    saved_epoch = rule.best_epoch if rule is not None and rule.parameters is not None else trainer.current_epoch
    nothing = learned_nothing(task, scores.figures, scores.chance, trainer.current_epoch, trainer.global_step)
    schedule = _schedule(run)
    if run.figures.exactness.approximate:
        texts = [_describe_saved(run, scores, saved_epoch), *_describe_schedule(run, schedule)]
        if words.bytes_sent:
            texts.append(f"the busiest worker sent {short(words.bytes_sent)} bytes of rows per epoch")
        _print_line(f"approximate training: {'; '.join(texts)}")
    single = _single_class(classes.confusion, run.task.noun)
    if (line := _decision(classes)) is not None:
        _print_line(line)
    for warning in (nothing, single):
        if warning is not None:
            warn(warning)
    return Verdict(saved_epoch, best, schedule, nothing, single)


def _describe_saved(run: RankRun, scores: Scores, saved_epoch: int) -> str:
    """Compares the saved model with the best evaluation, if there is any."""
    rule, best, name = run.site.rule, run.site.validations.best, run.task.progress
    if rule is not None and rule.name in scores.figures and rule.name != name and (top := rule.best_so_far):
        name, best = rule.name, {"value": top.value, "epoch": top.epoch}
    if best is None or name not in scores.figures:
        return f"the saved model is of epoch {saved_epoch}"
    saved = f"the saved model, of epoch {saved_epoch}, has {name}={scores.figures[name]:.4g}"
    text = f"{saved}; the best evaluation was {name}={best['value']:.4g} in epoch {best['epoch']}"
    if math.isclose(scores.figures[name], best["value"], rel_tol=1e-5):  # evaluations are logged as float32
        return text if saved_epoch == best["epoch"] else f"{text}; of equal values, the later one is saved"
    by = f"{name} saves the best model" if rule is None else f"{rule.name} selects the saved model"
    return f"{text}; trainer.monitor={by}"


def _schedule(run: RankRun) -> Json | None:
    """Returns the numbers of exact and approximate epochs, with their metrics."""
    exact, validations, epochs = run.module.exact_epochs, run.site.validations, run.trainer.current_epoch
    if exact is None:
        return None
    parts = exact.parts(epochs)
    before, middle, since = (validations.within(parts[part]) for part in PARTS)
    last = replace(middle, looks=middle.looks[-1:])
    values = {"best_before": before.best, "best": middle.best, "last": last.best, "best_since": since.best}
    return {part: len(members) for part, members in parts.items()} | {"evaluations": values}


def _describe_schedule(run: RankRun, schedule: Json | None) -> list[str]:
    """Describes the measurements of `_schedule`."""
    exact, settings = run.module.exact_epochs, run.job.settings.trainer
    if schedule is None or exact is None:
        return []
    text = f"{schedule['approximate']} of {sum(schedule[part] for part in PARTS)} epochs were approximate"
    text += f", {schedule['synchronous']} of them with synchronous steps" if "synchronous" in schedule else ""
    values = schedule["evaluations"].items()
    if texts := [f"{figure['value']:.4g} {name.replace('_', ' ')}" for name, figure in values if figure]:
        text += f", with evaluations of {', '.join(texts)}"
    if run.trainer.current_epoch <= exact.phases.last < settings.max_epochs:
        text += f"; training ended before the {exact.kind} finish"
    return [text]


def _decision(classes: Classes) -> str | None:
    """Describes the threshold between two classes, if there is one."""
    if classes.threshold is None or classes.thresholds is None:
        return None
    ((name, threshold),) = classes.threshold.items()
    splits = [split for split in ("val", "test") if split in classes.thresholds]
    scores = []
    for split in splits:
        rows = {row["threshold"]: row for row in classes.thresholds[split]}
        row, usual = rows[threshold], rows[HALF]
        scores.append(
            f"{split} precision {row['precision']:.3f}, recall {row['recall']:.3f}, F1 {row['f1']:.3f} "
            f"({usual['f1']:.3f} from 0.5)"
        )
    return f"threshold: {name} is predicted from a probability of {threshold:.4g} on: {'; '.join(scores)}"


def _single_class(confusion: Mapping[str, Any] | None, noun: str) -> str | None:
    """Returns a warning if the model predicts one class only, and there are others.

    Args:
        confusion: `Classes.confusion`, with a row per true class.
        noun: What is predicted.
    """
    tables = [np.array(table) for name, table in (confusion or {}).items() if name != "classes"]
    if confusion is None or not tables:
        return None
    counts = sum(tables[1:], tables[0])
    predicted_classes, actual = np.flatnonzero(counts.sum(0)), counts.sum(1)
    if len(predicted_classes) > 1 or np.count_nonzero(actual) < 2:
        return None
    (single,) = predicted_classes
    share = 100 * actual[single] / actual.sum()
    return (
        f"the model predicts the class {confusion['classes'][single]} for every {noun} of the splits, {share:.1f} % of which "
        f"have it: try task.class_weights=balanced, or rank {noun}s by their probability (write=[probabilities])"
    )


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_CPUS = Path("/proc/cpuinfo")


def device_name(device: torch.device) -> str:
    """Returns the GPU's name, or the CPU's with the number of available cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {num_cores()} cores"


def _processor() -> str:
    lines = read_or_empty(_CPUS).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "CPU"
