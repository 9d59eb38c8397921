"""The interface of models and programs, and calls of a model with plain tensors."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency, Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.edge_order import in_listed_order, with_inverse_edges
from gnnkit.nn import BatchNorm, LayerNorm, call
from gnnkit.partition.shard import uncut
from gnnkit.utils.checks import array
from gnnkit.utils.ranges import MAX_COUNT, MAX_LAYERS, MAX_WIDTH, one_of, real, share, switch, whole

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_KEYS = {"edge_weight": "weight", "edge_attr": "edge_features", "edge_type": "edge_types"}  # PyG's names, and gnnkit's
Preprocess = Callable[[Graph], Graph]  # applies the model's preprocessing to a graph
Norm = Literal["none", "batch", "layer"]
_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm}


class GraphModel(nn.Module):
    """A model that computes one layer per adjacency.

    Any `nn.Module` with `num_layers` and this `forward` can be trained. A model that
    also implements `layer` is evaluated layer by layer, in bounded memory. The model
    can be called with plain tensors, `model(x, edge_index)`, or with a `Graph`. The
    constructor's first arguments are `in_features` and `num_classes`. Its other
    arguments are the keys of the model's YAML.

    Derive from it to write a model that runs on every layout and on sampled batches.
    Implement `layer`, which reads its neighbours' rows through the adjacency only. A
    model never learns whether the rows are on this rank.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from gnnkit.model import GraphModel
        >>> class Mean(GraphModel):
        ...     def __init__(self, in_features, num_classes, num_layers=1):
        ...         super().__init__()
        ...         self.num_layers = num_layers
        ...         self.linear = nn.Linear(in_features, num_classes)
        ...     def layer(self, index, x, adjacency):
        ...         return self.linear(adjacency.aggregate(x, reduce="mean"))
        >>> Mean(2, 3)(torch.ones(4, 2), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([4, 3])
    """

    num_layers: int
    default_lr = 0.01  # learning rate with `trainer.lr=null`
    default_weight_decay = 0.0  # with `trainer.weight_decay=null`, if features far outnumber training nodes
    reads_sparse = False  # True: layer 0 multiplies its input by a weight first, so it supports `SparseRows`
    decays_rows = False  # True: `trainer.weight_decay` also applies to learned input rows
    adds_rows_itself = False  # True: layers aggregate with torch functions, in the rows' dtype
    reads_relations = False  # True: layers use edge types, through `adjacency.aggregate_relations`
    reads_edge_age = False  # True: layers need `adjacency.edge_age`, so batches must be sampled by time
    compares_columns = False  # True: columns mean the same in all rows, so no row may be divided by its sum
    undirected = False  # True: layers read each edge in both directions, so its reverse is added before training
    self_loops = False  # True: nodes without a self-loop get one of weight 1 before training

    def __init__(self) -> None:
        super().__init__()
        takes_edges(self)

    @abstractmethod
    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Computes layer `index`, from 0. The last layer returns logits.

        Collective in forward and backward if several ranks share the graph, so every
        rank must perform the same operations on the adjacency, even without rows.

        Args:
            index: The layer's number.
            x: [num_src, ...] rows of the layer's sources: the features for layer 0,
                else the previous layer's result.
            adjacency: The layer's in-edges.

        Returns:
            [num_dst, ...] one row per destination.
        """

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes].

        Args:
            x: [num_src, in_features] rows of the first layer's sources.
            adjacencies: One per layer. For a full graph, all layers share one.
        """
        if len(adjacencies) != self.num_layers:
            raise ValueError(f"{len(adjacencies)} adjacencies for num_layers={self.num_layers}")
        for index, adjacency in enumerate(adjacencies):
            x = self.layer(index, x, adjacency)
        return x

    @classmethod
    def check_columns(cls, names: Sequence[str]) -> None:
        """Raises `UserError` if the data do not have the model's columns.

        Called with the feature names before ranks start, so a model that reads certain
        columns can name the missing ones. Default: accepts all data.

        Args:
            names: [width] names of the feature columns.
        """

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to. Default: all.

        Override it to exclude biases or embeddings, for example.
        """
        return self.parameters()


