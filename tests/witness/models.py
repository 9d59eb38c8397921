"""Models like those of users: with in-place writes, shared and unused modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gnnkit_testing.graphs import EDGE_WIDTH
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.model.base import GraphModel
from gnnkit.nn import BatchNorm, Dropout, JumpingKnowledge

HIDDEN = 4  # width of all hidden rows
# Reads rows [num_src, HIDDEN] through an adjacency. Returns [num_dst, HIDDEN].
Read = Callable[[Any, Tensor, "Layer"], Tensor]


class Layer(nn.Module):
    """The parameters that any way of reading rows may use."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.first, self.second = nn.Linear(HIDDEN, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.source, self.destination = nn.Linear(HIDDEN, 2), nn.Linear(HIDDEN, 2)
        self.edge = nn.Linear(EDGE_WIDTH, 2)
        self.message = nn.Linear(EDGE_WIDTH, HIDDEN)


def _attend(a: Any, x: Tensor, layer: Layer) -> Tensor:
    """Computes `attend` with separate operations."""
    edge = None if a.edge_features is None else layer.edge(a.edge_features)
    weight = a.softmax(a.scores(layer.source(x), layer.destination(x[: a.num_dst]), edge).tanh())
    weight = a.edge_dropout(weight, 0.3, training=layer.training)
    out: Tensor = a.aggregate(x.view(-1, 2, HIDDEN // 2), weight=weight).flatten(1)
    return out


def _messages(a: Any, x: Tensor, layer: Layer) -> Tensor:
    edge = None if a.edge_features is None else layer.message(a.edge_features)
    out: Tensor = a.aggregate_messages(
        x, lambda rows, columns: (rows if edge is None else rows + edge[:, columns]).relu()
    )
    return out


def _degrees(a: Any, x: Tensor, layer: Layer) -> Tensor:
    out: Tensor = a.aggregate(x / (1 + a.out_degree[:, None])) * (1 + a.in_degree[:, None]).log()
    return out


READS: dict[str, Read] = {
    "sum": lambda a, x, layer: a.aggregate(x),
    "mean": lambda a, x, layer: a.aggregate(x, reduce="mean"),
    "max": lambda a, x, layer: a.aggregate(x, reduce="max"),
    "heads": lambda a, x, layer: a.aggregate(x.view(-1, 2, HIDDEN // 2)).flatten(1),
    "normalized": lambda a, x, layer: a.aggregate_normalized(x),
    "own": lambda a, x, layer: a.aggregate_with_own(x, layer.scale),
    "beside": lambda a, x, layer: layer.second(a.concat_mean(x, 0.3 if layer.training else 0)),
    "beside all": lambda a, x, layer: layer.second(a.concat_mean(x)),
    "product first": lambda a, x, layer: a.aggregate(layer.first(x), reduce="mean"),
    "messages": _messages,
    "attend": _attend,
    "degrees": _degrees,
    "two": lambda a, x, layer: a.aggregate(x, reduce="mean") - a.aggregate(x),
}
WRITES: dict[str, Callable[[Tensor], object]] = {  # in-place operations on the result
    "none": lambda z: None,
    "add": lambda z: z.add_(1),
    "multiply": lambda z: z.mul_(0.5),
    "relu": F.relu_,
    "one column": lambda z: z[:, 0].sub_(z[:, 1]),
}
BEFORE: dict[str, Callable[[Any, Tensor, nn.Module], Tensor]] = {
    "nothing": lambda a, x, part: x,
    "dropout": lambda a, x, part: Dropout(0.4).train(part.training)(x, a),
    "second dropout": lambda a, x, part: Dropout(0.4, draw=1).train(part.training)(x, a),
    "relu and dropout": lambda a, x, part: a.relu_dropout(x, 0.4, training=part.training),
    "ties": lambda a, x, part: x.detach().round() + (x - x.detach()),  # equal numbers with a gradient of 1
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The operations of each layer of a model."""

    reads: tuple[str, ...]  # keys of READS
    writes: tuple[str, ...]  # keys of WRITES
    before: tuple[str, ...]  # keys of BEFORE
    norm: bool = False  # whether a batch normalisation precedes each layer
    tied: bool = False  # whether all layers share one module
    jumps: bool = False  # whether the logits depend on all layers' rows
    self_loops: bool = False


class RecipeModel(GraphModel):
    """A model built from a recipe. One parameter is unused, and one is frozen."""

    def __init__(self, recipe: Recipe, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.recipe, self.num_layers, self.self_loops = recipe, len(recipe.reads), recipe.self_loops
        layers = [Layer() for _ in recipe.reads]
        self.layers = nn.ModuleList(layers[:1] * len(layers) if recipe.tied else layers)
        self.norms = nn.ModuleList(BatchNorm(HIDDEN) for _ in recipe.reads) if recipe.norm else None
        self.unused = nn.Linear(2, 3)
        self.frozen = nn.Parameter(torch.ones(()), requires_grad=False)
        self.join = JumpingKnowledge("cat") if recipe.jumps else None
        self.out = nn.Linear(HIDDEN * (self.num_layers if recipe.jumps else 1), num_classes)

    def forward(self, x: Tensor, adjacencies: Sequence[Any]) -> Tensor:
        rows = []
        for index, adjacency in enumerate(adjacencies):
            x = self.hidden(index, x, adjacency)
            rows.append(x)
        logits: Tensor = self.out(x if self.join is None else self.join(rows))
        return logits

    def hidden(self, index: int, x: Tensor, adjacency: Any) -> Tensor:
        """Computes a layer's output rows."""
        layer, recipe = self.layers[index], self.recipe
        if self.norms is not None:
            x = self.norms[index](x, adjacency)
        x = BEFORE[recipe.before[index]](adjacency, x, self)
        z = READS[recipe.reads[index]](adjacency, x, layer)  # type: ignore[arg-type]
        WRITES[recipe.writes[index]](z)
        out: Tensor = self.frozen * layer.first(z) + layer.first(x[: adjacency.num_dst])  # type: ignore[operator]
        return out

    def decayed_parameters(self) -> Iterable[nn.Parameter]:
        return self.out.parameters()

    def layer(self, index: int, x: Tensor, adjacency: Any) -> Tensor:
        x = self.hidden(index, x, adjacency)
        last = index == self.num_layers - 1
        return self.out(x) if last else x
