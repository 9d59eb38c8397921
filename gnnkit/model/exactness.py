"""Checks of a model on small graphs, before the first step."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.engine.in_place import default_dtype
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph
from gnnkit.model.base import dtype_of
from gnnkit.model.functions import BATCH_NORMS, NORMS, inherits, reads_whole_graph
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard, cut_all, uncut
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import even_ranges, one_line

_NODES, _EDGES = 26, 110
_DROPOUT = ("native_dropout", "bernoulli", "bernoulli_")
_ROW_MIXERS = ("GPSConv", "HANConv", "Polynormer", "SGFormer", "GraphUNet", "GraphMultisetTransformer")
_REGISTERED = ("_parameters", "_buffers", "_modules")  # attributes of every module
_DEPTH = 3  # maximum depth of nested lists that are searched
_TIMEOUT = 120.0  # deadline of a rank's waits, in seconds
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # relative to the largest output
_SHARES = ((0.8, 0.2), (0.5, 0.35, 0.15), (0.2, 0.8))  # of the nodes, by rank, of each comparison


class TypeCounts(NamedTuple):
    """Numbers of types that a model has weights for."""

    of_edges: int = 1
    of_nodes: int = 1

    @classmethod
    def of(cls, model: object) -> TypeCounts:
        """Reads a model's attributes."""
        return cls(*(int(getattr(model, name, 1)) for name in ("num_relations", "num_node_types")))


