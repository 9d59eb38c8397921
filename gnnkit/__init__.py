"""Train graph neural networks on several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from torch import nn

    from gnnkit.graph import Graph, Schema
    from gnnkit.model.program import Program
    from gnnkit.result.result import Result as Result

# Keys that imply several workers.
_OF_WORKERS = {"strategy", "experiment", "workers", "job", "partition", "comm", "launcher", "sync"}
_DEFAULT_MODEL, _TYPED_MODEL = "gcn", "rgat"  # as chosen by job=init
_OF_MODEL = {"model", "experiment", "checkpoint"}  # keys that determine the model
__all__ = ["Result", "UserError", "explain", "export", "load", "predict", "serve", "train"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports `Result` lazily, because the import takes time."""
        if name == "Result":
            from gnnkit.result.result import Result

            return Result
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def train(
    graph: Graph | Any = None,
    *,
    strategy: str | Mapping[str, Any] | None = None,
    model: str | Mapping[str, Any] | nn.Module | Program | Callable[[int, int], nn.Module] | None = None,
    callbacks: Sequence[Any] = (),
    logger: Any = None,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    **keys: Any,
) -> Result:
    """Runs one job, like `python -m gnnkit`.

    Raises `UserError` for mistakes in arguments, configuration or data. Otherwise
    raises `RuntimeError` with the failed rank's error.

    Partitions the graph, starts the workers, trains the model, evaluates it exactly and
    writes the run folder. It returns when all workers have ended. Call it from one
    process: the workers are its children, unless the process itself was started by
    torchrun, SLURM or MPI. With `job=NAME` among the keys it runs another job, such as
    `job="verify"`.

    Args:
        graph: A `Graph`, or PyG's `Data`, to use instead of a dataset.
        strategy: Name of the strategy, or a mapping with name and keys. Default: auto,
            which selects full-graph training if its predicted memory fits. With a graph
            and without strategy and workers, `workers="auto"` applies.
        model: Name of a model, or a module, a program, or a function of (in_features,
            num_classes) that returns a module. Default: gcn, or rgat for a graph with
            several node or edge types, unless `types="ignore"`. Users and items without
            labels get lightgcn, and the other keys that `job=init` chooses for them,
            unless `task` is another one.
        callbacks: Lightning callbacks, of which each rank gets a copy. A name, or a
            mapping with name and keys, selects an installed one.
        logger: Name of a logger, a mapping with name and keys, a Lightning logger, or a
            list of these. Default: tensorboard and csv.
        overrides: Further keys, as on the command line.
        folder: The run folder. If it contains a run, `on_exists` decides. Default:
            `outputs/<date>/<time>`.
        **keys: Sections of the configuration, each the name of an option or a mapping:
            `partition="2d"`, `trainer={"max_epochs": 5}`.

    Returns:
        The contents of `result.json`, as a mapping.

    Examples:
        >>> import gnnkit
        >>> from gnnkit.graph import Graph
        >>> graph = Graph.from_edges(
        ...     [0, 1, 2, 3], [1, 2, 3, 0], features=[[0.0], [1.0], [0.0], [1.0]],
        ...     labels=[0, 1, 0, 1], split=["train", "train", "val", "test"],
        ... )
        >>> result = gnnkit.train(
        ...     graph, strategy="vertex_centric", workers=1, trainer={"max_epochs": 5},
        ...     folder="outputs/second",
        ... )
        >>> result["epochs"]
        5
    """
    from gnnkit import config

    if graph is not None and "dataset" in keys:
        raise UserError("graph and dataset are given, one of them is enough")
    overrides = _texts(overrides)
    has_model = _OF_MODEL.intersection(map(config.key_of, (*config.as_overrides(keys), *overrides)))
    chooses_model, model_is_name = model is None and not has_model, model is None or isinstance(model, str | Mapping)
    sections = {
        **({"strategy": strategy} if strategy else {}),
        **({"model": _DEFAULT_MODEL if model is None else model} if model_is_name and not chooses_model else {}),
        **keys,
    }
    objects = {}
    for kind, parts in (("callback", callbacks), ("logger", logger)):
        names, objects[kind] = _apart(parts)
        if names or objects[kind]:
            sections[kind] = names
    assignments = _with_defaults([*config.as_overrides(sections), *overrides], has_graph=graph is not None)
    return _start(assignments, graph, None if model_is_name else model, folder, objects, chooses_model=chooses_model)


