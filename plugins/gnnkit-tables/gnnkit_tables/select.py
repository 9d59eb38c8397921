"""Training runs of `job=init`, of which validation selects the written keys."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gnnkit
from gnnkit import plugins
from gnnkit.config.keys import plain
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.launch.progress import say
from gnnkit.utils.documents import read_yaml
from gnnkit.utils.ranges import one_line
from gnnkit_tables.baselines import Baseline
from gnnkit_tables.lists import METRICS

Keys = Mapping[str, tuple[Any, str]]  # value and reason by configuration key
ADVICE: Mapping[str, Keys] = {
    section: {key: (value, reason) for key, (value, reason) in keys.items()}
    for section, keys in read_yaml(Path(__file__).with_name("advice.yaml"), "advice.yaml").items()
}
Candidate = tuple[str, Graph, Keys]  # name, what the model reads, and the keys to write


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate, with its figures of validation and test."""

    name: str
    keys: Keys
    val: float
    test: float
    note: str = ""  # ends its line


def list_candidates(graph: Graph, scored: Graph, columns: Graph, graph_keys: Keys) -> list[Candidate]:
    """Returns the models to try, each with the graph that it reads.

    Args:
        graph: The database's graph, from `build_graph`.
        scored: The same with outputs of gradient boosting.
        columns: The targets and their columns, from `build_columns`.
        graph_keys: Keys of the model of the graph.
    """
    is_number = columns.labels.dtype.kind == "f" and columns.labels.ndim == 1
    shared: Keys = {
        "trainer.monitor": (f"val_{metric_of(columns)}", "the figure that selects the best epoch"),
        **(ADVICE["numbers"] if is_number else {}),
        **{key: value for key, value in graph_keys.items() if key.startswith("task")},
    }
    candidates: list[Candidate] = [
        ("a model of the graph", graph, {**graph_keys, **shared}),
        ("its mean with gradient boosting", scored, {**_blended(graph_keys), **shared}),
    ]
    is_list, fanouts = columns.labels.ndim > 1, "sampler.fanouts"
    if not is_list and graph_keys[fanouts] == ADVICE["graph"][fanouts]:  # events need fewer hops
        candidates.append(("a deeper one of fewer rows", graph, {**graph_keys, **ADVICE["deep"], **shared}))
    if "boosting" in plugins.names("model"):
        candidates.append(("gradient boosting on the targets' columns", columns, {**ADVICE["columns"], **shared}))
    return candidates


def rule_candidate(columns: Graph, baseline: Baseline, graph_keys: Keys) -> Candidate:
    """Returns a rule of a ranking task as a model of one column."""
    place = (columns.feature_names or ()).index(baseline.column)
    keys: Keys = {
        **{key: ADVICE["columns"][key] for key in ("strategy", "dataset.links")},
        "model": ("column", f"lists by {baseline.name}"),
        "model.column": (place, f"number of the column {baseline.column!r}"),
        "trainer.max_epochs": (1, "nothing is trained"),
        **{key: value for key, value in graph_keys.items() if key.startswith("task")},
    }
    return baseline.name, columns, keys


def metric_of(columns: Graph) -> str:
    """Returns the metric that selects a model."""
    if columns.labels.ndim > 1:
        return METRICS[0]
    return "mae" if columns.labels.dtype.kind == "f" else "roc_auc" if columns.num_classes == 2 else "accuracy"


def select_keys(
    candidates: Sequence[Candidate], metric: str, minutes: float, seed: int, baseline: Baseline | None
) -> Keys:
    """Trains all candidates, and returns the keys of the best by validation.

    Args:
        candidates: Name, graph and keys of each.
        metric: From `metric_of`.
        minutes: Time limit.
        seed: Of the trials.
        baseline: A rule that the models should beat.
    """
    if "boosting" not in plugins.names("model"):
        say("baseline: gradient boosting needs the package gnnkit-boosting: pip install gnnkit-boosting")
    fixed = {"seed": seed, "trainer.max_time": max(60 * minutes / len(candidates), 1)}
    trials = [train_candidate(candidate, fixed, metric) for candidate in candidates]
    for trial in trials:
        say(f"trial: {trial.name}: val_{metric} {trial.val:.4f}, test_{metric} {trial.test:.4f}{trial.note}")
    is_error = metric == "mae"
    best = (min if is_error else max)(trials, key=lambda trial: trial.val)
    if math.isinf(best.val):
        return candidates[0][2]
    if baseline is not None and (baseline.val < best.val if is_error else baseline.val > best.val):
        say(f"no model is better than {baseline.name}: there may be too few targets to learn more")
    others = "; ".join(f"{trial.name} has {trial.val:.4f}" for trial in trials if trial is not best)
    why = f"val_{metric} {best.val:.4f}; {others}" if others else ""
    return {key: (value, why if key == "model" and why else reason) for key, (value, reason) in best.keys.items()}


def _blended(keys: Keys) -> Keys:
    """Replaces the model by its mean with boosting, which fixes some of its keys."""
    fixed = ("model.project", "model.skip", "model.inverse")
    return {**{key: value for key, value in keys.items() if key not in fixed}, **ADVICE["mean"]}


def train_candidate(candidate: Candidate, fixed: Mapping[str, Any], metric: str) -> Trial:
    """Trains without terminal output. A failed candidate has the worst figures.

    Args:
        candidate: Name, graph and keys.
        fixed: Further keys.
        metric: From `metric_of`.
    """
    name, data, keys = candidate
    chosen = {**ADVICE["trials"], **keys}.items()
    values = {**{key: value for key, (value, _) in chosen if not key.startswith("dataset.")}, **fixed}
    worst = float("inf" if metric == "mae" else "-inf")
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            overrides = [f"{key}={plain(value)}" for key, value in values.items()]
            result = gnnkit.train(data, overrides=overrides, folder=f"{folder}/run")
    except (UserError, RuntimeError) as error:  # a refused configuration, or a failed rank
        say(f"trial: {name}: {one_line(error)}")
        return Trial(name, keys, worst, worst)
    limit, note = values["trainer.max_epochs"], ""
    if result["epochs"] < limit and "trainer.max_time" in str(result.get("stopped")):
        note = "; a larger init.minutes would let it train longer"
    elif result.get("best_epoch") == limit:
        note = f"; the last epoch was the best, so trainer.max_epochs above {limit} may be better"
    return Trial(name, keys, result[f"val_{metric}"], result[f"test_{metric}"], note)