@dataclass(frozen=True, slots=True)
class TrialRows:
    """Rows of a trial's graphs. Without a run's rows, they are random."""

    in_features: int
    edge_width: int = 0  # 0: no edge features
    features: Floats | None = None  # [k, in_features] rows of nodes, or None
    edges: Mapping[str, Array] = field(default_factory=dict)  # columns [m, ...], by argument of `Graph.from_edges`
    scale: int = 1  # factor of the graphs' sizes
    train_size: tuple[int, int] | None = None  # nodes and edges of the graph to train on. None: unknown

    def graph(self, types: TypeCounts, draw: int) -> Graph:
        """Draws a graph, whose size depends on the draw."""
        rng, num_nodes, num_edges = np.random.default_rng(draw), *self.sizes(_NODES, _EDGES, draw)
        src, dst = rng.integers(0, num_nodes, (2, num_edges))
        sizes = [len(part) for part in even_ranges(num_nodes, types.of_nodes)]
        edge_types = rng.integers(0, types.of_edges, num_edges)
        return Graph.from_edges(
            src,
            dst,
            num_nodes,
            features=self.node_rows(rng, num_nodes),
            edge_types=edge_types,
            edge_type_names=[str(relation) for relation in range(types.of_edges)],
            node_types=tuple((str(number), size) for number, size in enumerate(sizes)),
            **self.edge_columns(rng, num_edges),  # type: ignore[arg-type]
        )

    def grown(self, draw: int) -> TrialRows:
        """Makes graphs grow with the draw, up to the graph to train on."""
        if self.train_size is None:
            return replace(self, scale=4**draw)
        nodes, edges = self.train_size
        largest = max(nodes // _NODES, (nodes + edges) // _EDGES) + 1  # edges may include self-loops
        return replace(self, scale=min(4**draw, largest))

    def sizes(self, num_nodes: int, num_edges: int, draw: int) -> tuple[int, int]:
        """Returns the numbers of nodes and edges of a draw."""
        return self.scale * num_nodes + draw, self.scale * num_edges + 11 * (draw % 4)

    def node_rows(self, rng: np.random.Generator, count: int) -> Floats:  # [count, in_features]
        """Draws rows of nodes."""
        if self.features is None or not len(self.features):
            return rng.normal(size=(count, self.in_features))
        rows: Floats = self.features[rng.choice(len(self.features), count, replace=len(self.features) < count)]
        return rows

    def edge_columns(self, rng: np.random.Generator, count: int) -> dict[str, Array]:  # [count, ...] each
        """Draws values of edges."""
        if self.edges:
            rows = rng.integers(0, len(next(iter(self.edges.values()))), count)
            return {name: values[rows] for name, values in self.edges.items()}
        return {"edge_features": rng.normal(size=(count, self.edge_width))} if self.edge_width else {}

    def fit(self, model: nn.Module, draw: int) -> tuple[nn.Module, Graph]:
        """Draws a graph with the model's types.

        Returns the model for this graph, which shares its parameters, and the graph.
        """
        if isinstance(model, HeteroModel):
            return model.on_small_graph(self, draw)
        return model, self.graph(TypeCounts.of(model), draw)


def differs(model: nn.Module, rows: TrialRows, *, draws: bool = False) -> bool:
    """Returns whether outputs depend on the number of ranks.

    Ranks are threads, with unequal numbers of nodes. The model runs in float64 or, if
    that fails, in its own dtype. Raises the model's error if that fails too.

    Args:
        model: The model, which is not modified.
        rows: The rows that it reads.
        draws: Whether the model draws random numbers in training mode, so that only
            evaluation mode can be compared.
    """
    try:
        return _differs(model, rows, draws, torch.float64)
    except Exception:
        return _differs(model, rows, draws, torch.float32)


def _differs(model: nn.Module, rows: TrialRows, draws: bool, dtype: torch.dtype) -> bool:
    modes = [not draws] * len(_SHARES) + [False] * (not draws)
    for draw, training in enumerate(modes):
        # One rank has at most a fourth of the nodes. So a limit, above which a model
        # does something else, is between that rank's rows and all rows of some draw.
        small_model, graph = rows.grown(draw).fit(model, draw)
        shares = _SHARES[draw % len(_SHARES)]
        owner = np.random.default_rng(draw).permutation(_owners(graph.num_nodes, shares))
        replica = copy.deepcopy(small_model).to(dtype).train(training)
        reference = _outputs(replica, graph, np.zeros_like(owner), dtype)
        if draws and not torch.equal(reference, _outputs(replica, graph, np.zeros_like(owner), dtype)):
            return False  # random in evaluation mode too
        outputs = _outputs(replica, graph, owner, dtype)
        if not torch.isfinite(reference).all():
            raise ValueError("outputs are not finite")
        if not (reference - outputs).abs().max() <= _TOLERANCE[dtype] * reference.abs().max():
            return True
    return False


def _owners(num_nodes: int, shares: Sequence[float]) -> Array:  # [num_nodes]
    """Assigns nodes to ranks, at least two to each."""
    ends = np.rint(np.cumsum(shares) * num_nodes)
    return np.searchsorted(ends, np.arange(num_nodes), side="right").clip(max=len(shares) - 1).astype(np.int32)


def run_alone(
    model: nn.Module, rows: TrialRows, prepare: Callable[[ShardAdjacency], None] = lambda layer: None
) -> None:
    """Calls a model in training mode on a small graph, in this thread.

    Args:
        model: The model.
        rows: The rows that it reads.
        prepare: Changes a layer's adjacency before the call. Default: no change.
    """
    model, graph = rows.fit(model, 0)
    dtype = dtype_of(model)
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=_TIMEOUT)
    layers = _layers(Engine(uncut(graph), comm, dtype), model)
    for layer in layers:
        prepare(layer)
    with default_dtype(dtype):
        model.train()(torch.tensor(np.asarray(graph.features), dtype=dtype), layers)


def _outputs(model: nn.Module, graph: Graph, owner: Array, dtype: torch.dtype) -> Tensor:  # [num_nodes, width]
    num_ranks = int(owner.max()) + 1
    shards = list(cut_all(graph, Partition(owner, None, Grid(num_ranks, 1, 1))))
    parts = Threads.run(lambda comm: _part(model, shards, comm, dtype), num_ranks, timeout=_TIMEOUT)
    order = torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    return torch.cat(parts)[order]


@torch.no_grad()
def _part(model: nn.Module, shards: Sequence[Shard], comm: Communicator, dtype: torch.dtype) -> Tensor:
    """Returns a rank's outputs [num_owned, width]."""
    replica, shard = copy.deepcopy(model), shards[comm.rank]
    engine = Engine(shard.with_self_loops() if getattr(replica, "self_loops", False) else shard, comm, dtype)
    layers = _layers(engine, replica)
    with default_dtype(dtype):
        outputs: Tensor = replica(torch.tensor(np.asarray(shard.features), dtype=dtype), layers)
    return outputs


