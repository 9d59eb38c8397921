"""job=init: writes a first configuration and script for the user's data.

Each key is chosen by the graph's properties, with the reason as a comment.
"""

from __future__ import annotations

import functools
import operator
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import plugins
from gnnkit.config import key_of, keys
from gnnkit.config.settings import FEW_EDGES, SMALL_EDGES, Settings, with_choice
from gnnkit.dataset.base import Advice, both_ways, describe_share, with_split
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Relation, Split, labelled
from gnnkit.graph.split import read_split, time_columns
from gnnkit.graph.unfit_columns import IgnorableColumns
from gnnkit.jobs.order import Order, absolute
from gnnkit.launch.progress import say, warnings_in_lines
from gnnkit.plugins import CONF, SEARCH
from gnnkit.prepare.columns import NumericTable, check_ids, check_texts, ignored_columns
from gnnkit.prepare.inputs import with_names
from gnnkit.prepare.steps import no_split
from gnnkit.prepare.transform import why_uneven
from gnnkit.result.result import Result
from gnnkit.task import NodeTask
from gnnkit.task.classes import RARE
from gnnkit.task.node_classification import ranking_metric
from gnnkit.utils.documents import parse_yaml, read_yaml
from gnnkit.utils.ranges import local_path, num_cores, one_line
from gnnkit.utils.storage import write_atomically
from gnnkit_plan import INIT_CHOICES
from gnnkit_plan.feature_checks import describe_leaks, has_classes

NAME = "mine"  # of the experiment
_SCRIPT_FILE = "train.py"
TRIALS_FILE = "trials.csv"
_FILES = {"experiment", TRIALS_FILE, _SCRIPT_FILE}
MAX_EPOCHS, PATIENCE = 300, 50  # of a trial, and of the written configuration
MACRO = "val_macro_f1"  # mean over classes, for unbalanced classes
SPLIT = [0.6, 0.2, 0.2]
# Above either, full-graph steps take long, and mini-batches train faster.
_MAX_NODES, _MAX_EDGES = 200_000, 5_000_000
_UNEVEN_CLASSES = 5  # ratio of class sizes
# Shares of edges with a reverse edge. Below the first, reverse edges are added. Below
# the second, trials compare both.
_DIRECTED, _UNDIRECTED = 0.5, 0.9
_FEW_OF_CLASS = 5  # validation nodes of a class below which its score is noise
RANKING_EPOCHS, RANKING_PATIENCE = 100, 3  # at most, and evaluations, of which a run has one every 10 epochs
_LEARNED = "by trials: the graph is more informative than the columns. New nodes have none, and start from zeros"
_LABELS = "by trials: predictions need the labels of training nodes, too"
_DEGREE = "by trials: labels depend on the number of edges"
_SKIP = "by trials: neighbours say little, so outputs read the node's row directly, too"
_RECENT = "if they depend on recent edges, compare model=gin with sampler.time=window (docs/howto/labelled-edges.md)"
_KNOWN = "reads labels of earlier edges, as known at once. If later: such as 30 days. null: reads none"
_KEY_REASONS = {"ignore": "not read", "time": "messages come from earlier edges alone. null: edges have no time"}
_GROUPS = ("dataset", "strategy", "model", "task")  # sections with a YAML file per option


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """A key of the configuration, with the reason for its value."""

    key: str  # as on the command line, such as model.hidden
    value: Any
    why: str = ""


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search over configurations, by a plugin of `gnnkit.search`."""

    best: Mapping[str, Any] | None  # values by configuration key. None: none was better than the others
    why: str  # describes the choice
    figures: Mapping[str, Any]  # for the result
    summary: Sequence[str]  # lines for the user
    lines: Sequence[str]  # a table of all configurations, for the written file
    table: bytes  # the same as `trials.csv`


def init(order: Order) -> Result:
    """Writes an experiment and a script into a new folder, which is not a run folder.

    Raises `UserError` for a graph from Python, because a file cannot name it.
    """
    settings, output = order.settings, order.named_folder
    if output is None:
        raise UserError("job=init needs output=FOLDER, a new folder for a configuration and a script")
    if order.graph is not None:
        raise UserError("job=init writes files that name the data: give dataset=NAME in place of a graph")
    folder = local_path("output", output).absolute()
    _check_new(folder, settings.on_exists)
    with warnings_in_lines(settings.dataset.name):
        advice = settings.dataset.create().advise(settings.job_keys.init.minutes, settings.seed)
    _check_replaced(folder, {*_FILES, *advice.files})
    if advice.missing:
        _write_advised(folder, advice)
        raise UserError(f"{advice.missing} (written: {', '.join(str(folder / name) for name in advice.files)})")
    from_user = [*_advised_choices(advice, folder), *_named_choices(order)]
    with warnings_in_lines(settings.dataset.name):
        read = _with_times(*_with_node_types(*_without_unfit(settings, advice.graph)))
        choices, trials = by_evidence(*read, from_user)
    command = one_line(f"gnnkit --config-dir {shlex.quote(str(folder))} +experiment={NAME}")
    script = _write(folder, choices, trials, command)
    _write_advised(folder, advice)
    figures: dict[str, Any] = {choice.key: choice.value for choice in choices}
    shown = [choice for choice in choices if choice.key in ("dataset.time", "task", "model")]
    lines = [f"{choice.key}={choice.value}  # {one_line(choice.why)}" for choice in shown]
    if trials is not None:
        figures |= trials.figures
        lines = [*trials.summary, *lines]
    ways = [
        f"a reason for each key  {folder / 'experiment' / NAME}.yaml",
        f"train by the command   {command}",
        f"train your own model   python {shlex.quote(str(script))}",
    ]
    result = Result("init", figures, "\n".join([*lines, *ways]), folder)
    say(result.table())
    return result


def _advised_choices(advice: Advice, folder: Path) -> list[KeyChoice]:
    """Returns the data set's keys, with the paths of its files."""
    values = {name: str(folder / name) for name in advice.files}
    return [KeyChoice(key, values.get(str(value), value), why) for key, (value, why) in advice.keys.items()]


