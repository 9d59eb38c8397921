"""The trained parameters of a run, in one safetensors file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gnnkit.config import of_run
from gnnkit.config.settings import Choice
from gnnkit.errors import UserError
from gnnkit.jobs.models import DERIVED, WIDTHS, ModelFactory, ModelSource, Widths, check_module, check_python_model
from gnnkit.model.base import as_trained, in_unit, is_iterated, reads_raw_rows, takes_edges
from gnnkit.model.unchanged import reads_edges
from gnnkit.plugins import arguments_of, names, plugin_name
from gnnkit.plugins import load as load_plugin
from gnnkit.prepare.trained import Inputs
from gnnkit.prepare.transform import Scale
from gnnkit.result.result import CLASSES, LABELS
from gnnkit.task import LabelFacts
from gnnkit.task.base import HEAD
from gnnkit.utils.documents import parse_json, read_json, read_object
from gnnkit.utils.ranges import MAX_COUNT, local_path, real, whole
from gnnkit.utils.storage import write_atomically

FILE = "model.safetensors"
_METADATA = "gnnkit"  # a single key, because safetensors writes several in random order
_OPTIONAL = {"num_node_types": 1, "num_targets": 0}  # left out if equal, as in files of earlier versions
_SIZES = (*WIDTHS, "num_targets")
_DIGEST = "sha256"


def save(model: nn.Module, widths: Widths, folder: Path) -> None:
    """Writes the parameters and buffers under the module's own names.

    Args:
        model: The model.
        widths: The model's sizes.
        folder: The run folder.
    """
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    widths = replace(widths, num_node_types=getattr(model, "num_node_types", 1))
    facts = json.dumps(_stored_sizes(widths) | {_DIGEST: _digest(tensors, widths)})
    write_atomically(folder / FILE, dump_tensors(tensors, metadata={_METADATA: facts}))


def _stored_sizes(widths: Widths) -> dict[str, int]:
    sizes = {name: getattr(widths, name) for name in _SIZES}
    return {name: size for name, size in sizes.items() if size != _OPTIONAL.get(name)}


def _digest(tensors: Mapping[str, Tensor], widths: Widths) -> str:
    """Hashes the tensors and widths."""
    digest = hashlib.sha256(str([*_stored_sizes(widths).values()]).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_present(folder: Path) -> None:
    """Raises `UserError` for a folder without a trained model."""
    if not (folder / FILE).is_file():
        raise UserError(f"checkpoint={folder}: {_why_no_model(folder)}")


def read(folder: Path) -> tuple[dict[str, Tensor], Widths]:
    """Reads the tensors and widths that `save` wrote.

    Raises `UserError` for a missing, invalid or modified file.
    """
    check_present(folder)
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            facts = parse_json((file.metadata() or {})[_METADATA], _METADATA)
            sizes = {**_OPTIONAL, **facts}
            counts: dict[str, Any] = {name: whole(name, sizes[name], 0, MAX_COUNT) for name in _SIZES}
            widths = Widths(**counts)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            is_whole = facts[_DIGEST] == _digest(tensors, widths)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise UserError(f"checkpoint={folder}: {FILE} is not the model of a run: {error}") from error
    if not is_whole:
        raise UserError(
            f"checkpoint={folder}: {FILE} was changed after the run wrote it, its {_DIGEST} differs: copy the file "
            "again, or train again"
        )
    return tensors, widths


def _why_no_model(folder: Path) -> str:
    """Returns why a folder has no parameters, for an error message."""
    with contextlib.suppress(UserError):
        name = plugin_name("model", of_run(folder)["model"])
        if name in names("model") and is_iterated(load_plugin("model", name)):
            return f"model={name} is iterated, and has no trained parameters: its values are in the run folder"
    return f"there is no {FILE}, choose the folder of a run that has trained"


def load(run: str | Path, model: nn.Module | ModelFactory | None = None) -> nn.Module:
    """Returns a run's trained model in evaluation mode.

    Rows of a tensor are filled and scaled as in training. Called on a graph, the model
    also selects columns by name. Numeric outputs have the unit of the labels. Raises
    `UserError` for a folder without a trained model, and for a model that does not
    match.

    Args:
        run: The run folder.
        model: A module whose parameters are replaced, or a function of (in_features,
            num_classes) that returns one. Default: the model in `config.yaml`.
    """
    folder = local_path("checkpoint", run)
    model = restore_model(folder, model)
    inputs, facts, (_, widths) = Inputs.load(folder), read_facts(folder), read(folder)
    if inputs is not None and (inputs.scale.kind != "none" or inputs.fill.kind in ("mean", "zero") or inputs.degree):
        last = "logarithm of 1 + in-edges (features.degree=true)" if inputs.degree else ""
        reads_raw_rows(model, row_transform(inputs), widths.in_features, last)
    output_module = getattr(model, HEAD, None) if widths.num_targets else model
    if output_module is not None and facts.mean is not None and facts.deviation is not None:
        in_unit(output_module, facts.in_unit)
    if hasattr(model, "num_layers") and not reads_edges(model):
        is_typed = getattr(model, "num_node_types", 1) > 1
        reads = None if inputs is None else functools.partial(inputs.read, folder=folder, node_types=is_typed)
        takes_edges(model, reads)
    return model


def row_transform(inputs: Inputs | None) -> Callable[[Tensor], Tensor]:
    """Returns the function that fills and scales rows as in training."""
    if inputs is None:
        return _identity
    means = torch.tensor(inputs.fill.means or [0.0], dtype=torch.float64)
    if inputs.fill.kind not in ("mean", "zero"):
        return _row_scale(inputs.scale)
    scale = _row_scale(inputs.scale)
    return lambda x: scale(torch.where(x.isnan(), means.to(x.dtype), x))


def _row_scale(scale: Scale) -> Callable[[Tensor], Tensor]:
    if scale.kind != "standard":
        return _unit_rows if scale.kind == "row" else _identity
    columns = (scale.mean, scale.deviation, scale.limit, scale.median or [0.0], scale.spread or [0.0])
    mean, deviation, limit, median, spread = (torch.tensor(values, dtype=torch.float64) for values in columns)
    compresses, unit = spread > 0, torch.where(spread > 0, spread, 1)

    def standardise(x: Tensor) -> Tensor:
        if scale.spread is not None:
            distance = (x - median) / unit
            x = torch.where(compresses, distance.sign() * distance.abs().log1p(), x)
        return torch.clamp((x - mean) / deviation, -limit, limit)

    return standardise


def _identity(x: Tensor) -> Tensor:
    return x


def _unit_rows(x: Tensor) -> Tensor:
    """An exportable version of `graph.features.normalized`."""
    sums = x.abs().sum(1, keepdim=True, dtype=torch.float64)
    return x / torch.where(sums == 0, 1, sums)


def restore_model(folder: Path, model: nn.Module | ModelFactory | None = None) -> nn.Module:
    """Like `load`, without the conversion of inputs and outputs.

    The model takes (x, adjacencies), or the inputs of the user's module.
    """
    tensors, widths = read(folder)
    if model is None:
        model = _make_model(folder, widths)
    else:
        check_python_model(model)
        if not isinstance(model, nn.Module) and not is_iterated(model):
            model = model(widths.in_features, widths.num_classes)
        check_module(model)
        as_trained(model)
        if widths.num_targets:
            task = _choice(folder, "task").create()
            task.size_head(widths.num_targets, widths.edge_width)
            model.add_module(HEAD, task.head())
    if not hasattr(model, HEAD):  # drop the parameters of the task
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{HEAD}.")}
    parameter = next(iter(tensors.values()), None)
    if parameter is not None and parameter.is_floating_point():
        model = model.to(parameter.dtype)
    fill(model, tensors, folder)
    return model.eval()


def fill(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Replaces parameters and buffers.

    Raises `UserError` if names or shapes differ, and for non-finite parameters.

    Args:
        model: The model.
        tensors: From `read`.
        folder: The run folder, for messages.
    """
    state = model.state_dict(keep_vars=True)
    shapes = {name: _shape(value, tensors.get(name)) for name, value in state.items()}
    for name in [*shapes, *(name for name in tensors if name not in shapes)]:
        stored_shape = list(tensors[name].shape) if name in tensors else None
        if stored_shape != shapes.get(name):
            raise UserError(
                f"model: {name} has shape {shapes.get(name, 'none')}, but {stored_shape or 'none'} in {folder / FILE}: "
                "pass an instance of the trained class, with the trained sizes"
            )
    model.load_state_dict(tensors)
    for name, parameter in model.named_parameters():
        if bad := int((~torch.isfinite(parameter)).sum()):
            raise UserError(
                f"checkpoint={folder}: {name} has {bad:,} of {parameter.numel():,} numbers that are not finite: "
                "train again, for example with a smaller trainer.lr"
            )


