import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.partition import NodePartitioner


class Stripes(NodePartitioner):
    """Distributes runs of `width` consecutive nodes over the parts in turn."""

    def __init__(self, width: int = 64) -> None:
        if width < 1:
            raise UserError(f"partition.options.width={width} must be at least 1")
        self.width = width

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        return np.arange(graph.num_nodes) // self.width % num_parts
