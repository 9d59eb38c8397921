"""The jobs of a sweep: all combinations, or what Optuna chooses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gnnkit_report.runs_page import DONE, SweptRun

from gnnkit.errors import UserError
from gnnkit.task import Task
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole
from gnnkit_sweep.spaces import Space, expand, spaces

Overrides = tuple[str, ...]  # of one job
_ALWAYS = ("train_loss", "seconds_per_epoch", "seconds_total", "time_to_accuracy")  # figures of every task
_LESS_IS_BETTER = ("loss", "seconds", "time_to")


class SweepPlan(ABC):
    """The jobs of a sweep."""

    @abstractmethod
    def first(self) -> list[Overrides]:
        """Lists jobs to check before the first job starts."""

    @abstractmethod
    def batches(self) -> Iterator[list[Overrides]]:
        """Yields jobs that may run at once. The next batch may depend on outcomes."""

    def tell(self, run: SweptRun) -> None:  # noqa: B027 - most plans do not depend on outcomes
        """Records a run that has ended."""

    def goal(self, runs: Sequence[SweptRun], task: Task) -> tuple[str, bool]:
        """Returns the figure that ranks the jobs, and whether lower is better."""
        figure = next((run.main for run in runs if run.main is not None), task.progress)
        return figure, task.is_lower_better(figure)

    def best(self) -> Json | None:
        """Returns a search's best job, in the format of Hydra's sweeper."""
        return None


class GridSearch(SweepPlan):
    """All combinations of all values."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self._jobs = expand(overrides)

    def first(self) -> list[Overrides]:
        return self._jobs

    def batches(self) -> Iterator[list[Overrides]]:
        yield self._jobs


class OptunaSearch(SweepPlan):
    """The jobs that Optuna chooses from the outcomes of earlier jobs."""

    def __init__(self, overrides: Sequence[str], keys: Mapping[str, Any], task: Task) -> None:
        """Makes the study.

        Args:
            overrides: As typed, with the spaces to search.
            keys: The keys under `hydra.sweeper`.
            task: Declares the figures of a run.
        """
        self._fixed, self._spaces = spaces(overrides)
        if not self._spaces:
            raise UserError(
                "hydra/sweeper=optuna has nothing to search: give KEY=choice(...), range(...) or interval(...)"
            )
        self._num_trials = whole("hydra.sweeper.n_trials", keys["n_trials"], 1, MAX_COUNT)
        self._at_once = whole("hydra.sweeper.n_jobs", keys["n_jobs"], 1, MAX_COUNT)
        self._follows = keys["metric"] == "auto"  # the main figure, which the first job names
        metric = task.progress if self._follows else keys["metric"]
        self.metric: str = one_of("hydra.sweeper.metric", metric, (*task.names, *_ALWAYS))
        self.direction = _direction(keys["direction"], self.metric, task)
        self._study = _study(keys, self.direction)
        self._trials: list[Any] = []  # by the number of the run

    def first(self) -> list[Overrides]:
        ends = [[(space, value) for value in space.ends] for space in self._spaces]
        return [self._job([pair[end] for pair in ends]) for end in (0, 1)]

    def batches(self) -> Iterator[list[Overrides]]:
        for begin in range(0, self._num_trials, self._at_once):
            trials = [self._study.ask() for _ in range(min(self._at_once, self._num_trials - begin))]
            self._trials += trials
            yield [self._job([(space, _suggest(trial, space)) for space in self._spaces]) for trial in trials]

    def tell(self, run: SweptRun) -> None:
        from optuna.trial import TrialState

        if self._follows and run.main is not None:
            self.metric, self._follows = run.main, False
        value = run.figures.get(self.metric)
        if run.status == DONE and isinstance(value, int | float) and math.isfinite(value):
            self._study.tell(self._trials[run.number], value)
        else:
            self._study.tell(self._trials[run.number], state=TrialState.FAIL)

    def goal(self, runs: Sequence[SweptRun], task: Task) -> tuple[str, bool]:
        return self.metric, self.direction == "minimize"

    def best(self) -> Json | None:
        if not any(trial.value is not None for trial in self._study.trials):
            return None
        best = self._study.best_trial
        names = ("name", "metric", "best_evaluated_value", "best_evaluated_params")
        return dict(zip(names, ("optuna", self.metric, best.value, dict(best.params)), strict=True))

    def _job(self, values: Sequence[tuple[Space, str]]) -> Overrides:
        return (*self._fixed, *(f"{space.key}={value}" for space, value in values))


def _direction(value: object, metric: str, task: Task) -> str:
    direction: str = one_of("hydra.sweeper.direction", value, ("auto", "maximize", "minimize"))
    if direction != "auto":
        return direction
    is_less = task.is_lower_better(metric) if metric in task.names else any(word in metric for word in _LESS_IS_BETTER)
    return "minimize" if is_less else "maximize"


def _study(keys: Mapping[str, Any], direction: Any) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("hydra/sweeper=optuna needs the package optuna: pip install 'gnnkit[optuna]'") from error
    seed = keys["sampler.seed"]
    if seed is not None:
        seed = whole("hydra.sweeper.sampler.seed", seed, 0, 2**32 - 1)
    kinds = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    name = one_of("hydra/sweeper/sampler", keys["sampler.name"], kinds)
    for key in ("storage", "study_name"):
        if keys[key] is not None and not isinstance(keys[key], str):
            raise UserError(f"hydra.sweeper.{key}={keys[key]} must be text")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction=direction,
        sampler=kinds[name](seed=seed),
        storage=keys["storage"],
        study_name=keys["study_name"],
        load_if_exists=True,
    )


def _suggest(trial: Any, space: Space) -> str:
    """Asks Optuna for one key's value, in override syntax."""
    name = space.key.lstrip("+")
    if not space.is_numeric:
        return str(trial.suggest_categorical(name, space.values))
    if space.is_whole:
        step = 1 if space.step is None else int(space.step)
        return str(trial.suggest_int(name, int(space.low), int(space.high), step=step, log=space.is_log))
    return repr(trial.suggest_float(name, space.low, space.high, step=space.step, log=space.is_log))