def _shape(value: Tensor, stored_tensor: Tensor | None) -> list[int]:
    """Returns the shape of a parameter, or of the stored tensor if it is lazy."""
    if is_lazy(value):
        return [] if stored_tensor is None else list(stored_tensor.shape)
    return list(value.shape)


def _make_model(folder: Path, widths: Widths) -> nn.Module:
    """Makes the model that the run's configuration names."""
    choice, task = (_choice(folder, kind) for kind in ("model", "task"))
    try:
        source = ModelSource(choice)
        choice.check(extra=DERIVED)
    except UserError as error:
        raise UserError(
            f"checkpoint={folder}: model={choice.name} is not installed: pass an instance of that class, or a function of "
            "(in_features, num_classes) that makes one"
        ) from error
    return source.make_model(widths, 0, task.create())


def _choice(folder: Path, kind: str) -> Choice:
    """Returns the plugin of a kind that the run's configuration names."""
    section = of_run(folder)[kind]
    return Choice(kind, plugin_name(kind, section), arguments_of(kind, section))


def save_facts(facts: LabelFacts, folder: Path) -> None:
    """Writes the task's label statistics, if any."""
    if facts != LabelFacts():
        write_atomically(folder / LABELS, json.dumps(asdict(facts)).encode())


def read_facts(folder: Path) -> LabelFacts:
    """Reads the file of `save_facts`. Raises `UserError` if it is invalid."""
    path = folder / LABELS
    facts = read_object(path, f"checkpoint={folder}: {LABELS}") if path.exists() else {}
    try:
        return LabelFacts(**{name: _finite(path, values) for name, values in facts.items()})
    except (TypeError, ValueError) as error:
        raise UserError(f"checkpoint={folder}: {LABELS} cannot be read: {error}") from error


def _finite(path: Path, values: object) -> tuple[float, ...] | None:
    return None if values is None else tuple(real(path.name, value) for value in values)  # type: ignore[attr-defined]


def class_names(folder: Path) -> list[str] | None:
    """Reads a run's class names, if any."""
    path = folder / CLASSES
    names = read_json(path, f"checkpoint={folder}: {CLASSES}") if path.exists() else None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f"checkpoint={folder}: {CLASSES} is not a list of names")
    return names