def _layers(engine: Engine, model: nn.Module) -> tuple[ShardAdjacency, ...]:
    """Returns the layers' adjacencies, with edge ages for models that read them."""
    layers = ShardAdjacency.layers(engine, model.num_layers, 0)  # type: ignore[arg-type]
    for layer in layers if getattr(model, "reads_edge_age", False) else ():
        layer.edge_age = layer.edge_ids.to(engine.topology.dtype)
    return layers


def calls(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Returns a forward pass's exchanges in order: operation, width and layer.

    Includes the parameters from which the rows were computed, because swapped exchanges
    of equal width would otherwise go unnoticed and give wrong sums. Runs a copy of the
    model on a small graph. The list ends where the copy fails.

    Args:
        model: The model, which is not modified.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    problems: list[str] = []
    with contextlib.suppress(Exception):  # the model may require a larger graph
        replica, names = _copy_model(model)

        def record(layer: ShardAdjacency) -> None:
            layer.engine = _CallRecorder(layer.engine, layer.layer, names, problems)  # type: ignore[assignment]
            layer.routes = _CallRecorder(layer.routes, layer.layer, names, problems)  # type: ignore[assignment]

        run_alone(replica, TrialRows(in_features, edge_width), record)
    return problems


class _CallRecorder:
    """An engine, or a layer's routes, that records every call with rows."""

    def __init__(self, part: object, layer: int, names: Mapping[int, str], problems: list[str]) -> None:
        """Stores the arguments.

        Args:
            part: The wrapped object.
            layer: The layer that calls it.
            names: The model's parameter names, by id.
            problems: Receives a line per call.
        """
        self._part, self._layer, self._names, self._problems = part, layer, names, problems

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        if not callable(value):
            return value

        def call_and_note(*arguments: object, **keys: object) -> Any:
            rows = [argument for argument in arguments if isinstance(argument, Tensor)]
            if rows:
                self._note(next((argument for argument in arguments if isinstance(argument, str)), name), rows)
            result = value(*arguments, **keys)
            return self if result is self._part else result

        return call_and_note

    def _note(self, kind: str, rows: list[Tensor]) -> None:
        sources = sorted(set().union(*(_sources(tensor, self._names) for tensor in rows)))
        width = math.prod(rows[0].shape[1:])
        source = ", ".join(sources) or "the input"
        self._problems.append(f"{kind} of {width} columns in layer {self._layer} of {source}")


def _copy_model(model: nn.Module) -> tuple[nn.Module, dict[int, str]]:
    """Copies a model but shares parameter values. All of them require gradients.

    Returns the copy, and the parameter names by id.
    """
    parameters = dict(model.named_parameters())
    copies = {name: nn.Parameter(p.detach().cpu(), p.is_floating_point()) for name, p in parameters.items()}
    replica = copy.deepcopy(model, {id(parameters[name]): parameter for name, parameter in copies.items()})
    return replica.cpu(), {id(parameter): name for name, parameter in replica.named_parameters()}


def _sources(rows: Tensor, names: Mapping[int, str]) -> set[str]:
    """Returns the names of the parameters from which a tensor was computed."""
    leaf_ids, seen_nodes, ahead = {id(rows)}, set(), [rows.grad_fn]
    while ahead:
        node: Any = ahead.pop()
        if node is not None and node not in seen_nodes:
            seen_nodes.add(node)
            leaf_ids.add(id(getattr(node, "variable", None)))
            ahead += [following for following, _ in node.next_functions]
    return {names[tensor_id] for tensor_id in leaf_ids if tensor_id in names}


@dataclass(frozen=True, slots=True)
class _Remedies:
    """Recommended replacements."""

    dropout: str = "use gnnkit.nn.Dropout, or adjacency.dropout"
    edge_dropout: str = "set its dropout to 0 and drop rows by gnnkit.nn.Dropout, or use model=gat"
    draw: str = "derive draws from adjacency.key and adjacency.src_nodes"
    norm: str = "use gnnkit.nn.BatchNorm, or torch's LayerNorm"
    over_rows: str = "use gnnkit.nn.BatchNorm or adjacency.pool, see job=verify"


_ROWS_ONLY = _Remedies(  # for modules called without an adjacency
    dropout="use F.dropout on rows [num_nodes, width]",
    edge_dropout="set its dropout to 0 and drop rows by nn.Dropout, or use model=gat",
    draw="draw by nn.Dropout only, or write forward(x, adjacencies)",
    norm="use nn.BatchNorm1d or nn.LayerNorm",
    over_rows="use nn.BatchNorm1d, or write forward(x, adjacencies), see job=verify",
)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Why a training step depends on the number of ranks, by module with a remedy."""

    systematic: tuple[str, ...] = ()  # results differ from those of one rank on average too
    random: tuple[str, ...] = ()  # other draws of the same distribution
    unchecked: str | None = None  # why nothing was compared

    @property
    def reasons(self) -> list[str]:
        """All reasons."""
        return [*self.systematic, *self.random]


def check_model(model: nn.Module, rows: TrialRows, *, compares: bool = True) -> ModelCheck:
    """Searches for reasons why a training step depends on the number of ranks.

    Runs the model on a small graph in training mode, and records random draws and batch
    statistics, also those of functions. Then compares the model on several ranks with
    the model on one. torch's random state is preserved.

    Args:
        model: The model. Its statistics and hooks change, so it must not be used again.
        rows: The rows that the model reads.
        compares: Whether to compare. A model that is exact otherwise needs no
            comparison.
    """
    original = copy.deepcopy(model.cpu())
    notes = _Notes(model)
    with torch.random.fork_rng(devices=[]):
        try:
            with notes:
                run_alone(model, rows)
        except Exception:
            notes.add_dropouts(model)
        skip_reason = notes.compare(original, rows) if compares and not notes.systematic else None
    return ModelCheck(_lines(notes.systematic), _lines(notes.random), skip_reason)


def _lines(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {reason}" for name, reason in reasons.items())


def inexact(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Lists the reasons of `check_model` for drawn rows.

    Args:
        model: The model, which must not be used again.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    return check_model(model, TrialRows(in_features, edge_width)).reasons


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators whose result depends on the layout, by calling module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = [(type(model).__name__, model)]  # modules being called, innermost last
        self.systematic: dict[str, str] = {}  # by module
        self.random: dict[str, str] = {}
        adapts = isinstance(model, EdgeIndexModel)
        exact, self.remedies = ((*BATCH_NORMS, *NORMS), _ROWS_ONLY) if adapts else ((), _Remedies())
        for name, module in model.named_modules():
            if type(module).__name__ not in exact and (reason := _by_module(module, self.remedies)) is not None:
                self.add(self.systematic, name or type(module).__name__, reason)
            if name:
                module.register_forward_pre_hook(lambda module, _, name=name: self.calls.append((name, module)))
                module.register_forward_hook(lambda _module, _inputs, _output: self.leave(), always_call=True)

    def add(self, reasons: dict[str, str], name: str, reason: str) -> None:
        noted_layers = {**self.systematic, **reasons}
        is_part = any(name.startswith(f"{layer}.") for layer in noted_layers)
        if name not in noted_layers and not is_part:
            reasons[name] = reason

    def compare(self, model: nn.Module, rows: TrialRows) -> str | None:
        """Notes whether outputs depend on the ranks, or returns why it is unknown."""
        try:
            if not differs(model, rows, draws=bool(self.random)):
                return None
        except Exception as error:
            return f"it failed on a few nodes with {type(error).__name__}: {one_line(error)}"
        reason = "outputs on several ranks differ from those on one, as with x.mean(0) over the rows of a rank"
        self.add(self.systematic, _over_rows(model), f"{reason}: {self.remedies.over_rows}")
        return None

    def leave(self) -> None:
        self.calls.pop()

    def add_dropouts(self, model: nn.Module) -> None:
        """Records torch's dropout modules, if the model could not be run."""
        for name, module in model.named_modules():
            if isinstance(module, _DropoutNd) and module.p > 0:
                self.add(self.random, name or type(module).__name__, _draw_reason(module, "Dropout", self.remedies))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (name, module), operator = self.calls[-1], str(func.overloadpacket.__name__)
        if torch.Tag.nondeterministic_seeded in func.tags and _drop_rate(func, args, kwargs or {}) != 0:
            self.add(self.random, name, _draw_reason(module, operator, self.remedies))
        if "batch_norm" in operator and next((flag for flag in args if isinstance(flag, bool)), True):
            self.add(self.systematic, name, _norm_reason(_own_name(module, "BatchNorm"), self.remedies))
        return func(*args, **(kwargs or {}))


def _drop_rate(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns the value of an operator's argument `dropout_p`, or None."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}.get("dropout_p")


def _draw_reason(module: nn.Module, operator: str, remedies: _Remedies) -> str:
    if operator not in (*_DROPOUT, "Dropout"):
        return f"a draw of torch ({operator}) differs on every layout: {remedies.draw}"
    if inherits(module, "Aggregation", "MessagePassing"):
        return f"{type(module).__name__} drops by torch's own Dropout, which differs on every layout: {remedies.edge_dropout}"
    return f"torch's own {_own_name(module, 'Dropout')} differs on every layout: {remedies.dropout}"


def _norm_reason(name: str, remedies: _Remedies) -> str:
    return f"{name} takes its statistics over the rows of one rank: {remedies.norm}"


def _own_name(module: nn.Module, otherwise: str) -> str:
    """Returns a layer's class name, or a function called by a user's module."""
    return type(module).__name__ if otherwise in type(module).__name__ else otherwise


def _by_module(module: nn.Module, remedies: _Remedies) -> str | None:
    return _norm_reason(type(module).__name__, remedies) if reads_whole_graph(module) else None


def _over_rows(model: nn.Module) -> str:
    """Returns the names of layers over all rows of a rank, or the model's class."""
    layers = {name: type(module).__name__ for name, module in model.named_modules() if _mixes_rows(module)}
    outer = [name for name in layers if not any(name.startswith(f"{layer}.") for layer in layers)]
    return ", ".join(f"{name} ({layers[name]})" for name in outer) or type(model).__name__


def _mixes_rows(module: nn.Module) -> bool:
    """Returns whether a layer is one that selects, pools or attends over all rows."""
    kind = type(module).__name__
    return kind in _ROW_MIXERS or kind.endswith("Pooling") or isinstance(module, nn.MultiheadAttention)


def check_parameters(model: nn.Module) -> None:
    """Raises `UserError` for parameters that cannot be trained or synchronised."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        _check_tensor(model, name, tensor)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise _error(model, f"{name}.weight has sparse gradients, which ranks do not add up: leave sparse out")
    parameter_ids = {id(parameter) for parameter in model.parameters()}
    for name, parameter in _in_containers(model):
        if parameter.requires_grad and id(parameter) not in parameter_ids:
            raise _error(
                model,
                f"{name} is in a plain list or dictionary, so it is neither trained nor saved: use nn.ModuleList, "
                "nn.ModuleDict or nn.ParameterList, or requires_grad_(False) where it shall stay as it is",
            )


def _error(model: nn.Module, text: str) -> UserError:
    return UserError(f"model={type(model).__name__}: {text}")


def _check_tensor(model: nn.Module, name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise _error(model, f"{name} has no shape before the first call: give the layer its in_features")
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise _error(model, f"numbers of {name} share one place in memory, as after expand(): use .clone()")


def _in_containers(model: nn.Module) -> Iterator[tuple[str, Parameter]]:
    """Yields the parameters in modules' lists and dictionaries, with their names."""
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _REGISTERED:
                yield from _inside(f"{place}.{name}".removeprefix("."), value, _DEPTH)


def _inside(name: str, value: object, depth: int) -> Iterator[tuple[str, Parameter]]:
    if isinstance(value, Parameter):
        yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{inner}", parameter) for inner, parameter in value.named_parameters())
    elif isinstance(value, list | tuple | dict) and depth:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _inside(f"{name}[{key!r}]", item, depth - 1)