def _with_defaults(assignments: list[str], *, has_graph: bool) -> list[str]:
    """Adds `strategy=auto` and `workers=auto` where keys leave them open."""
    from gnnkit import config

    keys = {config.key_of(text) for text in assignments}
    workers = [] if keys & _OF_WORKERS or not has_graph else ["workers=auto"]
    strategy = [] if keys & {"strategy", config.EXPERIMENT} else ["strategy=auto"]
    return [*workers, *strategy, *assignments]


def predict(
    checkpoint: str | Path,
    graph: Graph | Any = None,
    *,
    model: nn.Module | Callable[[int, int], nn.Module] | None = None,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    **keys: Any,
) -> Result:
    """Computes a trained model's outputs for all nodes, like `job=predict`.

    Raises `UserError` for mistakes in arguments, configuration or data. Otherwise
    raises `RuntimeError` with the failed rank's error.

    Rows are transformed as in training: columns are matched by name, and scaled and
    imputed with the statistics that the run has stored. The result's folder contains
    one row per node, in the order of the graph's nodes.

    Args:
        checkpoint: The run folder of the training.
        graph: A `Graph`, or PyG's `Data`. Default: the training run's dataset.
        model: As for `load`, if the model was passed from Python in training.
        overrides: Further keys, as on the command line.
        folder: The run folder. If it contains a run, `on_exists` decides. Default:
            `outputs/<date>/<time>`.
        **keys: Sections of the configuration, as for `train`. With `job="test"`,
            metrics are computed too.

    Returns:
        The result. Its `folder` contains `predictions.npy`.
    """
    from gnnkit import config
    from gnnkit.utils.ranges import local_path

    sections = {"job": "predict", "checkpoint": str(local_path("checkpoint", checkpoint)), **keys}
    objects = [name for name, value in (("dataset", graph), ("model", model)) if value is not None]
    caller_overrides = [*config.as_overrides(sections), *_texts(overrides)]
    return _start(config.with_run(caller_overrides, objects), graph, model, folder, caller_overrides=caller_overrides)


def explain(
    checkpoint: str | Path,
    nodes: int | str | Sequence[int | str],
    graph: Graph | Any = None,
    *,
    model: nn.Module | Callable[[int, int], nn.Module] | None = None,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    **keys: Any,
) -> Result:
    """Explains a trained model's predictions for some nodes, like `job=explain`.

    Raises `UserError` for mistakes in arguments, configuration or data.

    Measures which features and which neighbours each prediction depends on. The
    fidelity compares predictions with and without them, so it shows how far to trust
    the tables.

    Args:
        checkpoint: The run folder of the training.
        nodes: A node's id, or several, as in the column `id` of predictions.
        graph: As for `predict`.
        model: As for `predict`.
        overrides: Further keys, as on the command line.
        folder: As for `predict`.
        **keys: As for `predict`.

    Returns:
        The result, with the fidelity. Its `folder` contains the tables
        `explained_features.csv` and `explained_neighbours.csv`, and `report.html`.
    """
    sections = {"job": "explain", "nodes": nodes if isinstance(nodes, int | str) else list(nodes), **keys}
    return predict(checkpoint, graph, model=model, overrides=overrides, folder=folder, **sections)


def load(run: str | Path, model: nn.Module | Callable[[int, int], nn.Module] | None = None) -> nn.Module:
    """Returns a run's model with trained parameters, in evaluation mode.

    Raises `UserError` for a folder without a trained model, and for another model.

    Use it to run a trained model in your own PyTorch code, or to continue with its
    parameters. Nothing is started and no graph is read. The module takes plain tensors,
    `model(x, edge_index)`, in one process.

    Args:
        run: The run folder.
        model: An instance of the trained class, whose parameters are replaced, or a
            function of (in_features, num_classes) that returns one. Default: created
            from the run's configuration.

    Examples:
        >>> import gnnkit, torch
        >>> model = gnnkit.load("outputs/first")
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> model(torch.tensor([[0.0], [1.0]]), edge_index).shape
        torch.Size([2, 2])
    """
    from gnnkit.jobs import weights
    from gnnkit.utils.ranges import local_path

    return weights.load(local_path("checkpoint", run), model)