def _write_advised(folder: Path, advice: Advice) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in advice.files.items():
        write_atomically(folder / name, content if isinstance(content, bytes) else content.encode())


def _named_choices(order: Order) -> list[KeyChoice]:
    """Returns the keys that the user has chosen instead of job=init."""
    names = [key for key in dict.fromkeys(map(key_of, order.overrides)) if key.partition(".")[0] in INIT_CHOICES]
    composed = order.settings.composed
    values: dict[str, Any] = {key: functools.reduce(operator.getitem, key.split("."), composed) for key in names}
    return [KeyChoice(key, value["name"] if key == "task" else value, "as you chose") for key, value in values.items()]


def _without_unfit(settings: Settings, loaded_graph: Graph | None = None) -> tuple[Settings, Graph]:
    """Loads the graph, without the columns that cannot be used.

    Raises `UserError` if one of them holds the edges' weights.

    Args:
        loaded_graph: The graph, if the data set has returned it with its advice.
    """
    try:
        graph = with_names(settings, loaded_graph)
        check_texts(graph, "one_hot", ignored_columns(settings))
        check_ids(graph, ignored_columns(settings))
    except UserError as error:
        unfit = IgnorableColumns.of(error)
        if unfit is None or unfit.ignored is None or "weight" in unfit.names:
            raise
        say(f"left out by dataset.ignore: {unfit.reasons}")
        dataset = settings.dataset
        arguments = {**dataset.arguments, "ignore": list(dict.fromkeys([*unfit.ignored, *unfit.names]))}
        return _without_unfit(with_choice(settings, replace(dataset, arguments=arguments)))
    return settings, graph


