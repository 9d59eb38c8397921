"""Trials for job=init: short training runs, of which the best is selected."""

from __future__ import annotations

import csv
import io
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_plan.feature_checks import has_classes, has_few_rows
from gnnkit_plan.init import MACRO, MAX_EPOCHS, PATIENCE, Searched

from gnnkit import config, plugins
from gnnkit.config import keys
from gnnkit.config.settings import Choice, Settings, settle, with_choice
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.jobs import preload, start
from gnnkit.jobs.order import Order
from gnnkit.launch.processes import RankError, run_in_child
from gnnkit.launch.progress import say
from gnnkit.launch.signals import if_forced
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.inputs import nonzero_share
from gnnkit.prepare.transform import is_table
from gnnkit.task import NodeTask, Task
from gnnkit.training.monitor import skill
from gnnkit.utils.documents import read_json, read_yaml
from gnnkit.utils.ranges import one_line
from gnnkit_init import baselines, pruning

LOSS = "val_loss"  # decides between equal scores
MIN_GAIN = 0.01  # relative gain over another score that counts as better
NO_EDGES, COLUMNS, MEANS = "without edges", "on the columns", "on columns and neighbours' means"  # read by baselines
LABELS = f"{MEANS} and labels"
_MOST, _LEAST = 1 / 3, 0.5  # share of the work for one trial; share of the last trial's work needed to start another
# The work is counted in seconds of a nominal machine, so that it does not depend on the
# load: seconds before the first epoch, seconds of an epoch, and operations a second.
_START, _EPOCH, _RATE = 2.0, 0.02, 2e10
_AGREE = 0.25  # excess over chance of the edges within classes, from which labels and learned rows come first
_DEVIATIONS = 3  # standard errors above which a correlation is not by chance
Keys = Mapping[str, Any]  # values by configuration key
_SYMMETRIZE = "dataset.symmetrize"
# Read from YAML, with the reasons.
_DATA = read_yaml(Path(__file__).with_name("candidates.yaml"))
CONFIGURATIONS: dict[str, Keys] = _DATA["configurations"]
LISTS = {name: tuple(CONFIGURATIONS[entry] for entry in entries) for name, entries in _DATA["lists"].items()}
_ABSOLUTE: Keys = {"task.loss": "absolute"}
_LOGARITHM: Keys = {**_ABSOLUTE, "task.scale": "log"}
_LOSSES = {"val_mae": _ABSOLUTE, MACRO: {"task.class_weights": "balanced"}}  # of boosting, by figure
_FEW = 0.2  # share of non-zeros below which rows are normalised first


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration and its scores."""

    keys: Keys
    score: float | None  # validation score. None: unsupported configuration
    loss: float | None  # validation loss
    test: float | None  # test score, which is not used for selection
    epochs: int
    seconds: float
    remark: str = ""
    baseline: str = ""  # what a baseline reads
    curve: pruning.Curve = ()  # empty if it was not recorded
    work: float = 0.0  # seconds of a nominal machine

    @property
    def title(self) -> str:
        """The configuration in short form."""
        name, *overrides = (str(value) if key == "model" else f"{key.rpartition('.')[2]}={keys.plain(value)}" for key, value in self.keys.items())  # fmt: skip
        return " ".join([name, *overrides, *filter(None, [self.baseline])])


@dataclass(frozen=True, slots=True)
class Trials:
    """The completed trials, in order."""

    task: Task
    figure: str  # the validation metric, such as val_accuracy
    tried: tuple[Trial, ...]
    num_planned: int
    why_ended: str = ""
    constant: float | None = None  # the best constant prediction's score
    num_validated: int = 0  # rows that a score rests on. 0: unknown

    @property
    def best(self) -> Trial | None:
        """The trial with the best score, if any."""
        return self._best_of("", NO_EDGES, COLUMNS, MEANS, LABELS)

    @property
    def best_network(self) -> Trial | None:
        """The trial with the best score, if any, of the models other than baselines."""
        return self._best_of("", NO_EDGES)

    def _best_of(self, *baselines: str) -> Trial | None:
        ordered_trials = (t for t in self._ordered if t.score is not None and not t.remark.startswith(pruning.PRUNED))
        return next((trial for trial in ordered_trials if trial.baseline in baselines), None)

    def _gain(self, candidate: Trial, rival: Trial) -> float:
        """Returns how much better the score of `candidate` is."""
        assert candidate.score is not None
        assert rival.score is not None
        return (candidate.score - rival.score) * (-1 if self.task.is_lower_better(self.figure) else 1)

    def _noise(self, trial: Trial) -> float:
        """Returns the standard error of a score within [0, 1], 0 for errors."""
        assert trial.score is not None
        if self.task.is_lower_better(self.figure) or not self.num_validated:
            return 0.0
        return math.sqrt(max(trial.score * (1 - trial.score), 0) / self.num_validated)

    def _is_better(self, candidate: Trial, rival: Trial) -> bool:
        """Returns whether the gain exceeds `MIN_GAIN` and the noise, also by test."""
        assert rival.score is not None
        held_back = (replace(trial, score=trial.test) for trial in (candidate, rival))
        is_lost = None not in (candidate.test, rival.test) and self._gain(*held_back) < 0
        return not is_lost and self._gain(candidate, rival) > max(MIN_GAIN * abs(rival.score), self._noise(rival))

    @property
    def learned_nothing(self) -> str:
        """Compares the best model with a constant prediction if it is hardly better."""
        if (best := self.best) is None or best.score is None or self.constant is None:
            return ""
        if skill(self.task, {self.figure: best.score}, {self.figure: self.constant}) > self.task.least_skill:
            return ""
        scores = f"{self.figure} {best.score:.4g}, and {self.constant:.4g} with {self.task.without_learning}"
        return f"no model is clearly better than a constant prediction: {scores}; try a larger init.minutes"

    @property
    def verdict(self) -> str:
        """Compares the best model with the baselines, or is empty if none was tried."""
        alone, means, best = self._best_of(NO_EDGES, COLUMNS), self._best_of(MEANS, LABELS), self._best_of("")
        if alone is None or best is None:
            return self.learned_nothing
        suffix = "" if alone.baseline == NO_EDGES else " by gradient boosting"
        scores = f"{self.figure} {best.score:.4g} with edges, {alone.score:.4g} without{suffix}"
        scores += "" if means is None else f", {means.score:.4g} by gradient boosting {means.baseline}"
        if reason := self.learned_nothing:
            return f"{reason}. {scores}"
        if means is not None and self._is_better(means, alone) and self._is_better(means, best):
            return f"the graph helps, but gradient boosting more than a graph model: {scores}"
        if self._is_better(best, alone):
            return f"the graph helps: {scores}"
        if self._is_better(alone, best):
            return f"the graph does not help: {scores}"
        noise = f"the difference is within the noise of {self.num_validated:,} validation rows, or the test disagrees"
        return f"it is not clear whether the graph helps: {scores}: {noise}"

    @property
    def _ordered(self) -> list[Trial]:
        """The trials by score, then by loss, then by order."""
        sign = 1 if self.task.is_lower_better(self.figure) else -1
        return sorted(self.tried, key=lambda trial: (trial.score is None, sign * (trial.score or 0), trial.loss or 0.0))

    @property
    def held_back(self) -> str:
        """The name of the test metric."""
        return _test_of(self.figure)

    @property
    def summary(self) -> list[str]:
        """The number of trials, and the comparison with the baselines."""
        end = f": {self.why_ended}" if self.why_ended else ""
        return [f"{len(self.tried)} of {self.num_planned} trials{end}", *filter(None, [self.verdict])]

    def lines(self) -> list[str]:
        """Formats the trials as a table, best first, with the summary."""
        criterion = f"{self.figure.removeprefix('val_')} of each trial"
        criterion += ", as classes are uneven" if self.figure != self.task.progress else ""
        lines = [f"{'val':>7} {'test':>7} {'epochs':>6} {'s':>6}  {criterion}"]
        for trial in self._ordered:
            scores = (trial.score, trial.test)
            numbers = " ".join("-".rjust(7) if score is None else f"{score:7.4f}" for score in scores)
            lines.append(
                f"{numbers} {trial.epochs:6d} {trial.seconds:6.1f}  {' '.join([trial.title, trial.remark]).strip()}"
            )
        return [*lines, *self.summary]

    @property
    def table(self) -> bytes:
        """The trials in order, as CSV."""
        names = list(dict.fromkeys(key for trial in self.tried for key in trial.keys))
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerow([*names, self.figure, LOSS, self.held_back, "epochs", "seconds", "remark"])
        for trial in self.tried:
            values = [trial.keys.get(name, "") for name in names]
            remark = " ".join(filter(None, [trial.baseline, trial.remark]))
            row = [trial.score, trial.loss, trial.test, trial.epochs, round(trial.seconds, 2), remark]
            writer.writerow([*values, *row])
        return buffer.getvalue().encode()

    def why_best(self, best: Trial) -> str:
        """Describes the best trial, and whether it was not trained fully."""
        held_back = "none held back" if best.test is None else f"{self.held_back} {best.test:.4g}"
        cut = f", {best.remark} before its last epoch: a larger init.minutes trains it fully" if best.remark else ""
        return f"best of {len(self.tried)} trials: {self.figure} {best.score:.4g}, {held_back}{cut}"


def search(settings: Settings, graph: Graph, values: Keys, *, figure: str | None, both_directions: bool) -> Searched:
    """Trains several configurations, and returns the best.

    Takes the arguments of `compare`.
    """
    trials = compare(settings, graph, values, figure=figure, both_directions=both_directions)
    if (best := trials.best) is None:
        return Searched(None, "", {}, trials.summary, trials.lines(), trials.table)
    figures = {trials.figure: best.score, trials.held_back: best.test, "trials": len(trials.tried)}
    return Searched(best.keys, trials.why_best(best), figures, trials.summary, trials.lines(), trials.table)


def compare(
    settings: Settings, graph: Graph, values: Keys, *, figure: str | None = None, both_directions: bool = False
) -> Trials:
    """Trains several configurations.

    Args:
        settings: The configuration of job=init.
        graph: The graph, with a split.
        values: The choices that follow from the graph's properties, by key.
        figure: The validation metric that selects the best. If None, the task's.
        both_directions: Whether reverse edges may be added or left out.
    """
    symmetric = both_directions and values.get("dataset.symmetrize") is True
    usual, other = (graph.symmetrize(), lambda: graph) if symmetric else (graph, graph.symmetrize)
    base_keys = {
        key: value
        for key, value in values.items()
        if key in ("inputs", "features.scale", "features.fill", "threads") or key.partition(".")[0] == "task"
    }
    configs = candidates(graph, values.get("inputs", "features"), values["task"])
    if figure is not None:
        configs = (configs[0], {**configs[0], "task.class_weights": "balanced"}, *configs[1:])
    trials = run(settings, usual, base_keys, configs, figure, symmetric, other if both_directions else None)
    assert isinstance(trials.task, NodeTask), "trials support only tasks with labels"
    rows = trials.task.read_rows(graph)
    constant = baselines.measure_constant(rows, trials.task, trials.figure)
    return replace(trials, constant=constant, num_validated=_num_validated(rows, trials.figure))


def _num_validated(rows: Graph, figure: str) -> int:
    """Returns how many validation rows a score rests on: all, or the rarest class."""
    labels = rows.labels[rows.labelled & (rows.split == Split.VAL)]
    if figure not in ("val_average_precision", "val_roc_auc") or not has_classes(rows):
        return len(labels)
    sizes = np.bincount(labels)
    return int(sizes[sizes > 0].min(initial=len(labels)))


def candidates(graph: Graph, inputs: str, task: str = "node_classification") -> tuple[Keys, ...]:
    """Returns the configurations to try, the most promising first.

    Args:
        graph: The graph.
        inputs: The configuration key.
        task: The task's name. Labels are inputs of node classification only.
    """
    from_columns = inputs == "features"
    words = "words" if from_columns and nonzero_share(graph.features) < _FEW else "counts"
    keys_to_try = LISTS["table" if not from_columns or is_table(graph) else words]
    has_labels = from_columns and task == "node_classification" and len(graph.schema.node_types) == 1
    unread = {"inputs": not from_columns, "label_inputs": not has_labels}
    keys_to_try = tuple(config for config in keys_to_try if not any(unread.get(key) for key in config))
    if graph.edge_features is not None:
        keys_to_try = (keys_to_try[0], CONFIGURATIONS["gine"], *keys_to_try[1:])
    if _of_edges(task) and inputs != "degree":
        ends = CONFIGURATIONS["ends"]
        keys_to_try = (ends, keys_to_try[0], {**ends, "model": "gcn"}, *keys_to_try[1:])
    if from_columns and (degree := _degree(graph)):
        keys_to_try = (keys_to_try[0], {**keys_to_try[0], **degree}, *keys_to_try[1:])
    configs = _with_types(graph, from_columns, keys_to_try)
    types = {"types": "ignore"} if graph.schema.several else {}
    plain: tuple[Keys, ...] = () if graph.num_relations > 1 else ({**CONFIGURATIONS["plain"], **types},)
    if not task.endswith("regression"):
        return (*plain, *configs)
    if _of_edges(task):  # later trials take the first one's loss
        first, second, *rest = (*plain, *configs)
        return ({**first, **_ABSOLUTE}, second, {**second, **_LOGARITHM}, *rest)
    first, second = ({**candidate, "model.dropout": 0} for candidate in configs[:2])
    return (*plain, {**first, **_ABSOLUTE}, {**first, **_LOGARITHM}, second, *configs)


def _of_edges(task: str) -> bool:
    return bool(plugins.load("task", task).pairs)


def _has_classes(graph: Graph) -> bool:
    return graph.labels.ndim == 1 and graph.labels.dtype.kind != "f" and bool(graph.labelled.any())


def _degree(graph: Graph) -> Keys:
    """Returns the key of a degree column if labels correlate with it beyond chance."""
    trains = graph.labelled & (graph.split == Split.TRAIN)
    if not trains.any() or len(graph.schema.node_types) > 1:
        return {}
    degrees, labels = np.log1p(np.diff(graph.csc.indptr))[trains], graph.labels[trains]
    if _has_classes(graph):
        labels = labels[:, None] == np.arange(graph.num_classes)
    elif labels.ndim == 1:
        labels = labels.argsort().argsort()[:, None]  # ranks, for heavy tails
    degrees, labels = degrees - degrees.mean(), labels - labels.mean(0)
    lengths = np.linalg.norm(degrees) * np.linalg.norm(labels, axis=0)
    correlations = np.abs(degrees @ labels) / np.where(lengths > 0, lengths, 1)
    return {"features.degree": True} if correlations.max(initial=0) > _DEVIATIONS / math.sqrt(len(degrees)) else {}


def _agree(graph: Graph) -> bool:
    """Returns whether edges join training nodes of one class more than by chance."""
    if not _has_classes(graph):
        return False
    labels = np.where(graph.split == Split.TRAIN, graph.labels, -1)
    ends = labels[graph.csc.indices], np.repeat(labels, np.diff(graph.csc.indptr))
    in_training = (ends[0] >= 0) & (ends[1] >= 0)
    sizes = np.bincount(labels[labels >= 0])
    chance = float(np.square(sizes / max(sizes.sum(), 1)).sum())
    return bool(in_training.any()) and float((ends[0] == ends[1])[in_training].mean()) - chance > _AGREE * (1 - chance)


def _with_types(graph: Graph, from_columns: bool, keys_to_try: tuple[Keys, ...]) -> tuple[Keys, ...]:
    """Adds models of types, and puts first what rows and neighbours suggest."""
    relations, learned = LISTS["relations"] if graph.num_relations > 1 else (), CONFIGURATIONS["learned"]
    by_type, first = (CONFIGURATIONS["learned by type"],) * bool(relations), tuple[Keys, ...]()
    if not from_columns:
        by_type = ()
    elif has_few_rows(graph.features):
        first, by_type = (*by_type, learned), ()
        keys_to_try = tuple(config for config in keys_to_try if config != learned)
    if not _agree(graph) and _has_classes(graph) and from_columns:
        keys_to_try = (*({**keys_to_try[0], **skip} for skip in LISTS["skips"]), *keys_to_try)
    elif _agree(graph):
        promising = [config for config in keys_to_try if config == learned or "label_inputs" in config]
        keys_to_try = (*promising, *(config for config in keys_to_try if config not in promising))
    configs = (*first, *relations, *by_type, *keys_to_try)
    types: Keys = {"types": "ignore"} if graph.schema.several else {}
    return tuple({**config, **types, **config} for config in configs)  # a configuration's own types last


def run(
    settings: Settings,
    graph: Graph,
    base_keys: Keys,
    configs: tuple[Keys, ...],
    figure: str | None = None,
    symmetric: bool = False,
    other: Callable[[], Graph] | None = None,
) -> Trials:
    """Trains each configuration in its own process until the work is used up.

    If Optuna is installed, its `MedianPruner` stops trials that lag behind complete
    ones. These are never selected, and baselines are never pruned. A trial gets at most
    a third of the work, as a number of epochs, and starts only if half of the last
    trial's work is left. So the load of the machine changes nothing. An interrupt ends
    the trials and keeps the completed ones.

    Args:
        settings: The configuration of job=init.
        graph: The training graph.
        base_keys: Keys of all trials.
        configs: The configurations, in order, the first of which is followed by the
            baselines. Those after the losses and class weights take the best of these.
        figure: The validation metric that stops trials and selects the best. If None,
            the task's.
        symmetric: Whether reverse edges were added to the graph.
        other: Makes the graph with reverse edges, or the one without. The first
            configuration is tried on both, and the next ones on the better one, except
            that the best is tried on both in the end. If None, there is one graph.
    """
    budget, trials = 60 * settings.job_keys.init.minutes, list[Trial]()
    task: Task = _settings(settings, base_keys, {}, MAX_EPOCHS).task.create()
    figure = figure or task.progress
    base_keys = {**base_keys, "trainer.monitor": figure}
    inputs = base_keys.get("inputs", "features")
    reads_columns = _of_edges(base_keys["task"]) or inputs == "features"
    to_compare = _baselines(graph, figure, base_keys["task"], inputs) if reads_columns else []
    count, end_reason = len(configs) + len(to_compare) + 2 * (other is not None), ""

    def so_far() -> Trials:
        return Trials(task, figure, tuple(trials), count, end_reason)

    def upcoming() -> Iterator[tuple[Keys, Graph, str]]:
        nonlocal count
        yield configs[0], graph, ""
        directions: list[tuple[Keys, Graph]] = [({}, graph)]
        if other is not None:
            directions.append(({_SYMMETRIZE: not symmetric}, other()))
            yield {**configs[0], **directions[1][0]}, directions[1][1], ""
            if so_far().best is trials[1]:
                directions.reverse()
        for candidate, reads in (*to_compare, *((candidate, "") for candidate in configs[1:])):
            yield {**_with_task(candidate, so_far().best_network), **directions[0][0]}, directions[0][1], reads
        best = so_far().best
        if other is None or best is None:
            return
        if best in trials[:2]:
            count -= 1  # it is tried on both
            return
        unturned = {key: value for key, value in best.keys.items() if key != _SYMMETRIZE}
        yield {**unturned, **directions[1][0]}, directions[1][1], best.baseline

    try:
        for candidate, trained_graph, reads in upcoming():
            used_work = sum(trial.work for trial in trials)
            if trials and trials[-1].work * _LEAST > budget - used_work:
                end_reason = f"init.minutes={settings.job_keys.init.minutes:g} allows no more"
                break
            work = max(min(budget - used_work, budget * _MOST), _START)
            last = _try(settings, trained_graph, figure, base_keys, candidate, work, reads, trials)
            trials.append(last)
            score = last.remark if last.score is None else f"{figure} {last.score:.4f}"
            share = f"{min((used_work + last.work) / budget, 1):.0%} of the work of init.minutes"
            say(f"[{len(trials)} of {count}] {last.title}: {score} in {last.seconds:.1f} s, {share}")
    except (KeyboardInterrupt, SystemExit):  # a second signal ends the process
        end_reason = "interrupted, the best trial so far counts"
        say(end_reason)
    return so_far()


def _with_task(candidate: Keys, best: Trial | None) -> Keys:
    """Adds the best trial's loss and weights, unless the candidate has others."""
    task = {key: value for key, value in (best.keys if best else {}).items() if key.startswith("task.")}
    return {**candidate, **task, **candidate}


