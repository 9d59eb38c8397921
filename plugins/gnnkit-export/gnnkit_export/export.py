"""Exports a trained model to a file for torch or ONNX Runtime."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.errors import UserError
from gnnkit.jobs import weights
from gnnkit.jobs.models import ModelFactory, Widths, check_python_model
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.progress import warn
from gnnkit.model.unchanged import reads_edges, takes_types
from gnnkit.prepare.trained import Inputs
from gnnkit.result.result import INPUTS
from gnnkit.utils.ranges import local_path, one_line, switch
from gnnkit.utils.storage import write_atomically
from gnnkit_export.exported import Plain, PlainLayers

_NODES, _EDGES = 7, 12  # of the example graph
ONNX = ".onnx"
_OF_DATA = ("edge_attr", "edge_type", "node_type")  # optional arguments, by the model's inputs
_TOLERANCE = 1e-4  # relative to the largest value


def export(
    run: str | Path, path: str | Path, model: nn.Module | ModelFactory | None = None, *, edge_weight: bool | None = None
) -> Path:
    """Writes a trained model to a new file, and returns the path.

    The suffix selects the format: `.pt2` for `torch.export.load`, `.onnx` for ONNX
    Runtime. The exported model takes `x`, [num_nodes, in_features] unscaled rows in the
    training column order, and `edge_index`, [2, num_edges] int64. It scales rows as in
    training. With standardised columns, an `.onnx` takes `x` in float64, and otherwise
    in the model's dtype. A `.pt2` takes any dtype. Class names and the thresholds of
    predictions are JSON under "classes" and "thresholds", in the extra files of a
    `.pt2` and the metadata of an `.onnx`. The file is compared with the model on
    another graph first. Raises `UserError` for a model that torch cannot export, and
    if it is unknown whether training edges had weights.

    Args:
        run: The run folder.
        path: The new file.
        model: The module, if the run was given one from Python.
        edge_weight: Whether the file also takes `edge_weight` [num_edges]. Models that
            read edge features take `edge_attr` [num_edges, edge_width], and those that
            read edge types take `edge_type` [num_edges] int64. Models with weights by
            node type take `node_type` [num_nodes] int64. Default: whether training
            edges had weights that the model reads.
    """
    edge_weight = None if edge_weight is None else switch("edge_weight", edge_weight)
    folder, path = local_path("checkpoint", run), local_path("path", path)
    if path.suffix not in _WRITERS:
        raise UserError(f"export: {path.name} must end with .pt2 (torch) or .onnx (ONNX Runtime)")
    if path.suffix == ONNX:
        _check_onnx()
    if not path.parent.is_dir():
        raise UserError(f"export: path={path}: there is no folder {path.parent}: make it first")
    if model is not None:
        check_python_model(model)
    if path.exists():
        raise UserError(f"export: {path} exists: choose another name, or remove the file")
    # In a child, because after an export and a backward pass a process cannot start
    # ranks.
    run_in_child(_export, folder, path, model, edge_weight, always=True)
    return path


def _export(folder: Path, path: Path, model: nn.Module | ModelFactory | None, edge_weight: bool | None) -> None:
    write = _WRITERS[path.suffix]
    widths, facts = weights.read(folder)[1], Inputs.load(folder)
    if widths.num_targets:
        raise UserError(
            "export: the task predicts edges, by an MLP on rows of two nodes, and only rows of nodes are exported: use "
            "gnnkit.predict(run), or gnnkit.load(run) and its task_head"
        )
    if facts is not None and facts.label_classes is not None:
        raise UserError("export: the model reads labels of training nodes (label_inputs), which its inputs have not")
    plain = _plain(weights.restore_model(folder, model), folder)
    name = type(plain.model).__name__
    has_weights = _had_weights(plain, facts, folder) if edge_weight is None else edge_weight
    standard = facts is not None and facts.scale.kind == "standard"
    draw = functools.partial(_inputs, plain, widths, edge_weight=has_weights, wide=standard)
    arguments, droppable = draw(), _OF_DATA if edge_weight else (*_OF_DATA, "edge_weight")
    with _quiet():
        try:
            program, arguments = _trace(plain, arguments, droppable)
            content, call = write(program, arguments, _decisions(folder))
            second_inputs = draw(num_nodes=2 * _NODES, num_edges=3 * _EDGES)
            second_inputs = {key: second_inputs[key] for key in arguments}
            result = call(second_inputs)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"export: model={name}: torch cannot export this model: {one_line(_cause(error))}: use gnnkit.load(run) or "
                "gnnkit.predict(run)"
            ) from error
    _compare(name, result, plain(**second_inputs))
    write_atomically(path, content)


def _had_weights(plain: Plain, facts: Inputs | None, folder: Path) -> bool:
    """Returns whether the model may have read edge weights in training.

    Raises `UserError` if the folder does not record it.
    """
    if not plain.takes("edge_weight"):
        return False
    if facts is None or facts.edge_weight is None:
        raise UserError(
            f"export: {folder / INPUTS} does not record whether training edges had weights: give edge_weight=True if "
            "they had, else edge_weight=False"
        )
    return facts.edge_weight


def _trace(plain: Plain, arguments: dict[str, Tensor], droppable: Collection[str]) -> tuple[Any, dict[str, Tensor]]:
    """Returns the exported program and its arguments.

    Removes droppable edge values that the model does not read.
    """
    program = torch.export.export(plain, (), arguments, dynamic_shapes=_shapes(arguments))
    read = _inputs_of_outputs(program.graph)
    kept_arguments = {name: value for name, value in arguments.items() if name not in droppable or name in read}
    if len(kept_arguments) < len(arguments):
        return _trace(plain, kept_arguments, droppable)
    for node in list(program.graph.nodes):  # casts accept any dtype, but torch would reject all except one
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
    program.graph_module.recompile()
    return program, arguments


def _inputs_of_outputs(graph: Any) -> set[str]:
    """Returns the inputs whose values, not only sizes, reach an output."""
    ancestors = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):
        if node in ancestors and node.target is not torch.ops.aten.sym_size.int:
            ancestors |= set(node.all_input_nodes)
    return {str(node.target) for node in ancestors if node.op == "placeholder"}


def _cause(error: BaseException) -> BaseException:
    """Returns the root cause of an exporter error."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _plain(model: nn.Module, folder: Path) -> Plain:
    if takes_types(model):
        raise UserError(
            f"export: model={type(model).__name__} takes dictionaries of rows and edges by type, which a file of x and "
            "edge_index cannot hold: use gnnkit.load(run, model) or gnnkit.predict(run, data, model=model)"
        )
    return (Plain if reads_edges(model) else PlainLayers)(
        model, weights.row_transform(Inputs.load(folder)), _unit(folder)
    )


