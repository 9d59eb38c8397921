"""Training runs of `job=init`, of which validation selects the written keys."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gnnkit
from gnnkit import plugins
from gnnkit.config.keys import plain
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.launch.phases import say
from gnnkit.utils.ranges import one_line
from gnnkit_tables.baselines import Baseline

Keys = Mapping[str, tuple[Any, str]]  # value and reason by configuration key
COLUMNS: Keys = {
    "strategy": ("vertex_centric", "targets are rows of a table here"),
    "dataset.links": (False, "the targets' columns alone"),
    "model": ("boosting", "gradient boosting"),
    "model.neighbours": (False, "there are no edges"),
    "model.learning_rate": (0.05, "small steps"),
    "model.leaves": (8, "small trees"),
    "trainer.max_epochs": (40, "10 trees each; validation selects how many are used"),
    "trainer.patience": (10, "evaluations without a better one end the training"),
    "trainer.check_val_every_n_epoch": (1, "after each 10 trees"),
}
_QUIET = {
    "workers": 1,
    "threads": 1,
    "comm": "threads",
    "launcher": "inline",
    "logger": "none",
    "report": False,
    "cache": False,
    "write": [],
    "trainer.checkpoint": False,
    "trainer.progress_bar": False,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate, with its figures of validation and test."""

    name: str
    keys: Keys
    val: float
    test: float


def select_keys(
    graph: Graph, columns: Graph, graph_keys: Keys, minutes: float, seed: int, baseline: Baseline | None
) -> Keys:
    """Trains a model of the graph and one of the columns, and returns the better keys.

    Args:
        graph: The database's graph, from `build_graph`.
        columns: The targets and their columns, from `build_columns`.
        graph_keys: Keys of the model of the graph.
        minutes: Time limit.
        seed: Of the trials.
        baseline: A rule that the models should beat.
    """
    is_number = columns.labels.dtype.kind == "f"
    metric = "mae" if is_number else "roc_auc" if columns.num_classes == 2 else "accuracy"
    loss: Keys = {"task": ("regression", "labels are numbers"), "task.loss": ("absolute", "the error that is judged")}
    shared: Keys = {
        "trainer.monitor": (f"val_{metric}", "the figure that selects the best epoch"),
        **(loss if is_number else {}),
    }
    candidates = [("a model of the graph", graph, {**graph_keys, **shared})]
    if "boosting" in plugins.names("model"):
        candidates.append(("gradient boosting on the targets' columns", columns, {**COLUMNS, **shared}))
    else:
        say("baseline: gradient boosting needs the package gnnkit-boosting: pip install gnnkit-boosting")
    fixed = {**_QUIET, "seed": seed, "trainer.max_time": max(60 * minutes / len(candidates), 1)}
    trials = [_train(*candidate, fixed, metric) for candidate in candidates]
    for trial in trials:
        say(f"trial: {trial.name}: val_{metric} {trial.val:.4f}, test_{metric} {trial.test:.4f}")
    best = (min if is_number else max)(trials, key=lambda trial: trial.val)
    if math.isinf(best.val):
        return graph_keys
    if baseline is not None and (baseline.val < best.val if is_number else baseline.val > best.val):
        say(f"no model is better than {baseline.name}: there may be too few targets to learn more")
    other = next((trial for trial in trials if trial is not best), None)
    why = "" if other is None else f"val_{metric} {best.val:.4f}; {other.name} has {other.val:.4f}"
    return {key: (value, why if key == "model" and why else reason) for key, (value, reason) in best.keys.items()}


def _train(name: str, data: Graph, keys: Keys, fixed: Mapping[str, Any], metric: str) -> Trial:
    """Trains without terminal output. A failed candidate has the worst figures."""
    values = {**fixed, **{key: value for key, (value, _) in keys.items() if not key.startswith("dataset.")}}
    worst = float("inf" if metric == "mae" else "-inf")
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            overrides = [f"{key}={plain(value)}" for key, value in values.items()]
            result = gnnkit.train(data, overrides=overrides, folder=f"{folder}/run")
    except (UserError, RuntimeError) as error:  # a refused configuration, or a failed rank
        say(f"trial: {name}: {one_line(error)}")
        return Trial(name, keys, worst, worst)
    return Trial(name, keys, result[f"val_{metric}"], result[f"test_{metric}"])