def _baselines(
    graph: Graph, figure: str, task: str = "node_classification", inputs: str = "features"
) -> list[tuple[Keys, str]]:
    """Lists the configurations to compare with, and what they read.

    Of labelled edges, it is the ends' columns, and who they are, in learned rows,
    unless the user has chosen `inputs=degree`. Boosting has the loss that suits the
    figure. Where labels depend on the degree, it is a column of the trees that read
    neighbours, whose means they read, too.
    """
    types: Keys = {"types": "ignore"} if graph.schema.several else {}
    alone = {**CONFIGURATIONS["alone"], **types}
    trees = {**CONFIGURATIONS["boosting"], **types, **_LOSSES.get(figure, {})}
    if _of_edges(task):
        rows = [alone] if inputs == "degree" else [alone, {**alone, **CONFIGURATIONS["ends"]}]
        return [(configuration, NO_EDGES) for configuration in rows]  # boosting reads nodes
    if not baselines.is_installed():
        say(baselines.MISSING)
    elif not baselines.fits(graph):
        say("gradient boosting is not tried: the table has too many cells")
    else:
        columns_only = ({**trees, "model.neighbours": False}, COLUMNS)
        trees = {**trees, **_degree(graph)}
        has_labels = task == "node_classification" and len(graph.schema.node_types) == 1 and _agree(graph)
        by_labels = [({**trees, "label_inputs": 0.5}, LABELS)] * has_labels
        return [(alone, NO_EDGES), columns_only, (trees, MEANS), *by_labels]
    return [(alone, NO_EDGES)]