def export(
    run: str | Path,
    path: str | Path,
    model: nn.Module | Callable[[int, int], nn.Module] | None = None,
    *,
    edge_weight: bool | None = None,
) -> Path:
    """Exports a run's model for use with only torch or ONNX Runtime.

    `path` ends with `.pt2`, for `torch.export.load(path).module()`, or with `.onnx`.
    Both take `x` [num_nodes, in_features], raw rows that are scaled as in training, and
    `edge_index` [2, num_edges] int64, for graphs of any size. An `.onnx` takes `x` in
    float64 if the run standardised columns, else in the model's dtype, and a `.pt2` in
    any dtype. Returns the path.

    Raises `UserError` for a model that torch cannot export, for an existing file, if
    the run does not record whether edges had weights, and if the package gnnkit-export
    is not installed.

    Args:
        run: The run folder.
        path: The new file.
        model: As for `load`, if the model was passed from Python in training.
        edge_weight: Whether the file also takes `edge_weight` [num_edges]. A model
            trained with edge features takes `edge_attr` too, one that reads edge types
            `edge_type`, and hgt `node_type`. Default: if the training edges had
            weights, and the model uses them.
    """
    from gnnkit import plugins
    from gnnkit.utils.ranges import local_path, switch

    with_weight = None if edge_weight is None else switch("edge_weight", edge_weight)
    write = plugins.load(plugins.FUNCTION, "export")
    result: Path = write(local_path("checkpoint", run), local_path("path", path), model, edge_weight=with_weight)
    return result


