"""Vertex-centric programs: models that are iterated instead of trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency
from gnnkit.ranges import MAX_COUNT, real, whole

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes that this rank owns, and their in-edges."""

    adjacency: Adjacency
    comm: Communicator
    num_nodes: int  # of the whole graph
    num_classes: int
    features: Tensor  # [num_owned, width]
    labels: Tensor  # [num_owned] int64, -1: none. Or another form of `Graph.labels`
    split: Tensor  # [num_owned] int8, values of `Split`

    def sum(self, x: Tensor) -> Tensor:  # [num_owned, ...] -> [...]
        """Sums over the nodes of all ranks, to the same bits on each. Collective."""
        return self.comm.all_reduce(x.sum(0))


class Program(ABC):
    """Repeats one step until values stop changing.

    A step computes every node's value from the values of its in-neighbours. The
    residual of a step is the sum of |change| over all nodes and columns, divided by the
    sum of |value|. The run ends at the first residual of at most `tolerance`, or after
    `max_iterations` steps. Values are floating-point. Nothing is differentiated. A
    program is a plugin of the kind `model`. Arguments of the constructor are the keys
    of its YAML.
    """

    self_loops = False  # True: every node without a loop gets one, of weight 1
    trains = False  # a program is iterated
    classifies = False  # True: values are a score for each class, of which the largest is the prediction

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        self.tolerance = real("model.tolerance", tolerance, 0)
        self.max_iterations = whole("model.max_iterations", max_iterations, 1, MAX_COUNT)

    @abstractmethod
    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, width]
        """Computes the values before the first step. Collective.

        The width is the same on all ranks. Raises `UserError` on all ranks, or on none,
        for a graph that the program cannot serve.
        """

    @abstractmethod
    def step(self, x: Tensor, nodes: Nodes) -> Tensor:  # [num_owned, width] -> [num_owned, width]
        """Computes the next values, in a new tensor. Collective.

        The result is the same function of the graph and `x`, however the nodes are
        spread.
        """


def is_iterated(model: object) -> TypeIs[Program]:
    """Says whether a model is a program, which is iterated instead of trained."""
    return not getattr(model, "trains", True)
