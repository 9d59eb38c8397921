"""The job of a process that trains a relational model on a full graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from serve import Case
from steps import Step, epoch_step
from torch import Tensor, nn
from torch.nn import functional as F
from typed_case import TypedArrays

HEADS, HEAD_WIDTH, NUM_LAYERS, LR = 8, 8, 2, 0.01
WIDTH = HEADS * HEAD_WIDTH  # columns of input rows and of hidden layers


@dataclass(frozen=True)
class TypedJob:
    """A model and a graph. Every epoch is one step."""

    case: Case  # its folder has the arrays that `typed_epochs.py` writes
    model: str  # rgcn, rgat or hgt

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> TypedJob:
        """Reads a request."""
        return cls(Case.of(request), request["model"])

    @property
    def graph(self) -> TypedArrays:
        return TypedArrays.of(self.case)

    @property
    def num_classes(self) -> int:
        return int(self.case.load("labels").max()) + 1

    def rows(self) -> Tensor:  # [num_nodes, WIDTH] float32, without gradients
        return torch.from_numpy(np.random.default_rng(0).random((sum(self.graph.counts.values()), WIDTH), np.float32))

    def homogeneous(self) -> tuple[Tensor, Tensor]:
        """Returns all edges [2, num_edges], inverse ones included, and their relations.

        Nodes have consecutive ids by type, and edges are in order of relation.
        """
        edges = [np.stack(ends) for ends in self.graph.edges()]
        edges += [ends[::-1] for ends in edges]
        sizes = torch.tensor([ends.shape[1] for ends in edges])
        ends = torch.from_numpy(np.concatenate(edges, axis=1))
        return ends, torch.repeat_interleave(torch.arange(len(sizes)), sizes)

    def heterogeneous(self) -> dict[tuple[str, str, str], Tensor]:
        """Returns edges [2, num_edges] by relation, inverse ones included."""
        forward, graph = {}, self.graph
        for relation, (src, dst) in zip(graph.relations, graph.edges(), strict=True):
            firsts = [graph.firsts[relation[end]] for end in (0, 2)]
            forward[relation] = torch.from_numpy(np.stack([src - firsts[0], dst - firsts[1]]))
        inverse = {(dst, f"inverse_{name}", src): ends.flip(0) for (src, name, dst), ends in forward.items()}
        return forward | inverse

    def by_type(self, rows: Tensor) -> dict[str, Tensor]:
        """Divides rows [num_nodes, f] by node type."""
        counts = self.graph.counts
        return dict(zip(counts, rows.split(list(counts.values())), strict=True))

    def step(self, module: nn.Module, forward: Callable[[], Tensor]) -> Step:
        """Makes the step of an epoch.

        Args:
            module: Contains all parameters.
            forward: Returns the logits of the first node type [num_nodes, num_classes].
        """
        labels, train = (torch.from_numpy(self.case.load(name)) for name in ("labels", "train"))
        optimizer = torch.optim.Adam(module.parameters(), lr=LR)
        return epoch_step(optimizer, lambda: F.cross_entropy(forward()[train], labels[train]))
