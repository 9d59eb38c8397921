"""Train graph neural networks on several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from torch import nn

    from gnnkit.graph import Graph
    from gnnkit.model.base import Program
    from gnnkit.result.result import Result as Result

_NO_GRAPH: Any = object()  # unlike None, which a function without `return` gives
__all__ = ["Result", "UserError", "explain", "export", "load", "predict", "serve", "train"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports `Result` lazily, because the import takes time."""
        if name == "Result":
            from gnnkit.result.result import Result

            return Result
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def train(
    graph: Graph | Any = _NO_GRAPH,
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
        graph: A `Graph`, or PyG's `Data`. Default: the dataset that `dataset` names.
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
    from gnnkit import config, from_python

    overrides = from_python.check_texts(overrides)
    names = {config.key_of(text) for text in (*config.as_overrides(keys), *overrides)}
    chooses_model = model is None and not names & from_python.OF_MODEL
    model_is_name = model is None or isinstance(model, str | Mapping)
    is_missing = graph is None and not names & {"dataset", "checkpoint", config.EXPERIMENT}
    graph = None if graph is _NO_GRAPH else graph
    from_python.check_graph(graph, keys, is_missing=is_missing)
    chosen = from_python.DEFAULT_MODEL if model is None else model
    sections = {
        **({"strategy": strategy} if strategy else {}),
        **({"model": chosen} if model_is_name and not chooses_model else {}),
        **keys,
    }
    objects = {}
    for kind, parts in (("callback", callbacks), ("logger", logger)):
        part_names, objects[kind] = from_python.split_names(parts)
        if part_names or objects[kind]:
            sections[kind] = part_names
    assignments = from_python.with_defaults([*config.as_overrides(sections), *overrides], has_graph=graph is not None)
    instance = None if model_is_name else model
    return from_python.start(assignments, graph, instance, folder, objects, chooses_model=chooses_model)


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
    from gnnkit import config, from_python

    sections = {"job": "predict", "checkpoint": from_python.run_folder(checkpoint), **keys}
    objects = [name for name, value in (("dataset", graph), ("model", model)) if value is not None]
    caller_overrides = [*config.as_overrides(sections), *from_python.check_texts(overrides)]
    assignments = config.with_run(caller_overrides, objects)
    return from_python.start(assignments, graph, model, folder, caller_overrides=caller_overrides)


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

    return weights.load(run, model)


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

    result: Path = plugins.load(plugins.FUNCTION, "export")(run, path, model, edge_weight=edge_weight)
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

    application: FastAPI = plugins.load(plugins.FUNCTION, "serve")(run, graph, model, hosts)
    return application