def _with_node_types(settings: Settings, graph: Graph) -> tuple[Settings, Graph]:
    """Reads an edge table with disjoint ends, and nothing else, as two node types."""
    dataset = settings.dataset
    is_open = "bipartite" in _usual(settings) and dataset.arguments.get("bipartite") is None
    if not is_open or graph.relations or graph.features.shape[1] or graph.labelled.any():
        return settings, graph
    sources, destinations = np.unique(graph.csc.indices), np.flatnonzero(np.diff(graph.csc.indptr))
    if min(len(sources), len(destinations)) < 2 or np.isin(sources, destinations).any():
        return settings, graph
    settings = with_choice(settings, replace(dataset, arguments={**dataset.arguments, "bipartite": True}))
    return settings, with_names(settings)


def _with_times(settings: Settings, graph: Graph) -> tuple[Settings, Graph]:
    """Reads the only column with times of labelled edges as their times."""
    dataset, columns = settings.dataset, time_columns(graph, "edge")
    is_open = "time" in _usual(settings) and dataset.arguments.get("time") is None and not graph.is_split
    if not is_open or graph.edge_labels is None or len(columns) != 1:
        return settings, graph
    settings = with_choice(settings, replace(dataset, arguments={**dataset.arguments, "time": columns[0]}))
    return settings, with_names(settings)


def recommended(graph: Graph) -> dict[str, Any]:
    """Returns the keys for recommending items to users. Empty for other graphs."""
    if _ranked_relation(graph) is None:
        return {}
    choices = [*_recommend(graph), *_strategy(graph), *_inputs(graph), *_trainer(graph, {"task": "link_prediction"})]
    return {choice.key: choice.value for choice in choices}


def _ranked_relation(graph: Graph) -> Relation | None:
    """Returns the relation that joins two node types, in a graph without labels.

    None if there are several, other than reverse relations as PyG names them.
    """
    relations = [relation for relation in graph.relations or () if not relation.name.startswith("rev_")]
    has_labels = bool(graph.labelled.any()) or graph.edge_labels is not None
    is_ranked = len(relations) == 1 and relations[0].source != relations[0].destination and not has_labels
    return relations[0] if is_ranked else None


def _check_replaced(folder: Path, names: Set[str]) -> None:
    """Raises `UserError` if a folder to replace has other files."""
    if folder.is_dir() and not {path.name for path in folder.iterdir()} <= names:
        raise UserError(f"output={folder}: on_exists=replace replaces only what job=init wrote: name a new folder")


def _check_new(folder: Path, on_exists: str) -> None:
    """Raises `UserError` before any trial if the folder cannot be written."""
    if on_exists == "resume":
        raise UserError("on_exists=resume: job=init cannot resume: choose refuse or replace")
    if folder.is_dir() and on_exists == "replace":
        return
    try:
        folder.mkdir(parents=True)
        folder.rmdir()
    except OSError as error:
        cure = ", or on_exists=replace" if folder.is_dir() else ""
        raise UserError(f"output={folder}: cannot make the folder: {error.strerror}: name a new one{cure}") from error


def _write(folder: Path, choices: list[KeyChoice], trials: Searched | None, command: str) -> Path:
    """Writes all files, and returns the path of the script.

    Args:
        folder: The new folder.
        choices: The content.
        trials: The trials, if any.
        command: Trains with the experiment.
    """
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "experiment" / f"{NAME}.yaml").write_text(_as_yaml(choices, trials, command), encoding="utf-8")
    (folder / TRIALS_FILE).unlink(missing_ok=True)  # an earlier one
    if trials is not None:
        write_atomically(folder / TRIALS_FILE, trials.table)
    script = folder / _SCRIPT_FILE
    script.write_text(_as_script(choices), encoding="utf-8")
    return script