def serve(
    run: str | Path,
    graph: Graph | Any = None,
    *,
    model: nn.Module | Callable[[int, int], nn.Module] | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """Returns a web application that serves a run's predictions of nodes or edges.

    `job=predict` computes them once, so answers are equal to its tables. The model and
    the graph are read at the start. An ASGI server such as uvicorn runs the
    application. Raises `UserError` as `predict` does, and if the package gnnkit-serve
    is not installed.

    Args:
        run: The run folder of the training.
        graph: A `Graph`, or PyG's `Data`. Default: the training run's dataset.
        model: As for `load`, if the model was passed from Python in training.
        hosts: Further names under which requests may reach the server, such as a
            proxy's. Others than this machine's are refused.
    """
    from gnnkit import plugins
    from gnnkit.utils.ranges import local_path

    application: FastAPI = plugins.load(plugins.FUNCTION, "serve")(local_path("checkpoint", run), graph, model, hosts)
    return application


def _texts(overrides: Sequence[str]) -> Sequence[str]:
    """Returns overrides. Raises `UserError` unless they are a list of texts."""
    if not isinstance(overrides, list | tuple) or not all(isinstance(text, str) for text in overrides):
        raise UserError(f"overrides={overrides!r} must be a list of text, such as ['trainer.max_epochs=5']")
    return overrides


def _apart(parts: Any) -> tuple[list[Any], list[Any]]:
    """Separates names and mappings from objects."""
    items = parts if isinstance(parts, list | tuple) else [] if parts is None else [parts]
    names = [part for part in items if isinstance(part, str | Mapping)]
    return names, [part for part in items if not isinstance(part, str | Mapping)]


def _by_class(kind: str, objects: Sequence[Any]) -> dict[str, Any]:
    """Names objects by class, with a number for repeated classes."""
    by_name: dict[str, Any] = {}
    for instance in objects:
        name = type(instance).__name__
        count = sum(key.partition(" ")[0] == name for key in by_name)
        by_name[f"{name} {count + 1}" if count else name] = instance
    if kind != "logger" or not by_name:
        return by_name
    from gnnkit.training.logger import ExistingLogger

    return {name: ExistingLogger(logger) for name, logger in by_name.items()}


def _start(
    overrides: Sequence[str],
    graph: Any,
    model: Any,
    folder: str | Path | None,
    instances: Mapping[str, Sequence[Any]] | None = None,
    caller_overrides: Sequence[str] | None = None,
    *,
    chooses_model: bool = False,
) -> Result:
    """Runs one job.

    Args:
        overrides: As on the command line.
        graph: A `Graph`, or PyG's `Data`, or None.
        model: A model object, or None.
        folder: The run folder, or None.
        instances: Logger and callback objects, by kind.
        caller_overrides: Overrides written by the caller. Default: all.
        chooses_model: Whether the overrides select no model. A graph with several types
            gets a model that reads them.
    """
    from gnnkit import config, jobs
    from gnnkit.config import settings
    from gnnkit.launch.allocator import ask_for_large_pages
    from gnnkit.launch.child import end_if_started_anew
    from gnnkit.launch.lean import leave_out_unused
    from gnnkit.utils.ranges import local_path

    end_if_started_anew()
    folder = None if folder is None else local_path("folder", folder)
    leave_out_unused()
    ask_for_large_pages()  # before job checks allocate torch's first array

    def settle(overrides: Sequence[str]) -> settings.Settings:
        new_settings = settings.settle(
            config.compose(config.with_data(overrides, overrides if caller_overrides is None else caller_overrides))
        )
        if graph is not None:
            new_settings = settings.with_choice(new_settings, settings.Choice("dataset", "graph", {}))
        if model is not None:
            name = getattr(model, "__name__", type(model).__name__)
            new_settings = settings.with_choice(new_settings, settings.Choice("model", name, {}))
        for kind, objects in (instances or {}).items():
            new_settings = settings.with_plugins(new_settings, kind, _by_class(kind, objects))
        return new_settings

    if model is not None:
        from gnnkit.jobs.models import check_python_model

        check_python_model(model)
    if graph is not None:
        from gnnkit.graph import Graph

        graph = Graph.of(graph)
    model_keys = _choose_keys(graph, overrides) if chooses_model else []
    if any(text.startswith("strategy=") for text in model_keys):
        overrides = [text for text in overrides if config.key_of(text) != "strategy"]
    overrides = [*model_keys, *overrides]
    order = jobs.Order(settle(overrides), graph, model, folder, overrides, "gnnkit from Python:", settle)
    if order.is_leader and model_keys and model_keys != [f"model={_DEFAULT_MODEL}"]:
        _report_typed_model(graph.schema, model_keys)
    return jobs.start(order)


def _choose_keys(graph: Graph | None, overrides: Sequence[str]) -> list[str]:
    """Returns the default model, which reads types if the graph has several.

    Users and items get the keys that recommend, as far as they are not set.
    """
    from gnnkit import config, plugins

    values = {config.key_of(text): text.partition("=")[2].strip("'\"") for text in overrides}
    if graph is None or not graph.schema.several or values.get("types") == "ignore":
        return [f"model={_DEFAULT_MODEL}"]
    keys: dict[str, Any] = {}
    if values.get("task", "link_prediction") == "link_prediction":
        keys = plugins.load(plugins.PLANNER, "recommended")(graph)
        if values.get("task.decoder", "dot") != "dot" and "write" in keys:  # only dot products have vectors
            keys["write"] = [name for name in keys["write"] if name != "vectors"]
        if values.get("strategy") == "auto":
            del values["strategy"]
    return config.as_overrides({key: value for key, value in keys.items() if key not in values}) or [
        f"model={_TYPED_MODEL}"
    ]


def _report_typed_model(types: Schema, model_keys: list[str]) -> None:
    from gnnkit.launch.phases import say

    if len(model_keys) > 1:
        say(
            f"recommends, as job=init configures users and items: {' '.join(model_keys)}; task=NAME chooses another task"
        )
        return
    say(
        f"model={_TYPED_MODEL}: the graph has {len(types.node_types):,} types of nodes and {len(types.edge_types):,} of "
        f"edges, which {_DEFAULT_MODEL}, the default for other graphs, does not read; model=NAME chooses another model"
    )
