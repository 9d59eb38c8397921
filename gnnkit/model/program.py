"""Vertex-centric programs: models that are iterated instead of trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency
from gnnkit.utils.ranges import MAX_COUNT, real, whole

if TYPE_CHECKING:
    from typing_extensions import TypeIs


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
