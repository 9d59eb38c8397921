"""Gradient boosting as a model of one layer."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import GraphModel
from gnnkit.utils.ranges import MAX_COUNT, real, whole
from gnnkit_boosting.rounds import Rounds
from gnnkit_boosting.trees import NODE_FIELDS, sum_trees

MAX_TREES, MAX_LEAVES = 10_000, 4096


class Boosting(GraphModel, L.LightningModule):
    """Histogram gradient boosting on a node's columns and its in-neighbours' means.

    Choose this model for tables whose columns determine the label more than their
    neighbourhood does. It is scikit-learn's (Ke et al., NeurIPS 2017, LightGBM), with
    the loss of the run's task. Each epoch adds `trees.TREES_AT_ONCE` trees, so the
    best epoch has the number of trees that validates best. Outputs are log-odds, or
    numbers as the task scales them.

    Attributes:
        forest: [trees, num_classes, nodes of a tree, fields] in the form of
            `trees.pack`. Unused trees are zero.
        base: [num_classes] outputs without trees.
        size: [] number of trees that are used.
        num_labels: [] number of input columns, the last ones, that are the training
            nodes' labels (`label_inputs`). A node reads only its neighbours'.
    """

    num_layers = 1
    forest: Tensor
    base: Tensor
    size: Tensor
    num_labels: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        edge_width: int = 0,
        embeds: bool = False,
        neighbours: bool = True,
        trees: int = 300,
        learning_rate: float = 0.1,
        leaves: int = 31,
    ) -> None:
        """Stores the keys.

        Args:
            in_features: Number of columns.
            num_classes: Number of outputs.
            edge_width: Number of edge features, whose means are columns, too.
            embeds: Whether the task scores pairs of outputs, which is unsupported.
            neighbours: Whether trees read neighbours' means and the in-degree.
            trees: Maximum number of trees per output.
            learning_rate: Factor of each tree's values, in (0, 1].
            leaves: Maximum number of leaves per tree.
        """
        super().__init__()
        if embeds:
            raise UserError("model=boosting has no embeddings, which this task scores: use another model")
        self.neighbours, self.edge_width = neighbours, edge_width
        self.trees = whole("model.trees", trees, 1, MAX_TREES)
        self.learning_rate = real("model.learning_rate", learning_rate, above=0, high=1)
        self.leaves = whole("model.leaves", leaves, 2, MAX_LEAVES)
        whole("in_features", in_features, 0, MAX_COUNT)
        self.register_buffer("forest", torch.zeros(trees, num_classes, 2 * leaves - 1, NODE_FIELDS))
        self.register_buffer("base", torch.zeros(num_classes))
        self.register_buffer("size", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_labels", torch.zeros((), dtype=torch.int64))
        self.sum_trees: Callable[[Tensor, Tensor], Tensor] = sum_trees  # GrowingSums during training
        self.unused = nn.Parameter(torch.zeros(()))  # optimisers and DDP need a parameter. Its gradient is 0

    def configure_callbacks(self) -> list[Callback]:
        return [Rounds()]

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        with torch.no_grad():
            rows = self.columns(x, adjacency)
            outputs = self.base.double() + self.sum_trees(self.forest[: int(self.size)], rows)
        return outputs.to(rows.dtype) + 0 * self.unused

    @torch.no_grad()
    def columns(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, in_features] -> [num_dst, width]
        """Returns the columns that the trees read. Collective."""
        x, width = x.to(self.base.dtype), x.shape[1] - int(self.num_labels)
        rows = [x[: adjacency.num_dst, :width]]
        if self.neighbours:
            rows += [adjacency.aggregate(x[:, :width], reduce="mean"), adjacency.in_degree.to(x.dtype)[:, None]]
        if width < x.shape[1]:
            rows.append(_label_shares(x[:, width:], adjacency))
        if self.neighbours and self.edge_width:
            rows.append(_edge_means(x, adjacency, self.edge_width))
        return torch.cat(rows, 1)


def _label_shares(labels: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, k] -> [num_dst, k]
    """Returns the classes' shares of the other in-neighbours' labels. Collective."""
    ids = adjacency.src_nodes.to(labels.dtype)[:, None]
    apart = (adjacency.scores(ids, -ids[: adjacency.num_dst]) != 0).to(labels.dtype)  # 0: an edge to itself
    return F.normalize(adjacency.aggregate_messages(labels, lambda rows, columns: rows * apart), p=1)


def _edge_means(x: Tensor, adjacency: Adjacency, width: int) -> Tensor:  # [num_dst, width]
    """Returns the means of edge features over in-edges, 0 without any. Collective."""
    edges = adjacency.edge_features
    assert edges is not None
    sums = adjacency.aggregate_messages(x.new_zeros(len(x), width), lambda rows, columns: edges[:, columns])
    counts = adjacency.aggregate_messages(x.new_zeros(len(x), 1), lambda rows, columns: torch.ones_like(rows))
    return sums / counts.clamp(min=1)
