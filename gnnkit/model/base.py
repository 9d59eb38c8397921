"""The interface of models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.model.plain import takes_edges
from gnnkit.nn import BatchNorm, LayerNorm, call
from gnnkit.ranges import MAX_LAYERS, one_of, share, whole

Norm = Literal["none", "batch", "layer"]
_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm}


class GraphModel(nn.Module):
    """A model over adjacencies, layer by layer.

    Any `nn.Module` with `num_layers` and this `forward` can be trained. A model with
    `layer` can also be evaluated layer by layer, in bounded memory. A call takes plain
    tensors too, `model(x, edge_index)`, or a `Graph`. The constructor takes
    `in_features` and `num_classes` first. Its further arguments are the keys of its
    YAML.
    """

    num_layers: int
    reads_columns = False  # True: layer 0 reads `adjacency.columns`, and so may hold a part of its input's columns
    reads_sparse = False  # True: layer 0 multiplies its input by a weight first, and so may get `SparseRows`
    decays_rows = False  # True: `trainer.weight_decay` applies to learned input rows too
    adds_rows_itself = False  # True: layers add up rows of neighbours by functions of torch, in the type of the rows
    reads_relations = False  # True: layers read edge types, by `adjacency.aggregate_relations`
    self_loops = False  # True: every node without a loop gets one, of weight 1, before the model sees the graph

    def __init__(self) -> None:
        super().__init__()
        takes_edges(self)

    @abstractmethod
    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Computes the rows after layer `index` from the rows before the layer.

        The last layer gives the logits.
        """

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes].

        Args:
            x: [num_src, in_features] rows of the first layer's sources.
            adjacencies: One for each layer. A full graph is the same in all layers.
        """
        if len(adjacencies) != self.num_layers:
            raise ValueError(f"{len(adjacencies)} adjacencies for num_layers={self.num_layers}")
        for index, adjacency in enumerate(adjacencies):
            x = self.layer(index, x, adjacency)
        return x

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to."""
        return self.parameters()


class ConvModel(GraphModel):
    """Convolutions with dropout before and an activation between them.

    Normalisation and activation are the beginning of a layer, not its end, so that one
    pass over the rows does activation and dropout.

    A subclass sets `convs`, modules of (x, adjacency).
    """

    convs: nn.ModuleList

    def __init__(self, num_layers: int, dropout: float, norm: Norm = "none", width: int = 0) -> None:
        """Checks the keys that these models share.

        Args:
            num_layers: Number of convolutions.
            dropout: Probability in [0, 1) that an input of a layer is zeroed in
                training.
            norm: Normalisation between two convolutions: "none", "batch" or "layer".
            width: Columns of the rows between two convolutions.
        """
        super().__init__()
        self.num_layers = whole("model.num_layers", num_layers, 1, MAX_LAYERS)
        self.dropout, self.norm = share("model.dropout", dropout), one_of("model.norm", norm, ("none", *_NORMS))
        make = _NORMS.get(norm)
        self.norms = nn.ModuleList([] if make is None else [make(width) for _ in range(num_layers - 1)])

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if index and len(self.norms):
            x = call(self.norms[index - 1], x, adjacency)
        read = self.activate if index else self.drop
        out: Tensor = self.convs[index](read(x, adjacency), adjacency)
        return out

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, f]
        """Comes before the first convolution: dropout."""
        return adjacency.dropout(x, self.dropout, training=self.training)

    def activate(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, f]
        """Comes before every convolution but the first: an activation, then dropout."""
        return adjacency.relu_dropout(x, self.dropout, training=self.training)