class ConvModel(GraphModel):
    """A stack of convolutions with dropout, activation and normalisation.

    A layer starts, rather than ends, with normalisation and activation, so that
    activation and dropout are fused into one pass over the rows.

    Subclasses set `convs`, modules called with (x, adjacency).

    Use it for a model that repeats one convolution, as `gcn`, `sage`, `gat` and
    `gin` do. The constructor creates `convs` for its widths, and the base class does
    the rest.
    """

    convs: nn.ModuleList

    def __init__(self, num_layers: int, dropout: float, norm: Norm = "none", width: int = 0) -> None:
        """Checks the shared keys.

        Args:
            num_layers: Number of convolutions.
            dropout: Dropout probability of each layer's input, in [0, 1).
            norm: Normalisation between convolutions: "none", "batch" or "layer".
            width: Number of hidden features.
        """
        super().__init__()
        self.num_layers = whole("model.num_layers", num_layers, 1, MAX_LAYERS)
        self.dropout, self.norm = share("model.dropout", dropout), one_of("model.norm", norm, ("none", *_NORMS))
        self.skip = nn.ModuleList()
        make = _NORMS.get(norm)
        self.norms = nn.ModuleList([] if make is None else [make(width) for _ in range(num_layers - 1)])

    def skip_input(self, in_features: int, width: int, num_outputs: int, *, skip: bool) -> None:
        """Adds the outputs of a perceptron with one hidden layer, of each node's row.

        Layers pass on its hidden columns after their own. Does nothing if `skip` is
        false.
        """
        if switch("model.skip", skip):
            self.skip = nn.ModuleList([nn.Linear(in_features, width), nn.Linear(width, num_outputs)])

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if not len(self.skip):
            return self._convolve(index, x, adjacency)
        first, last = self.skip
        if index:
            x, hidden = x[:, : -first.out_features], x[:, -first.out_features :]  # type: ignore[operator]
        else:
            rows = ConvModel.drop(self, x, adjacency)[: adjacency.num_dst]
            hidden = rows @ first.weight.t() + first.bias  # type: ignore[operator]
        out, hidden = self._convolve(index, x, adjacency), hidden[: adjacency.num_dst]
        if index + 1 < self.num_layers:
            return torch.cat([out, hidden.to(out.dtype)], 1)
        hidden = adjacency.dropout(hidden.relu(), self.dropout, training=self.training, draw=1)
        logits: Tensor = out + last(hidden)
        return logits

    def _convolve(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if index and len(self.norms):
            x = call(self.norms[index - 1], x, adjacency)
        read = self.activate if index else self.drop
        out: Tensor = self.convs[index](read(x, adjacency), adjacency)
        return out

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, f]
        """Applies dropout, before the first convolution.

        A subclass whose convolution includes the dropout of its input returns `x`.
        """
        return adjacency.dropout(x, self.dropout, training=self.training)

    def activate(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, f]
        """Applies the activation and dropout, before every other convolution.

        A subclass with another activation than ReLU overrides it.
        """
        return adjacency.relu_dropout(x, self.dropout, training=self.training)


class ConvStack(ConvModel):
    """Convolutions from in_features to num_classes, with equal hidden widths."""

    first_reads_hidden = False  # True: the first product of `convs[0]` has `hidden` columns even in a single layer

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: Norm = "none",
        skip: bool = False,
    ) -> None:
        """Creates the layers.

        Args:
            in_features: Number of input features.
            num_classes: Number of outputs.
            hidden: Number of hidden features.
            num_layers: Number of convolutions.
            dropout: Dropout probability of layer inputs, in [0, 1).
            norm: Normalisation between convolutions: "none", "batch" over all nodes of
                a step, or "layer" over a node's features.
            skip: Whether a perceptron of the node's own input row, with one hidden
                layer, is added to the outputs.
        """
        whole("model.hidden", hidden, 1, MAX_WIDTH)
        super().__init__(num_layers, dropout, norm, hidden)
        widths = [in_features, *[hidden] * (num_layers - 1), num_classes]
        width = hidden if self.first_reads_hidden else widths[1]
        self.reads_sparse = self.reads_sparse and width < in_features
        self.convs = nn.ModuleList(self.make_conv(a, hidden, b) for a, b in pairwise(widths))
        self.skip_input(in_features, hidden, num_classes, skip=skip)

    @abstractmethod
    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        """Creates one convolution."""