def _decisions(folder: Path) -> dict[str, str]:
    """Returns the class names and thresholds, as JSON by name, if there are any."""
    values = {"classes": weights.class_names(folder), "thresholds": weights.read_facts(folder).thresholds}
    return {name: json.dumps(value) for name, value in values.items() if value is not None}


def _unit(folder: Path) -> Callable[[Tensor], Tensor]:
    """Returns the function that converts outputs as `LabelFacts.in_unit` does."""
    facts = weights.read_facts(folder)
    return lambda out: facts.in_unit(out if facts.mean is None else out.double()).to(out.dtype)


def _inputs(
    plain: Plain, widths: Widths, *, edge_weight: bool, wide: bool, num_nodes: int = _NODES, num_edges: int = _EDGES
) -> dict[str, Tensor]:
    """Draws an example graph, as model arguments by name.

    Args:
        plain: The model.
        widths: The model's sizes.
        edge_weight: Whether edges have weights.
        wide: Whether rows are float64, because scaling may amplify float32 rounding.
        num_nodes: Number of nodes.
        num_edges: Number of edges.
    """
    draw = torch.Generator().manual_seed(0)
    number = functools.partial(torch.rand, generator=draw, dtype=plain.dtype)
    arguments = {
        "x": number(num_nodes, widths.in_features, dtype=torch.float64 if wide else plain.dtype),
        "edge_index": torch.randint(num_nodes, (2, num_edges), generator=draw),
    }
    if edge_weight and not plain.takes("edge_weight"):
        raise UserError(
            f"export: edge_weight=True, but forward of model={type(plain.model).__name__} has no parameter edge_weight: "
            "add the parameter, or leave edge_weight out"
        )
    if edge_weight:
        arguments["edge_weight"] = number(num_edges)
    if widths.edge_width:
        arguments["edge_attr"] = number(num_edges, widths.edge_width)
    if widths.num_relations > 1:
        arguments["edge_type"] = torch.randint(widths.num_relations, (num_edges,), generator=draw)
    if widths.num_node_types > 1:
        arguments["node_type"] = torch.randint(widths.num_node_types, (num_nodes,), generator=draw)
    return {name: value for name, value in arguments.items() if plain.takes(name)}


def _shapes(arguments: dict[str, Tensor]) -> dict[str, dict[int, Any]]:
    """Returns the dynamic dimensions by argument."""
    nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
    dims = {"x": {0: nodes}, "edge_index": {1: edges}, "node_type": {0: nodes}}
    return {name: dims.get(name, {0: edges}) for name in arguments}


_Run = Callable[[dict[str, Tensor]], Tensor]  # outputs from arguments by name


def _as_torch(program: Any, _: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, _Run]:
    """Returns the bytes of a `.pt2` file, and a function that runs it."""
    file = io.BytesIO()
    torch.export.save(program, file, extra_files=metadata)
    content = file.getvalue()
    again = torch.export.load(io.BytesIO(content)).module()
    return content, lambda arguments: again(**arguments)


def _as_onnx(exported_program: Any, example: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, _Run]:
    """Returns the bytes of an ONNX file, and a function that runs it."""
    import onnxruntime

    program = torch.onnx.export(
        exported_program, dynamo=True, input_names=list(example), output_names=["logits"], verbose=False
    )
    proto = program.model_proto  # type: ignore[union-attr]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    content: bytes = proto.SerializeToString()
    if any(node.op_type == "ScatterND" and node.attribute for node in proto.graph.node):  # a reduction
        warn(
            "export: the model sums by index_add or index_put, which ONNX Runtime computes wrongly with "
            "several threads: use scatter_add in the model, or SessionOptions.intra_op_num_threads=1"
        )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def call(arguments: dict[str, Tensor]) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {name: value.numpy() for name, value in arguments.items()})[0])

    return content, call


_WRITERS = {".pt2": _as_torch, ONNX: _as_onnx}


def _check_onnx() -> None:
    """Raises `UserError` if a package is missing."""
    for name in ("onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"export: .onnx needs {name}: pip install gnnkit[onnx]") from error


def _compare(name: str, actual: Tensor, reference: Tensor) -> None:
    """Raises `UserError` if the file's outputs differ from the model's."""
    largest = float(reference.detach().abs().max())
    if not torch.allclose(actual.detach(), reference.detach(), rtol=0, atol=_TOLERANCE * max(largest, 1.0)):
        raise UserError(
            f"export: model={name} computes different values after export on a graph of another size: "
            "the export turned shapes or values of the first graph into constants"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            yield
    finally:
        logging.disable(before)
