"""What the functions of `gnnkit` share: they start a job like the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit import config, jobs, plugins
from gnnkit.config import settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Schema
from gnnkit.launch import lean
from gnnkit.launch.child import end_if_started_anew
from gnnkit.launch.progress import say
from gnnkit.utils.ranges import local_path

# Keys that imply several workers.
_OF_WORKERS = {"strategy", "experiment", "workers", "job", "partition", "comm", "launcher", "sync"}
DEFAULT_MODEL, _TYPED_MODEL = "gcn", "rgat"  # as chosen by job=init
OF_MODEL = {"model", "experiment", "checkpoint"}  # keys that determine the model


def with_defaults(assignments: list[str], *, has_graph: bool) -> list[str]:
    """Adds `strategy=auto` and `workers=auto` where keys leave them open."""
    keys = {config.key_of(text) for text in assignments}
    workers = [] if keys & _OF_WORKERS or not has_graph else ["workers=auto"]
    strategy = [] if keys & {"strategy", config.EXPERIMENT} else ["strategy=auto"]
    return [*workers, *strategy, *assignments]


def check_graph(graph: object, keys: Mapping[str, object], *, is_missing: bool) -> None:
    """Raises `UserError` for None instead of a graph, and for a graph and a dataset."""
    if is_missing:
        raise UserError("graph=None: expected a graph (does the function that loads it return it?), or dataset=NAME")
    if graph is not None and "dataset" in keys:
        raise UserError("graph and dataset are given, one of them is enough")


def run_folder(checkpoint: str | Path) -> str:
    """Returns the key `checkpoint`. Raises `UserError` unless it is a local path."""
    return str(local_path("checkpoint", checkpoint))


def check_texts(overrides: Sequence[str]) -> Sequence[str]:
    """Returns overrides. Raises `UserError` unless they are a list of texts."""
    if not isinstance(overrides, list | tuple) or not all(isinstance(text, str) for text in overrides):
        raise UserError(f"overrides={overrides!r} must be a list of text, such as ['trainer.max_epochs=5']")
    return overrides


def split_names(parts: object) -> tuple[list[Any], list[Any]]:
    """Separates names and mappings from objects."""
    items = parts if isinstance(parts, list | tuple) else [] if parts is None else [parts]
    names = [part for part in items if isinstance(part, str | Mapping)]
    return names, [part for part in items if not isinstance(part, str | Mapping)]


def start(
    overrides: Sequence[str],
    graph: Any,
    model: Any,
    folder: str | Path | None,
    instances: Mapping[str, Sequence[Any]] | None = None,
    caller_overrides: Sequence[str] | None = None,
    *,
    chooses_model: bool = False,
) -> jobs.Result:
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
    end_if_started_anew()
    folder = None if folder is None else local_path("folder", folder)
    lean.leave_out_unused()
    lean.ask_for_large_pages()  # before job checks allocate torch's first array

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
        graph = Graph.of(graph)
    model_keys = _choose_keys(graph, overrides) if chooses_model else []
    if any(text.startswith("strategy=") for text in model_keys):
        overrides = [text for text in overrides if config.key_of(text) != "strategy"]
    overrides = [*model_keys, *overrides]
    order = jobs.Order(settle(overrides), graph, model, folder, overrides, "gnnkit from Python:", settle)
    if order.is_leader and model_keys and model_keys != [f"model={DEFAULT_MODEL}"]:
        _report_typed_model(graph.schema, model_keys)
    return jobs.start(order)


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


def _choose_keys(graph: Graph | None, overrides: Sequence[str]) -> list[str]:
    """Returns the default model, which reads types if the graph has several.

    Users and items get the keys that recommend, as far as they are not set.
    """
    values = {config.key_of(text): text.partition("=")[2].strip("'\"") for text in overrides}
    if graph is None or not graph.schema.several or values.get("types") == "ignore":
        return [f"model={DEFAULT_MODEL}"]
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
    if len(model_keys) > 1:
        say(
            f"recommends, as job=init configures users and items: {' '.join(model_keys)}; task=NAME chooses another task"
        )
        return
    say(
        f"model={_TYPED_MODEL}: the graph has {len(types.node_types):,} types of nodes and {len(types.edge_types):,} of "
        f"edges, which {DEFAULT_MODEL}, the default for other graphs, does not read; model=NAME chooses another model"
    )