def attention_dropout(dropout: float | None, *, embeds: bool) -> float:
    """Returns the dropout probability of inputs and attention, by default 0.5.

    The default is 0 for embeddings. Link prediction hides a part of the edges in each
    epoch, so that attention cannot rely on single edges anyway. On drawn graphs of
    users and items, dropout in addition kept the training loss near that of chance.

    Args:
        dropout: The configured probability, or None.
        embeds: Whether outputs are node embeddings, whose pairs are scored.
    """
    return (0.0 if embeds else 0.5) if dropout is None else dropout


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """This rank's owned nodes, and their in-edges: what a program may read.

    Rows are in the order of `adjacency.src_nodes`. Features, labels and split are those
    of the graph, so a program can start from them. Every rank has such an object, and a
    rank may own no nodes.
    """

    adjacency: Adjacency
    comm: Communicator
    num_nodes: int  # in the complete graph
    num_classes: int
    features: Tensor  # [num_owned, width]
    labels: Tensor  # [num_owned] int64, -1: none. Or another form of `Graph.labels`
    split: Tensor  # [num_owned] int8, values of `Split`

    def sum(self, x: Tensor) -> Tensor:  # [num_owned, ...] -> [...]
        """Sums over all ranks' nodes, bitwise equal on all ranks. Collective.

        Use it for quantities of the complete graph, such as the rank of nodes without
        out-edges in PageRank.

        Args:
            x: [num_owned, ...] a value per owned node.

        Returns:
            [...] the sum.
        """
        return self.comm.all_reduce(x.sum(0))


class Program(ABC):
    """Repeats a step until its values converge.

    A step computes every node's value from its in-neighbours' values. The residual is
    the sum of |change| over all nodes and columns, divided by the sum of |value|. The
    iteration stops at the first residual of at most `tolerance`, or after
    `max_iterations` steps. Values are floating-point, and nothing is differentiated. A
    program is a plugin of the kind `model`. The constructor's arguments are the keys of
    its YAML.

    Use it for PageRank, label propagation, connected components and other algorithms
    on the vertices of a graph, on the same layouts as training. A run iterates a
    program instead of training it, and `values.npy` in its folder contains the values.

    Examples:
        >>> import torch
        >>> from gnnkit.model import Program
        >>> class Reach(Program):
        ...     '''Marks all nodes that node 0 reaches.'''
        ...     def start(self, nodes):
        ...         ids = nodes.adjacency.src_nodes[: nodes.adjacency.num_dst]
        ...         return (ids == 0).float()[:, None]
        ...     def step(self, x, nodes):
        ...         return torch.maximum(x, nodes.adjacency.aggregate(x, reduce="max"))
    """

    self_loops = False  # True: nodes without a self-loop get one, of weight 1
    trains = False  # programs are iterated
    classifies = False  # True: values are scores per class, and the largest is the prediction

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        self.tolerance = real("model.tolerance", tolerance, 0)
        self.max_iterations = whole("model.max_iterations", max_iterations, 1, MAX_COUNT)

    @abstractmethod
    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, width]
        """Computes the initial values. Collective.

        The width must be equal on all ranks. Raises `UserError`, on all ranks or none,
        for an unsupported graph.
        """

    @abstractmethod
    def step(self, x: Tensor, nodes: Nodes) -> Tensor:  # [num_owned, width] -> [num_owned, width]
        """Computes the next values, in a new tensor. Collective.

        The result must be a function of the graph and `x`, independent of the
        partition.
        """


