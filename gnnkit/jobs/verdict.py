"""What a training run reports of itself at its end."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import lightning as L

from gnnkit.jobs.outputs import Scores
from gnnkit.task import Task
from gnnkit.training.monitor import monitor

if TYPE_CHECKING:
    from gnnkit.training.run_site import Validations

MIN_STEPS = 50  # of the run. After fewer steps a model may have learned nothing yet


def figures(
    trainer: L.Trainer, validations: Validations, task: Task, scores: Scores, approximate: list[str]
) -> dict[str, Any]:
    """Returns which model was saved and whether it has learned, and prints both.

    The line on the saved model is printed for approximate training, whose last model
    may be far worse than its best one. Called on the leader.

    Args:
        trainer: The trainer of the leader.
        validations: The evaluations during training.
        task: Names and compares the figures.
        scores: The figures of the saved model.
        approximate: What is approximate in training.
    """
    rule = monitor(trainer)
    saved = rule.best_epoch if rule is not None and rule.parameters is not None else trainer.current_epoch
    best = validations.best
    nothing = _learned_nothing(task, scores, trainer.current_epoch, trainer.global_step)
    name = task.progress
    if approximate and best is not None and name in scores.figures:
        is_best = math.isclose(scores.figures[name], best["value"], rel_tol=1e-5)  # evaluations log float32
        keep = "" if is_best else f"; trainer.monitor={name} saves the best model"
        _report(
            f"approximate training: the saved model, of epoch {saved}, has {name}={scores.figures[name]:.4g}; the best "
            f"evaluation was {name}={best['value']:.4g} in epoch {best['epoch']}{keep}"
        )
    if nothing is not None:
        _report(f"gnnkit: warning: {nothing}")
    return {
        "approximate": approximate,
        "saved_epoch": saved,
        "best_evaluation": best,
        "learned_nothing": nothing,
    }


def _learned_nothing(task: Task, scores: Scores, epochs: int, steps: int) -> str | None:
    """Says that the saved model is hardly better than chance, or returns None."""
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
    """Returns 0 for a value at chance level, 1 for a perfect one.

    1 too where chance is perfect, as nothing is left to learn.
    """
    left = chance if lower_is_better else 1 - chance
    if left <= 0:
        return 1.0
    gained = chance - value if lower_is_better else value - chance
    return gained / left


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