def by_evidence(
    settings: Settings, graph: Graph, from_user: Sequence[KeyChoice] = ()
) -> tuple[list[KeyChoice], Searched | None]:
    """Returns the choices for the graph, and the trials that selected the model."""
    choices = list(choose(settings, graph, from_user))
    values, graph = {choice.key: choice.value for choice in choices}, _with_split(settings, graph)
    if leaks := describe_leaks(graph, ignored_columns(settings)):
        say(leaks)
    rows = _rows(graph, values)
    task = plugins.load("task", values["task"])
    if issubclass(task, NodeTask) and rows.labelled.any() and not (rows.split == Split.TRAIN).any():
        has_times = getattr(graph, f"{task.noun}_time", None) is not None
        raise UserError(no_split(settings, has_labels=True, noun=task.noun, has_times=has_times))
    if "model" in {choice.key for choice in from_user}:  # the data set's advice, with trials of its own
        return choices, None
    if reason := _why_no_trials(settings, rows, values):
        say(f"no trials: {reason}")
        return choices, None
    both_directions = both_ways(graph.csc) < _UNDIRECTED and _may_symmetrize(settings, graph)
    search = plugins.load(SEARCH, "trials")
    figure = _figure(rows, values["task"])
    trials: Searched = search(settings, graph, values, figure=figure, both_directions=both_directions)
    return choices if trials.best is None else _replace_model(choices, trials.best, trials.why), trials


