"""The figures of `result.json`, by job."""

from __future__ import annotations

import math
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnkit.engine import Tally
from gnnkit.jobs.outputs import Scores, all_ranks, write_rows
from gnnkit.jobs.rank_job import RankJob
from gnnkit.kernels.products import library
from gnnkit.leader.channel import LEADER
from gnnkit.leader.watch import WorkerState
from gnnkit.result.folder import WORDS
from gnnkit.result.result import versions
from gnnkit.strategy import Worker
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.utils.ranges import num_cores

if TYPE_CHECKING:  # programs have figures without importing Lightning
    import lightning as L

    from gnnkit.callback import LeaderHook
    from gnnkit.training.finite import Guard
    from gnnkit.training.module import TrainingModule
    from gnnkit.training.run_site import RunSite, Validations

MAX_RANKS = 256  # of the traffic matrix


def chosen(job: RankJob, worker: Worker) -> dict[str, Any]:
    """Returns the names of the data set, the model and the other plugins."""
    settings = job.settings
    return {
        "strategy": settings.strategy.name,
        "sampler": None if settings.sampler is None else settings.sampler.name,
        "exchange": None if settings.exchange is None else settings.exchange.name,
        "partition": str(settings.partition.grid),
        "nodes": settings.partition.nodes.name,
        "grid": job.prepared.grid,
        "world_size": worker.comm.world_size,
        "dataset": settings.dataset.name,
        "model": job.source.name,
        "task": settings.task.name,
        **({} if worker.links is None else {"edge_split": "data set" if worker.links.given else "drawn"}),
    }


def circumstances(job: RankJob) -> dict[str, Any]:
    """Returns why the layout was chosen, the versions and the seed."""
    return {"why": job.prepared.why, "versions": versions() | {"products": library()}, "seed": job.settings.seed}


def by_name(task: Task, measured: dict[str, float]) -> dict[str, float | None]:
    """Returns the task's figures by name. None for a split without nodes.

    Optional metrics that were not measured are omitted.
    """
    others = {f"{split}_{metric}" for split in task.splits for metric in task.metrics_of_some} - measured.keys()
    return {name: measured.get(name) for name in task.names if name not in others}


