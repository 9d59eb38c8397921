"""Vertex-centric programs: models that are iterated instead of trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes that this rank owns, and the in-edges that join them to all others."""

    adjacency: Adjacency
    comm: Communicator
    num_nodes: int  # of the whole graph
    num_classes: int
    features: Tensor  # [num_owned, width]
    labels: Tensor  # [num_owned] int64, -1: none
    split: Tensor  # [num_owned] int8, values of `Split`

    def sum(self, x: Tensor) -> Tensor:  # [num_owned, ...] -> [...]
        """Sum over the nodes of all ranks, to the same bits on each. Collective."""
        return self.comm.all_reduce(x.sum(0))


class Program(ABC):
    """Repeats one step, which computes every node's value from those of its in-neighbours, until values stop changing.

    The residual of a step is the sum of |change| over all nodes and columns, divided by the sum of |value|. The run ends at the
    first residual of at most `tolerance`, or after `max_iterations` steps. Values are floating-point; nothing is differentiated. A
    program is a plugin of the kind `model`; the arguments of its constructor are the keys of its YAML.
    """

    self_loops = False  # True: every node without a loop gets one, of weight 1
    trains = False  # a program is iterated
    classifies = False  # True: values are a score for each class, of which the largest is the prediction

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        if tolerance < 0:
            raise UserError(f"tolerance={tolerance} must be at least 0")
        if max_iterations < 1:
            raise UserError(f"max_iterations={max_iterations} must be at least 1")
        self.tolerance, self.max_iterations = tolerance, max_iterations

    @abstractmethod
    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, width]
        """Values before the first step; the width is the same on all ranks. Collective. Raises `UserError` on all ranks, or on
        none, for a graph that it cannot serve."""

    @abstractmethod
    def step(self, x: Tensor, nodes: Nodes) -> Tensor:  # [num_owned, width] -> [num_owned, width]
        """The next values, in a new tensor. Collective; the same function of the graph and `x` however the nodes are spread."""