def is_iterated(model: object) -> TypeIs[Program]:
    """Returns whether a model is a program."""
    return not getattr(model, "trains", True)


def takes_edges(model: nn.Module, reads: Preprocess | None = None) -> None:
    """Allows calling a module of (x, adjacencies) with (x, edge_index) or (graph).

    Args:
        model: The module.
        reads: Applies the model's preprocessing to a graph. Default: none.
    """
    for key, hook in list(model._forward_pre_hooks.items()):
        if isinstance(hook, _Converter):
            if reads is None:
                return
            del model._forward_pre_hooks[key]
    model.register_forward_pre_hook(_Converter(reads), with_kwargs=True)


def in_unit(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Makes calls of a model return values in the labels' unit.

    Args:
        model: The module, whose outputs are standardised.
        convert: Converts outputs, as `LabelFacts.in_unit`.
    """
    model.register_forward_hook(_InUnit(convert))


def as_trained(model: nn.Module) -> None:
    """Reverses `in_unit` and `reads_raw_rows`, for training and for jobs."""
    every = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    for hooks in every:
        for key, hook in list(hooks.items()):
            if isinstance(hook, _InUnit | _RawRows):
                del hooks[key]


def reads_raw_rows(model: nn.Module, transform: Callable[[Tensor], Tensor], width: int, last: str) -> None:
    """Makes calls of a model on tensors transform the rows as in training.

    Calls with tensors of another width raise `UserError`.

    Args:
        model: The module, called with rows, rows by node type, or PyG's `Data`.
        transform: Fills and scales rows [num_nodes, in_features].
        width: Columns that training read.
        last: Name of a last column that the data does not have, or "".
    """
    model.register_forward_pre_hook(_RawRows(transform, dtype_of(model), width, last), with_kwargs=True)


class _RawRows:
    def __init__(self, transform: Callable[[Tensor], Tensor], dtype: torch.dtype, width: int, last: str) -> None:
        self._transform, self._dtype, self._width, self._last = transform, dtype, width, last

    def __call__(self, model: nn.Module, args: tuple[Any, ...], keys: Mapping[str, Any]) -> Any:
        second = args[1] if len(args) > 1 else keys.get("adjacencies")
        if isinstance(second, Sequence):  # the rows of a rank
            return args, keys
        if args:
            return (self._read(args[0]), *args[1:]), keys
        name = next(iter(inspect.signature(model.forward).parameters), "")
        return args, {**keys, **({name: self._read(keys[name])} if name in keys else {})}

    def _read(self, rows: Any) -> Any:
        if isinstance(rows, Tensor):
            if rows.dim() != 2 or rows.size(1) != self._width:
                last = f", the last of which is the {self._last}: append it" if self._last else ""
                raise UserError(f"x has the shape {list(rows.shape)}, but training read {self._width} columns{last}")
            return self._transform(rows).to(self._dtype)
        if isinstance(rows, dict):
            return {name: self._transform(value).to(self._dtype) for name, value in rows.items()}
        if isinstance(getattr(rows, "x", None), Tensor):
            rows = copy.copy(rows)
            rows.x = self._read(rows.x)
        return rows


class _InUnit:
    def __init__(self, convert: Callable[[Tensor], Tensor]) -> None:
        self._convert = convert

    def __call__(self, model: nn.Module, args: object, out: Tensor) -> Tensor:
        return self._convert(out)


class _Converter:
    """Converts a call's arguments to rows and adjacencies."""

    def __init__(self, reads: Preprocess | None) -> None:
        self._reads = reads

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], keys: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = args[0] if args else keys.get("x")
        second = args[1] if len(args) > 1 else keys.get("edge_index")
        if not isinstance(first, Graph) and (isinstance(second, Sequence) or "adjacencies" in keys):
            return args, keys
        if not isinstance(first, Graph) and not (isinstance(first, Tensor) and isinstance(second, Tensor | Graph)):
            type_names = ", ".join(type(rows).__name__ for rows in (first, second) if rows is not None)
            raise UserError(
                f"a model is called as model(x, edge_index) with tensors, or as model(graph), got {type_names}"
            )
        if getattr(torch.compiler, "is_exporting", bool)():  # missing in torch 2.6
            raise UserError(
                "torch.export cannot follow a call on edges: gnnkit.export(run, 'model.pt2') writes the file"
            )
        edge_values = {name: value for name, value in keys.items() if name not in ("x", "edge_index")}
        x = first if self._reads is None or not isinstance(first, Graph) else self._reads(first)
        return on_plain(model, x, second, **edge_values), {}