def _why_no_trials(settings: Settings, rows: Graph, values: Mapping[str, Any]) -> str:
    """Returns why no trials are run, or "" if they are.

    Args:
        settings: The configuration.
        rows: The labelled rows, from `_rows`.
        values: The choices so far.
    """
    package, rest = plugins.PACKAGES[SEARCH]["trials"], "the default keys are written"
    task = plugins.load("task", values["task"])
    is_held_out = (rows.split == Split.VAL).any() or "dataset.split" in values
    reasons = {
        "init.minutes=0": not settings.job_keys.init.minutes,
        f"they need the package {package}: pip install {package}: {rest}": "trials" not in plugins.names(SEARCH),
        f"the graph is large, and a trial would take too long: {rest}": values["strategy"] != "vertex_centric",
        f"trials support only tasks with labels: {rest}": not issubclass(task, NodeTask),
        f"nothing is held out for validation: {rest}": not is_held_out,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _rows(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """Returns the labelled rows of the chosen task as nodes, or the graph if none."""
    task = plugins.load("task", values["task"])
    if task.labels_nodes:
        return graph
    rows: Graph = task(**{key[5:]: value for key, value in values.items() if key.startswith("task.")}).read_rows(graph)
    return rows


def _with_split(settings: Settings, graph: Graph) -> Graph:
    """Splits the labelled nodes and edges if the data has no split."""
    is_labelled = bool(graph.labelled.any()) or graph.edge_labels is not None
    if not is_labelled or (graph.is_split and not graph.has_undivided_edges):
        return graph
    split, _ = _choose_split(graph)
    return with_split(graph, read_split("dataset.split", split), int(settings.dataset.arguments.get("seed", 0)))


def _choose_split(graph: Graph) -> tuple[list[float] | dict[str, Any], str]:
    """Returns the split of data without one, and why."""
    times = graph.edge_time
    if graph.labelled.any() and not graph.is_split:
        times = None if graph.node_time is None else graph.node_time[graph.labelled]
    if times is not None and len(np.unique(times)) > len(SPLIT):
        return {"by": "time", "shares": SPLIT}, "rows have times: no model trains on the future of what it is tested on"
    lacking = "edges have labels" if graph.is_split else "the data has labels"
    return SPLIT, f"{lacking} and no split: train, validate, test"


def _figure(graph: Graph, task: str) -> str | None:
    """Returns the validation metric for uneven classes, or None."""
    if task not in ("node_classification", "edge_classification") or not has_classes(graph):
        return None
    splits = [graph.labelled & (graph.split == split) for split in (Split.TRAIN, Split.VAL)]
    counts = [np.bincount(graph.labels[nodes], minlength=graph.num_classes).tolist() for nodes in splits]
    if (ranking := ranking_metric(*counts)) is not None:
        return f"val_{ranking}"
    uneven = bool(_uneven_classes(graph, splits[1])) and _sizes(graph, splits[1]).min() >= _FEW_OF_CLASS
    return MACRO if uneven else None


def _replace_model(choices: list[KeyChoice], best: Mapping[str, Any], cause: str) -> list[KeyChoice]:
    """Replaces choices by the keys of the best trial."""
    unread = ("model", "features.") if best.get("inputs") == "learned" else ("model",)
    by_key = {choice.key: choice for choice in choices if not choice.key.startswith(unread)}
    reasons = {"model": cause, "label_inputs": _LABELS, "features.degree": _DEGREE, "model.skip": _SKIP}
    for key, value in best.items():
        is_kept = key not in reasons and key in by_key and by_key[key].value == value
        default = _LEARNED if (key, value) == ("inputs", "learned") else "by trials"
        by_key[key] = by_key[key] if is_kept else KeyChoice(key, value, reasons.get(key, default))
    return list(by_key.values())


def choose(settings: Settings, graph: Graph, from_user: Sequence[KeyChoice] = ()) -> list[KeyChoice]:
    """Lists the choices that follow from the graph's properties.

    Args:
        settings: The configuration of job=init.
        graph: The graph.
        from_user: Choices of the user, which replace others.
    """
    choices = {choice.key: choice for choice in (*_choose(settings, graph, from_user), *from_user)}
    exists = {f"model.{key.name}" for key in keys.read("model", choices["model"].value).keys}
    return [choice for choice in choices.values() if not choice.key.startswith("model.") or choice.key in exists]


def _choose(settings: Settings, graph: Graph, from_user: Sequence[KeyChoice]) -> Iterator[KeyChoice]:
    keys_of = {choice.key: choice.value for choice in from_user}
    yield from _dataset(settings, graph)
    tasks = list(_task(settings, graph))
    if (name := keys_of.get("task", tasks[0].value)) != tasks[0].value:  # labels of edges may be classes or numbers
        known = {f"task.{key.name}" for key in keys.read("task", name).keys if graph.edge_labels is not None}
        tasks = [choice for choice in tasks if choice.key in known]
    yield from tasks
    keys_of = {**{choice.key: choice.value for choice in tasks}, **keys_of}
    yield from _strategy(graph)
    if keys_of.get("inputs", "features") == "features":
        yield from _inputs(graph, ignored_columns(settings))
    if graph.num_edges <= FEW_EDGES:
        yield KeyChoice("workers", 1, "the graph is small: workers would wait for each other more than they save")
        if graph.num_edges <= SMALL_EDGES:
            yield KeyChoice("threads", 1, "and so would threads")
    else:
        yield KeyChoice("workers", min(num_cores(), 4), "cores of this machine, at most 4")
    yield from _trainer(_with_split(settings, graph), keys_of)
    if graph.node_ids is not None or graph.class_names is not None:
        yield KeyChoice("write_format", "parquet", "predictions name your ids and classes")


def _dataset(settings: Settings, graph: Graph) -> Iterator[KeyChoice]:
    """Yields the data set with its non-default and missing keys."""
    dataset, usual = settings.dataset, _usual(settings)
    size = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.features.shape[1]:,} columns of features"
    yield KeyChoice("dataset", dataset.name, size)
    for key, value in dataset.arguments.items():
        if key not in plugins.TASK_KEYS and (key not in usual or usual[key] != value):
            yield KeyChoice(f"dataset.{key}", absolute(key, value), _KEY_REASONS.get(key, ""))
    share = both_ways(graph.csc)
    if share < _DIRECTED and _may_symmetrize(settings, graph):
        reason = f"{describe_share(share, graph.num_edges)}: messages then flow both ways"
        yield KeyChoice("dataset.symmetrize", True, f"{reason}. false: from src to dst alone")
    split, reason = _choose_split(graph)
    is_held_out = graph.is_split or graph.val_edges is not None or graph.test_edges is not None
    is_labelled = bool(graph.labelled.any()) or graph.edge_labels is not None
    if not graph.is_split or graph.has_undivided_edges if is_labelled else isinstance(split, dict) and not is_held_out:
        if "split" not in usual:
            raise UserError(f"dataset={dataset.name} has labels, but no split: add a split to the data")
        yield KeyChoice("dataset.split", split, reason)


def _may_symmetrize(settings: Settings, graph: Graph) -> bool:
    """Returns whether reverse edges can be added, and the user has not decided it."""
    is_open = "symmetrize" in _usual(settings) and settings.dataset.arguments.get("symmetrize") is None
    return is_open and not graph.relations


def _usual(settings: Settings) -> dict[str, Any]:
    """Returns the defaults of the data set's keys."""
    names = keys.read("dataset", settings.dataset.name).keys
    return {key.name: parse_yaml(key.default, f"dataset.{key.name}") for key in names}


def _task(settings: Settings, graph: Graph) -> Iterator[KeyChoice]:
    """Yields the task for this type of labels."""
    names = graph.class_names or ()
    if graph.edge_labels is not None:
        kind = "regression" if graph.edge_labels.dtype.kind == "f" else "classification"
        recent = "" if graph.edge_time is None else f"; {_RECENT}"
        yield KeyChoice("task", f"edge_{kind}", f"edges have labels{recent}")
        if graph.edge_time is not None:
            yield KeyChoice("task.label_delay", 0, _KNOWN)
        relations = np.unique([] if graph.edge_types is None else graph.edge_types[labelled(graph.edge_labels)])
        if len(relations) == 1 and graph.relations is not None and len(graph.relations) > 1:
            yield KeyChoice("task.relation", graph.relations[relations[0]].edge_type, "its edges have the labels")
        return
    if _ranked_relation(graph) is not None:
        yield from _recommend(graph)
        return
    if not graph.labelled.any():
        columns = [f"dataset.{key}=COLUMN" for key in ("label", "edge_label") if key in _usual(settings)]
        cure = f". Set {' or '.join(columns)} for labels of nodes or edges" if columns else ""
        yield KeyChoice("task", "link_prediction", f"no node has a label, so edges are predicted{cure}")
    elif graph.labels.dtype.kind == "f":
        values = graph.labels[graph.labelled]
        is_whole = values.ndim == 1 and bool((values == np.round(values)).all())
        classes = ", all of them whole: task=node_classification if they are classes" if is_whole else ""
        yield KeyChoice("task", "regression", f"labels are numbers{classes}")
    elif graph.labels.ndim == 2 or any(";" in name for name in names):
        yield KeyChoice("task", "multilabel", "labels are sets of classes")
    else:
        count = graph.num_nodes - int(graph.labelled.sum()) if len(graph.schema.node_types) == 1 else 0
        remark = f", and {count:,} of {graph.num_nodes:,} nodes have none (-1 or empty)" if count else ""
        uneven = _uneven_classes(graph, graph.labelled)
        yield KeyChoice("task", "node_classification", f"labels are {graph.num_classes} classes{uneven}{remark}")


def _recommend(graph: Graph) -> Iterator[KeyChoice]:
    """Yields the task of recommending a relation's destinations."""
    relation = _ranked_relation(graph)
    assert relation is not None
    ends = f"{relation.source} and {relation.destination}"
    yield KeyChoice("task", "link_prediction", f"recommends: {ends} are two node types, and no node has a label")
    if graph.num_relations > 1:
        yield KeyChoice("task.relation", relation.edge_type, "the others are its reverse")
    yield KeyChoice("task.width", 128, "size of the vectors and of the learned rows")
    yield KeyChoice("task.loss", "softmax", "ranks an item above its negatives, or bpr")
    yield KeyChoice("task.negatives", 2, "sampled items per edge")
    yield KeyChoice("task.eval_negatives", 10, "few, because evaluation ranks all items too")
    yield KeyChoice("write", ["predictions", "vectors"], "topk.parquet, and the vectors of the score for an index")


def _uneven_classes(graph: Graph, nodes: npt.NDArray[np.bool_]) -> str:
    """Returns advice if one class of `nodes` is much larger than another.

    Returns "" for balanced classes, multi-label data and numbers.
    """
    if not has_classes(graph):
        return ""
    class_sizes = _sizes(graph, nodes)
    if len(class_sizes) < 2 or class_sizes.max() < _UNEVEN_CLASSES * class_sizes.min():
        return ""
    share = f"{100 * class_sizes.min() / class_sizes.sum():.2g} % of nodes in the smallest"
    is_rare = len(class_sizes) == 2 and class_sizes.min() < RARE * class_sizes.sum()
    advice = "it has a larger weight and a threshold" if is_rare else "task.class_weights=balanced weights them equally"
    return f", {share}: {advice}"


def _sizes(graph: Graph, nodes: npt.NDArray[np.bool_]) -> Ids:  # [classes present]
    counts = np.bincount(graph.labels[nodes & graph.labelled])
    return counts[counts > 0]


def _strategy(graph: Graph) -> Iterator[KeyChoice]:
    """Yields a strategy for the graph size, and a model."""
    small = graph.num_nodes <= _MAX_NODES and graph.num_edges <= _MAX_EDGES
    if small:
        yield KeyChoice("strategy", "vertex_centric", "the graph is small: every node in every step, exactly")
    else:
        yield KeyChoice("strategy", "individual_sample", "the graph is large: mini-batches of sampled neighbours")
    if _ranked_relation(graph) is not None:
        yield KeyChoice("model", "lightgcn", "linear layers without weights, for recommendations")
        yield KeyChoice("model.num_layers", 2, "more rank worse for nodes with few edges")
        if graph.num_relations > 1:
            yield KeyChoice("model.inverse", False, "the graph has the reverse of each edge")
        return
    types = f"{len(graph.schema.node_types):,} types of nodes and {len(graph.schema.edge_types):,} of edges"
    if small and graph.num_relations > 1 and graph.labelled.any():
        yield KeyChoice("model", "rgat", "attention that distinguishes types of edges, or rgcn, hgt, simple_hgn")
        yield KeyChoice("types", "read", f"{types}. ignore, with model=sage: all are treated alike")
        yield KeyChoice("model.hidden", 8, "width of each of the hidden layers' 8 heads")
        return
    rows = "" if graph.edge_features is None else ". Edges have features: gine and your own model read them"
    yield KeyChoice("model", "sage", f"or gcn, gat, gin{rows}")
    if graph.schema.several:
        typed = "model=rgcn, rgat, hgt or simple_hgn with types=read distinguishes edge types"
        yield KeyChoice("types", "ignore", f"{types} are ignored by this model. {typed}")
    yield KeyChoice("model.hidden", 64, "width of the hidden layers")


def _inputs(graph: Graph, ignore: Sequence[str] | None = ()) -> Iterator[KeyChoice]:
    if not graph.features.shape[1]:
        yield KeyChoice("inputs", "learned", "nodes have no features: each gets a trained row. degree: new nodes, too")
        if _ranked_relation(graph) is not None:
            yield KeyChoice("learned.scale", 0.01, "small, because nodes with few edges hardly change their rows")
        return
    for reason in check_texts(graph, "one_hot", ignore):
        hint = "" if ignore is None else ". dataset.ignore leaves columns out"
        yield KeyChoice("features.text", "one_hot", f"{reason.partition(': ')[2]}{hint}")
    if reason := why_uneven(graph, np.arange(graph.num_nodes)):
        yield KeyChoice("features.scale", "standard", f"{reason}. none: as they are")
    if graph.missing is not None:
        yield KeyChoice("features.fill", *_fill(graph, graph.missing))


def _fill(graph: Graph, missing: Ids) -> tuple[str, str]:
    """Returns how empty cells are filled, and why."""
    columns, counts = np.unique(missing[:, 1], return_counts=True)
    sources = NumericTable.of_nodes(graph).are_sources()[columns]  # a text column counts once
    summary = f"{counts[sources].sum():,} cells of {np.count_nonzero(sources):,} columns are empty"
    if (counts < graph.num_nodes / 2).all():
        return "mean", f"{summary}: the mean of the nodes that train. zero, drop: leave the columns out"
    if len(columns) < graph.features.shape[1]:
        return "drop", f"{summary}, of some most: their columns are left out. mean: of the nodes that train"
    return "zero", f"{summary}, in all columns, of some most"


def _trainer(graph: Graph, values: Mapping[str, Any]) -> Iterator[KeyChoice]:
    """Yields the number of epochs and the stopping rule.

    Args:
        graph: The graph, with a split if it has labels.
        values: The task and its keys.
    """
    yield KeyChoice("trainer.max_epochs", RANKING_EPOCHS if _ranked_relation(graph) else MAX_EPOCHS, "at most")
    if _ranked_relation(graph) is not None:
        yield KeyChoice("trainer.lr", 0.02, "learned rows train faster than weights")
        yield KeyChoice("trainer.patience", RANKING_PATIENCE, "evaluations without a better ranking end the training")
        return
    if graph.edge_labels is not None or ((graph.split == Split.VAL).any() and graph.labelled.any()):
        figure = _figure(_rows(graph, values), values["task"]) or "auto"
        yield KeyChoice("trainer.monitor", figure, "the figure that selects the best epoch")
        yield KeyChoice("trainer.patience", PATIENCE, "evaluations without a better one end the training")
        yield KeyChoice("trainer.check_val_every_n_epoch", 1, "evaluate after each epoch")


def _as_yaml(choices: list[KeyChoice], trials: Searched | None, command: str) -> str:
    """Formats the choices as an experiment with comments."""
    lines = ["# @package _global_", f"# Written by job=init. Train with {command}"]
    lines += [f"# {one_line(line)}" for line in ([] if trials is None else trials.lines)]
    lines += ["defaults:"]
    groups, defaults = [choice for choice in choices if choice.key in _GROUPS], _with_default()
    for choice in sorted(groups, key=lambda choice: choice.key in defaults):  # Hydra requires overrides last
        override = "override " if choice.key in defaults else ""
        lines.append(_with_comment(f"  - {override}/{choice.key}: {choice.value}", choice.why))
    lines += ["  - _self_", ""]
    for section, entries in _sections(choices).items():
        lines += [f"{section}:"] * bool(section)
        for key, choice in entries.items():
            value = f"{'  ' * bool(section)}{key}: {keys.plain(_escape(choice.value))}"
            lines.append(_with_comment(value, choice.why))
    return "\n".join(lines) + "\n"


def _with_default() -> set[str]:
    """Returns the sections with a default in the main configuration."""
    main = read_yaml(CONF / "config.yaml")
    return {section for default in main["defaults"] if isinstance(default, dict) for section in default}


def _sections(choices: list[KeyChoice]) -> dict[str, dict[str, KeyChoice]]:
    """Groups choices by section and key. Top-level keys are under the empty name."""
    sections: dict[str, dict[str, KeyChoice]] = {"": {}}
    for choice in choices:
        if choice.key not in _GROUPS:
            section, _, key = choice.key.rpartition(".")
            sections.setdefault(section, {})[key] = choice
    return sections


def _with_comment(line: str, reason: str) -> str:
    return f"{line}  # {one_line(reason)}" if reason else line


def _escape(value: Any) -> Any:
    """Escapes interpolations, because names in the data are text."""
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _as_script(choices: list[KeyChoice]) -> str:
    """Formats the choices as keyword arguments of `gnnkit.train`."""
    sections: dict[str, dict[str, Any]] = {
        choice.key: {"name": choice.value} for choice in choices if choice.key in _GROUPS
    }
    for section, entries in _sections(choices).items():
        sections.setdefault(section, {}).update((key, choice.value) for key, choice in entries.items())
    plain = sections.pop("")
    if "types" in plain or sections["model"]["name"] == "lightgcn":
        plain["types"] = "ignore"  # the script's own model ignores types
    model: dict[str, Any] = {"hidden": 64, "num_layers": 2, "dropout": 0.5, **sections.pop("model", {})}
    hidden = 64 if model["name"] == "gat" else model["hidden"]
    arguments = {name: values["name"] if list(values) == ["name"] else values for name, values in sections.items()}
    lines = [f"{name}={value!r}," for name, value in {**arguments, **plain}.items()]
    template = Path(__file__).with_name("train.py.txt").read_text(encoding="utf-8")
    return template.format(
        arguments=textwrap.indent("\n".join([*lines, "model=Model,"]), "    "),
        num_layers=model["num_layers"],
        hidden=hidden,
        dropout=min(model["dropout"], 0.5),
    )
