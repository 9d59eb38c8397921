"""The interface of models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.model.plain import takes_edges
from gnnkit.nn import BatchNorm, LayerNorm, call
from gnnkit.utils.ranges import MAX_LAYERS, MAX_WIDTH, one_of, share, switch, whole

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