def on_plain(
    model: nn.Module, x: Tensor | Graph, edges: Tensor | Graph | None = None, **of_edges: Tensor | None
) -> tuple[Tensor, tuple[Adjacency, ...]]:
    """Returns rows and adjacencies for a model of (x, adjacencies).

    Builds the adjacencies at each call, which takes one pass over the edges. Dropout
    uses torch's random generator. Raises `UserError` for edges that do not match the
    rows, and for rows on a GPU.

    Args:
        model: The model, with its attributes `num_layers` and `self_loops`.
        x: [num_nodes, in_features] rows, or a `Graph` with features.
        edges: [2, num_edges] int64 source and destination of each edge, or a `Graph`.
            If None, the edges of the graph `x`.
        **of_edges: `edge_weight` [num_edges], `edge_attr` [num_edges, width] and
            `edge_type` [num_edges].
    """
    if isinstance(x, Graph):
        graph, x = x, _rows(model, x)
    else:
        graph = edges if isinstance(edges, Graph) else _graph(x, edges, of_edges)
    if not x.is_floating_point() or (any(True for _ in model.parameters()) and x.dtype != dtype_of(model)):
        raise UserError(f"x has dtype {x.dtype}, and the model has {dtype_of(model)}: use x.to({dtype_of(model)})")
    if x.device.type != "cpu":
        raise UserError(f"a model is called on edges on the CPU, and x is on {x.device}: use model.cpu() and x.cpu()")
    if len(x) != graph.num_nodes:
        raise UserError(f"x has {len(x):,} rows, and the graph {graph.num_nodes:,} nodes")
    graph = in_listed_order(graph) if getattr(model, "edge_order", False) else graph
    shard = uncut(with_inverse_edges(graph) if getattr(model, "undirected", False) else graph)
    if getattr(model, "self_loops", False):
        shard = shard.with_self_loops()
    comm = Threads.connect(0, 1, device=x.device, timeout=1.0)
    key = int(torch.randint(2**62, ())) if model.training else 0
    num_layers: int = model.num_layers  # type: ignore[assignment]
    return x, ShardAdjacency.layers(Engine(shard, comm, x.dtype), num_layers, key)


def _graph(x: Tensor, edges: Tensor | None, of_edges: dict[str, Tensor | None]) -> Graph:
    """Creates the graph of an `edge_index`."""
    if unknown := sorted(of_edges.keys() - _KEYS.keys()):
        raise UserError(f"a model reads {', '.join(_KEYS)} of edges, not {unknown[0]}")
    if not isinstance(edges, Tensor) or edges.dim() != 2 or len(edges) != 2:
        shape = list(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
        raise UserError(f"edge_index must have the shape [2, num_edges], found {shape}")
    edge_arrays: dict[str, Any] = {
        _KEYS[name]: array(name, value) for name, value in of_edges.items() if value is not None
    }
    src, dst = edges.cpu().numpy()
    return Graph.from_edges(src, dst, len(x), **edge_arrays)


def _rows(model: nn.Module, graph: Graph) -> Tensor:
    """Returns a graph's features in the parameters' dtype."""
    dtype = dtype_of(model)
    return torch.from_numpy(np.array(graph.whole_features)).to(dtype)


def dtype_of(model: nn.Module) -> torch.dtype:
    """Returns the dtype of a model's rows: its first floating-point parameter's."""
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)
