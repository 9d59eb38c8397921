"""Comparison of a model's metrics with a predictor that ignores its input."""

from __future__ import annotations

from collections.abc import Mapping

from gnnkit.task import Task

MIN_STEPS = 50  # after fewer steps, a model may not have learned yet


def learned_nothing(
    task: Task, metrics: Mapping[str, float], chance: Mapping[str, float], epochs: int, steps: int
) -> str | None:
    """Returns a warning if a model is hardly better than chance.

    Args:
        task: The task.
        metrics: The model's metrics.
        chance: From `Task.chance`.
        epochs: Number of completed epochs.
        steps: Number of optimiser steps.
    """
    if steps < MIN_STEPS or skill(task, metrics, chance) > task.least_skill:
        return None
    names, baseline = [name for name in chance if name in metrics], task.without_learning
    words = " and ".join(f"{name}={metrics[name]:.4g} where {baseline} gives {chance[name]:.4g}" for name in names)
    return (
        f"the model has learned nothing after {epochs} epochs ({steps} steps): {words}; change trainer.lr, "
        "trainer.max_epochs, the model or the features, or compare with workers=1"
    )


def skill(task: Task, metrics: Mapping[str, float], chance: Mapping[str, float]) -> float:
    """Returns the largest skill of any metric, or 1 if none has a baseline.

    The skill is 0 at chance level and 1 for a perfect value.

    Args:
        task: The task.
        metrics: The model's metrics.
        chance: From `Task.chance`.
    """
    names = [name for name in chance if name in metrics]
    return max((_skill(metrics[name], chance[name], task.is_lower_better(name)) for name in names), default=1.0)


def _skill(value: float, chance: float, lower_is_better: bool) -> float:
    """Returns a metric's skill, or 1 if chance is already perfect."""
    possible_gain = chance if lower_is_better else 1 - chance
    if possible_gain <= 0:
        return 1.0
    gain = chance - value if lower_is_better else value - chance
    return gain / possible_gain
