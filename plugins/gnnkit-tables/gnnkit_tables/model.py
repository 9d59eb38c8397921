"""Models of databases: a mean with gradient boosting, and a single column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model import GraphModel
from gnnkit.model.rgcn import RGCN
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit_tables.scores import IS_SCORE, MARK


class Blend(RGCN):
    """The mean of a relational GCN's outputs and those of gradient boosting.

    Choose this model for databases: trees read a target's columns better than layers
    do, and layers read other tables. `dataset.boosting=true` stores the outputs of the
    trees as the last columns of held-out targets, followed by `MARK`. Training targets
    have zeros there, so the weights of these columns stay zero. A row without the mark
    has the outputs of the GCN.
    """

    compares_columns = True
    places: Tensor  # [in_features, num_scores] selects the last columns

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_relations: int = 1,
        hidden: int = 32,
        num_layers: int = 3,
        dropout: float = 0.5,
    ) -> None:
        """Creates the parameters, of which those of the scores are zero and stay so.

        Args:
            in_features: Number of input features, of which the last are the scores.
            num_classes: Number of outputs, and of scores.
            num_relations: Number of edge types.
            hidden: Number of hidden features.
            num_layers: Number of convolutions.
            dropout: Dropout probability of layer inputs, in [0, 1).
        """
        super().__init__(
            in_features,
            num_classes,
            num_relations,
            hidden,
            num_layers,
            dropout,
            inverse=False,
            project=True,
            skip=True,
        )
        self.num_scores = num_classes + len(MARK)
        last = torch.arange(in_features) - (in_features - self.num_scores)
        self.register_buffer("places", (last[:, None] == torch.arange(self.num_scores)).float(), persistent=False)
        assert self.project is not None
        with torch.no_grad():
            self.project[last >= 0] = 0
            self.skip[0].weight[:, last >= 0] = 0  # type: ignore[operator]

    @classmethod
    def check_columns(cls, names: Sequence[str]) -> None:
        """Raises `UserError` if the last column is no output of gradient boosting."""
        if not names or not IS_SCORE.search(names[-1]):
            raise UserError(
                "model=blend averages a model of the graph with gradient boosting, whose outputs dataset=tables adds with "
                "dataset.boosting=true: set this key, or use model=rgcn"
            )

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if index:
            x, scores = x[:, : -self.num_scores], x[:, -self.num_scores :]
        else:
            scores = x @ self.places.to(x.dtype)
        out, scores = super().layer(index, x, adjacency), scores[: adjacency.num_dst]
        if index + 1 < self.num_layers:
            return torch.cat([out, scores.to(out.dtype)], 1)
        scores, first, second = scores[:, :-2].to(out.dtype), scores[:, -2:-1], scores[:, -1:]
        is_marked = (first > 0) & (second == first * (MARK[1] / MARK[0]))
        part = torch.where(is_marked, first / MARK[0], 0).to(out.dtype)  # 1, or less on a path from zeros
        return out + (scores - out) * (part / 2)


class Column(GraphModel):
    """One input column, such as the place that a rule gives a row.

    Choose this model to rank by a rule, when no model is better: `job=init` does so.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs, which are equal.
        column: Number of the column.
    """

    num_layers = 1
    compares_columns = True

    def __init__(self, in_features: int, num_classes: int, column: int = 0) -> None:
        super().__init__()
        self.column, self.num_outputs = whole("model.column", column, 0, MAX_COUNT), num_classes
        self.unused = nn.Parameter(torch.zeros(()))  # optimizers and DDP need a parameter. Its gradient is 0

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if self.column >= x.shape[1]:
            raise UserError(f"model.column={self.column}: the data has {x.shape[1]} columns, numbered from 0")
        rows = x[: adjacency.num_dst, self.column, None].expand(-1, self.num_outputs)
        return rows + 0 * self.unused