def _epoch(settings: Settings, graph: Graph) -> float:
    """Estimates the seconds of an epoch on a nominal machine."""
    if settings.model.name == baselines.NAME:
        return baselines.epoch_seconds(graph)
    model = settings.model.arguments
    width, layers = int(model.get("hidden", 64)) * int(model.get("heads", 1)), int(model.get("num_layers", 2))
    columns = settings.embedding or 64 if settings.inputs == "learned" else graph.features.shape[1]
    values = graph.num_nodes * columns * (1.0 if settings.inputs == "learned" else nonzero_share(graph.features))
    return _EPOCH + 6 * width * (values + layers * (graph.num_edges + graph.num_nodes * width)) / _RATE


def _test_of(figure: str) -> str:
    return figure.replace("val_", "test_", 1)


def _try(
    settings: Settings,
    graph: Graph,
    figure: str,
    base_keys: Keys,
    config: Keys,
    work: float,
    reads: str,
    earlier: Sequence[Trial],
) -> Trial:
    """Trains one configuration with at most this work."""
    start = time.monotonic()
    training_keys = {key: value for key, value in config.items() if not key.startswith("dataset.")}
    with tempfile.TemporaryDirectory(prefix="gnnkit-trial-") as folder, if_forced(lambda: shutil.rmtree(folder)):
        curve_file = Path(folder) / "curve.json"
        try:
            seconds = _epoch(_settings(settings, base_keys, training_keys, MAX_EPOCHS), graph)
            share = 0.5 if reads in (COLUMNS, MEANS, LABELS) else 1.0  # boosting shall not crowd out graph models
            epochs = max(min(int((share * work - _START) / seconds), MAX_EPOCHS), 1)
            trial_settings = _settings(settings, base_keys, training_keys, epochs)
            if not reads and pruning.is_installed():
                trial_settings = _with_pruner(trial_settings, figure, earlier, curve_file)
            order = Order(trial_settings, graph, folder=Path(folder) / "run")
            preload(order)
            log, patience = Path(folder) / "log", Patience.of(settings.timeout)
            figures = run_in_child(_figures, order, figure, log, always=True, patience=patience)
        except (UserError, RankError) as error:
            outcome = "refused" if isinstance(error, UserError) else "failed"
            remark = one_line(f"{outcome}: {error}")
            return Trial(config, None, None, None, 0, time.monotonic() - start, remark, reads, work=_START)
        curve = read_json(curve_file) if curve_file.exists() else ()
    stop_reason = figures["stopped"] or ""
    remark = "ended by init.minutes" if not stop_reason and epochs < MAX_EPOCHS else ""
    remark = stop_reason if stop_reason.startswith(pruning.PRUNED) else remark
    scores, duration = (figures[figure], figures.get(LOSS), figures[_test_of(figure)]), time.monotonic() - start
    used_work = _START + figures["epochs"] * seconds
    return Trial(config, *scores, figures["epochs"], duration, remark, reads, curve, used_work)