def by_class(details: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Labels per-class figures and the confusion matrix with class names.

    Args:
        details: From `Task.details`.
        names: Class names, or None.
    """

    def name(number: int) -> str | int:
        return number if names is None else names[number]

    per_class, confusion = details.get("per_class"), details.get("confusion")
    if per_class is not None:
        per_class = {
            split: {str(name(i)): figures for i, figures in enumerate(rows)} for split, rows in per_class.items()
        }
    if confusion is not None:
        confusion = {"classes": [name(i) for i in range(len(next(iter(confusion.values()))))], **confusion}
    return {"per_class": per_class, "confusion": confusion}


def words(tally: Tally, repetitions: int, worker: Worker) -> dict[str, Any]:
    """Returns the words and bytes of one epoch or step for each rank. Collective.

    Args:
        tally: Traffic of this rank.
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
    return all_ranks({name: count // max(repetitions, 1) for name, count in totals.items()}, worker)


def words_between(tally: Tally, repetitions: int, worker: Worker) -> Tensor | None:
    """Returns the words of one epoch between each pair of ranks. Collective.

    Args:
        tally: Traffic of this rank.
        repetitions: Number of epochs in the tally.
        worker: This rank.

    Returns:
        [from, to] int64 on the leader. None elsewhere, and above `MAX_RANKS`.
    """
    num_ranks = worker.comm.world_size
    if num_ranks > MAX_RANKS:
        return None
    table = torch.zeros(num_ranks, num_ranks, dtype=torch.int64, device=worker.device)
    for (_, _, peer), count in tally.words.items():
        table[peer, worker.comm.rank] += count
    matrix = worker.comm.all_reduce(table) // max(repetitions, 1)
    return matrix if worker.comm.rank == LEADER else None


def _num_parameters(module: TrainingModule) -> int:
    """Counts the trained parameters, excluding learned input rows."""
    return sum(parameter.numel() for parameter in module.model.parameters() if parameter.requires_grad)


def of_training(
    job: RankJob,
    module: TrainingModule,
    site: RunSite,
    scores: Scores,
) -> dict[str, Any]:
    """Returns the figures on the leader. Collective.

    The traffic matrix is quadratic in ranks, so it is written to a separate file.

    Args:
        job: The job.
        module: The module of this rank.
        site: This rank's measurements, and the leader's watch.
        scores: Measurements of the task.
    """
    worker, seconds, watch = module.worker, site.epoch_seconds, site.watch
    counted = words(module.strategy.tally, len(seconds), worker)
    write_rows(job.folder / WORDS, words_between(module.strategy.tally, len(seconds), worker))
    if watch is None:
        return {}
    return {
        **chosen(job, worker),
        "epochs": len(seconds),
        "train_loss": watch.train_loss,
        "stragglers": watch.stragglers,
        **by_name(module.task, scores.figures),
        # The first epoch also builds buffers and plans that later epochs reuse.
        "seconds_per_epoch": statistics.median(seconds[1:] or seconds or [0.0]),
        "main_figure": {"name": module.task.progress, "lower_is_better": module.task.lower_is_better},
        "time_to_accuracy": site.validations.time_to_accuracy,
        **counted,
        "wait_share": watch.wait_share,
        "balance": job.prepared.balance | watch.balance,
        **module.strategy.figures(),
        "num_parameters": _num_parameters(module),
        "device": device_name(worker.device),
        "phases": dict(job.prepared.seconds) | site.seconds,
        **_predicted(job.settings.predicted, watch.states, statistics.median(seconds[1:]) if seconds[1:] else None),
        **circumstances(job),
        **by_class(scores.details, job.prepared.class_names),
    }


def of_hooks(hooks: Sequence[LeaderHook]) -> dict[str, Any]:
    """Merges the figures of the leader's hooks."""
    figures: dict[str, Any] = {"rebalanced": []}
    for hook in hooks:
        figures |= hook.figures()
    return figures


def _predicted(
    predicted: Mapping[str, Any] | None, states: Sequence[WorkerState], seconds: float | None
) -> dict[str, Any]:
    """Returns the planned and the measured figures, or None if nothing was planned.

    Args:
        predicted: Figures of the selected layout.
        states: Final states of all workers.
        seconds: Median epoch time after the first epoch. None: there was no other.
    """
    if predicted is None:
        return {"predicted": None, "measured": None}
    # The first step also sends rows that later steps reuse.
    sent = None if seconds is None else max(state.bytes_sent for state in states)
    planned = {"seconds_per_epoch": predicted["seconds"], "memory": predicted["memory"]}
    came = {"seconds_per_epoch": seconds, "memory": max((state.memory for state in states), default=None)}
    return {
        "predicted": planned | {"bytes_sent": predicted["bytes_sent"]["max"]},
        "measured": came | {"bytes_sent": sent},
    }


def left_out(guard: Guard, worker: Worker) -> dict[str, int]:
    """Counts the steps that a rank skipped, and the rollbacks. Collective."""
    counts = torch.zeros(worker.comm.world_size, dtype=torch.int64, device=worker.device)
    counts[worker.comm.rank] = guard.skipped_steps
    return {"skipped_steps": int(worker.comm.all_reduce(counts).max()), "rollbacks": guard.rollbacks}


def exactness(job: RankJob, module: TrainingModule, sync: GradientSync) -> dict[str, Any]:
    """Returns whether several ranks train the same model as one, with reasons.

    Prints the reasons that lie in the model, and the scheme's approximations.
    """
    worker, reasons = module.worker, []
    approximate: list[str] = []
    if worker.comm.world_size > 1:
        if module.strategy.on_one_rank(worker.comm.world_size, worker.sampler) is None:
            reasons.append(f"strategy={job.settings.strategy.name}: its steps depend on the number of workers")
        approximate = [*module.strategy.costs().splitlines(), *sync.costs().splitlines()]
        for line in approximate:
            print(line, file=sys.stderr, flush=True)
        if not sync.exact:
            reasons.append(f"sync={job.settings.sync.name}: its steps are not those of the exact gradient")
        for reason in job.inexact(worker):
            reasons.append(f"model {reason}")
            print(f"not exact on {worker.comm.world_size} workers: model {reason}", file=sys.stderr, flush=True)
    return {"exact": not reasons, "inexact": reasons, "approximate": approximate}


MIN_STEPS = 50  # after fewer steps, a model may not have learned yet


def of_verdict(
    trainer: L.Trainer, validations: Validations, task: Task, scores: Scores, approximate: list[str]
) -> dict[str, Any]:
    """Returns which model was saved and whether it has learned. Prints warnings.

    The saved model's score is printed for approximate training, where the last model
    may be far worse than the best. Called on the leader.

    Args:
        trainer: The leader's trainer.
        validations: Evaluations during training.
        task: Names and compares the figures.
        scores: Figures of the saved model.
        approximate: The approximations in training.
    """
    from gnnkit.training.monitor import monitor

    rule = monitor(trainer)
    saved = rule.best_epoch if rule is not None and rule.parameters is not None else trainer.current_epoch
    best = validations.best
    nothing = _learned_nothing(task, scores, trainer.current_epoch, trainer.global_step)
    name = task.progress
    if approximate and best is not None and name in scores.figures:
        is_best = math.isclose(scores.figures[name], best["value"], rel_tol=1e-5)  # evaluations are logged as float32
        keep = "" if is_best else f"; trainer.monitor={name} saves the best model"
        _print_line(
            f"approximate training: the saved model, of epoch {saved}, has {name}={scores.figures[name]:.4g}; the best "
            f"evaluation was {name}={best['value']:.4g} in epoch {best['epoch']}{keep}"
        )
    if nothing is not None:
        _print_line(f"gnnkit: warning: {nothing}")
    return {
        "approximate": approximate,
        "saved_epoch": saved,
        "best_evaluation": best,
        "learned_nothing": nothing,
    }


def _learned_nothing(task: Task, scores: Scores, epochs: int, steps: int) -> str | None:
    """Returns a warning if the saved model is hardly better than chance."""
    judged = {name: chance for name, chance in scores.chance.items() if name in scores.figures}
    skills = [_skill(scores.figures[name], chance, task.is_lower_better(name)) for name, chance in judged.items()]
    if steps < MIN_STEPS or not skills or any(skill > task.least_skill for skill in skills):
        return None
    words = " and ".join(
        f"{name}={scores.figures[name]:.4g} where {task.without_learning} gives {chance:.4g}"
        for name, chance in judged.items()
    )
    return (
        f"the model has learned nothing after {epochs} epochs ({steps} steps): {words}; change trainer.lr, "
        "trainer.max_epochs, the model or the features, or compare with workers=1"
    )


def _skill(value: float, chance: float, lower_is_better: bool) -> float:
    """Returns 0 at chance level and 1 for a perfect value.

    Also returns 1 if chance is already perfect.
    """
    left = chance if lower_is_better else 1 - chance
    if left <= 0:
        return 1.0
    gained = chance - value if lower_is_better else value - chance
    return gained / left


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_CPUS = Path("/proc/cpuinfo")


def device_name(device: torch.device) -> str:
    """Returns the GPU's name, or the CPU's with the number of available cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {num_cores()} cores"


def _processor() -> str:
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "CPU"
