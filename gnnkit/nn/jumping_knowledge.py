"""Jumping knowledge: combines the rows of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.utils.ranges import MAX_LAYERS, MAX_WIDTH, one_of, whole

Mode = Literal["cat", "max", "lstm"]


class JumpingKnowledge(nn.Module):
    """Combines the rows computed by each layer (Xu et al., ICML 2018).

    It treats nodes independently, so it is exact on any layout and on sampled blocks.
    If an earlier layer computed more rows, the first ones are used.

    Examples:
        >>> import torch
        >>> from gnnkit.nn import JumpingKnowledge
        >>> rows = [torch.ones(5, 8), torch.ones(3, 8)]  # fewer in the last layer
        >>> JumpingKnowledge("cat")(rows).shape
        torch.Size([3, 16])
    """

    if TYPE_CHECKING:  # torch annotates it as Any

        def __call__(self, xs: Sequence[Tensor]) -> Tensor: ...

    def __init__(self, mode: Mode, channels: int | None = None, num_layers: int | None = None) -> None:
        """Creates the parameters, which only `lstm` has. They match PyG's module.

        Args:
            mode: "cat" concatenates the rows, "max" takes each column's maximum, "lstm"
                computes an attention-weighted sum with a bidirectional LSTM.
            channels: Number of columns. Required by `lstm` only.
            num_layers: Number of layers. Required by `lstm` only.
        """
        super().__init__()
        self.mode = one_of("mode", mode, ("cat", "max", "lstm"))
        if mode != "lstm":
            return
        if channels is None or num_layers is None:
            raise UserError("JumpingKnowledge: mode=lstm needs channels and num_layers")
        hidden = whole("num_layers", num_layers, 1, MAX_LAYERS) * whole("channels", channels, 1, MAX_WIDTH) // 2
        self.lstm = nn.LSTM(channels, hidden, bidirectional=True, batch_first=True)
        self.att = nn.Linear(2 * hidden, 1)

    def forward(self, xs: Sequence[Tensor]) -> Tensor:  # [n, f] or [n, sum of widths]
        """Combines rows.

        Args:
            xs: The rows after each layer. The last layer has the fewest, n.
        """
        rows = [x[: len(xs[-1])] for x in xs]
        if self.mode == "cat":
            return torch.cat(rows, 1)
        stack = torch.stack(rows, 1)  # [n, num_layers, f]
        return stack.amax(1) if self.mode == "max" else self._attend(stack)

    def _attend(self, x: Tensor) -> Tensor:  # [n, num_layers, f] -> [n, f]
        one_row = x if len(x) else F.pad(x, (0, 0, 0, 0, 0, 1))  # an LSTM rejects empty input
        scores: Tensor = self.att(self.lstm(one_row)[0])[: len(x)]
        return (x * scores.softmax(1)).sum(1)