def _with_pruner(settings: Settings, figure: str, earlier: Sequence[Trial], file: Path) -> Settings:
    """Adds the callback that prunes a trial by the curves of complete ones."""
    direction: pruning.Direction = "minimize" if settings.task.create().is_lower_better(figure) else "maximize"
    complete = [trial.curve for trial in earlier if trial.curve and not trial.remark]
    pruner = pruning.MedianStop(figure, direction, complete, file)
    return replace(settings, callback=(Choice("callback", "pruning", {}, pruner),))


def _settings(settings: Settings, base_keys: Keys, trial_keys: Keys, epochs: int) -> Settings:
    """Makes the settings of one trial."""
    values: dict[str, Any] = {
        "job": "train",
        "strategy": "vertex_centric",
        "workers": 1,
        "comm": "threads",
        "logger": "none",
        "report": False,
        "seed": settings.seed,
        "cache": False,
        "write": [],
        "trainer.checkpoint": False,
        "trainer.progress_bar": False,
        **training(),
        "trainer.max_epochs": epochs,
        **{key: value for key, value in base_keys.items() if not (learns(trial_keys) and key.startswith("features."))},
        **trial_keys,
    }
    trial_settings = settle(config.compose([f"{key}={keys.plain(value)}" for key, value in values.items()]))
    return with_choice(trial_settings, Choice("dataset", "graph", {}))


def training() -> dict[str, Any]:
    """Returns the stopping keys of trials and of the written configuration."""
    return {
        "trainer.max_epochs": MAX_EPOCHS,
        "trainer.patience": PATIENCE,
        "trainer.check_val_every_n_epoch": 1,
    }


def learns(config: Keys) -> bool:
    """Returns whether a configuration ignores feature columns."""
    return config.get("inputs") == "learned"


def _figures(order: Order, figure: str, log: Path) -> dict[str, Any]:
    """Trains in a child process without terminal output."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    result = start(order)
    names = (figure, LOSS, _test_of(figure), "epochs", "stopped")
    return {name: result.get(name) for name in names}
