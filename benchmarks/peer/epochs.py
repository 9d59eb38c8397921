"""The job of a process that trains on a full graph, with layers of any library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from serve import Case
from steps import LR, Step, epoch_step
from torch import Tensor, nn
from torch.nn import functional as F

LOOPED = ("gcn", "gat")  # every node of their graphs has a loop


@dataclass(frozen=True)
class Epochs:
    """A model and a graph. Every epoch is one step."""

    case: Case  # its folder has the arrays that `full_graph.write` names
    model: str  # gcn, sage, gin or gat
    hidden: int  # columns of hidden layers, all heads together
    heads: int  # of gat's hidden layers. The last has one
    num_layers: int
    dropout: float  # of inputs of layers, and of attention
    overrides: tuple[str, ...]  # of gnnkit's command, for the same graph and model

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Epochs:
        """Reads a request."""
        names = ("model", "hidden", "heads", "num_layers", "dropout")
        return cls(Case.of(request), *(request[name] for name in names), tuple(request["overrides"]))

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Columns before and after each layer."""
        num_classes = int(self.case.load("labels").max()) + 1
        return list(
            pairwise([self.case.load("features").shape[1], *[self.hidden] * (self.num_layers - 1), num_classes])
        )

    def edges(self) -> tuple[Tensor, Tensor]:  # [num_nodes + 1], [num_edges] sources of each node's in-edges
        """Returns the graph that the model reads."""
        kind = "looped_" if self.model in LOOPED else ""
        indptr, indices = (torch.from_numpy(self.case.load(kind + name, np.int64)) for name in ("indptr", "indices"))
        return indptr, indices

    def mlp(self, before: int, after: int) -> nn.Module:
        """Makes the perceptron of a layer of gin."""
        return nn.Sequential(nn.Linear(before, self.hidden), nn.ReLU(), nn.Linear(self.hidden, after))

    def step(self, convs: Sequence[nn.Module], call: Callable[[nn.Module, Tensor], Tensor]) -> Step:
        """Makes the step of an epoch.

        Args:
            convs: The layers.
            call: Applies a layer to rows [num_nodes, columns].
        """
        x, labels = (torch.from_numpy(self.case.load(name)) for name in ("features", "labels"))
        train = torch.from_numpy(self.case.load("train"))
        optimizer = torch.optim.Adam(nn.ModuleList(convs).parameters(), lr=LR)
        activate = F.elu if self.model == "gat" else F.relu

        def loss() -> Tensor:
            h = x
            for index, conv in enumerate(convs):
                h = call(conv, F.dropout(activate(h) if index else h, self.dropout))
            return F.cross_entropy(h[train], labels[train])

        return epoch_step(optimizer, loss)
