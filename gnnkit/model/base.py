"""What a model is to gnnkit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency


class GraphModel(nn.Module):
    """A model over adjacencies. Any `nn.Module` with this `forward` will do; the base class holds the defaults.

    Its constructor takes `in_features` and `num_classes` first; its further arguments are the keys of its YAML.
    """

    num_layers: int
    self_loops = False  # True: every node without a loop gets one, of weight 1, before the model sees the graph

    @abstractmethod
    def forward(
        self, x: Tensor, adjacencies: Sequence[Adjacency]
    ) -> Tensor:  # [num_src, in_features] -> [num_dst, num_classes]
        """Logits. `adjacencies` holds one for each layer; on a full graph they are the same graph."""

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to."""
        return self.parameters()
