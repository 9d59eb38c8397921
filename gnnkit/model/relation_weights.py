"""The relations' weights of typed models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Pairs
from gnnkit.errors import UserError
from gnnkit.utils.ranges import MAX_WIDTH, whole


class RelationWeights(nn.Module):
    """One weight per relation: free, a sum of bases, or block-diagonal.

    With bases, W_r = sum_b a_rb V_b (eq. 3 of the paper). With blocks, W_r is
    block-diagonal (eq. 4).
    """

    def __init__(
        self, in_features: int, out_features: int, num_relations: int, bases: int | None, blocks: int | None
    ) -> None:
        """Creates the parameters.

        Args:
            in_features: Number of input features.
            out_features: Number of output features.
            num_relations: Number of weights.
            bases: Number of bases, or None.
            blocks: Number of blocks, or None.
        """
        super().__init__()
        count, blocks = bases or num_relations, blocks or 1
        self.weight = Parameter(torch.empty(count, blocks, in_features // blocks, out_features // blocks))
        self.coefficients = None if bases is None else Parameter(torch.empty(num_relations, bases))
        for matrix in self.weight.flatten(0, 1):
            nn.init.xavier_uniform_(matrix)
        if self.coefficients is not None:
            nn.init.xavier_uniform_(self.coefficients)

    def forward(self, means: Tensor, pairs: Pairs, columns: slice) -> Tensor:  # [num_pairs, f] -> [num_rows, k]
        """Multiplies each relation's means by its weight, and sums over relations.

        Args:
            means: [num_pairs, f] with `columns` of the input.
            pairs: Destination and relation of each row.
            columns: Range of the input's columns.
        """
        weight = self._dense()[:, columns]
        if self.coefficients is None:
            return pairs.sum_products(means, weight)
        if pairs.sums_first(len(self.weight), weight.shape[2]):
            sums = [pairs.weighted_sum(means, coefficients) for coefficients in self.coefficients.t()]
            return torch.cat(sums, 1) @ weight.flatten(0, 1)
        return pairs.sum_products(means, torch.tensordot(self.coefficients, weight, 1))

    def matrices(self) -> Tensor:  # [num_relations, f, k]
        """Computes each relation's weight."""
        return self._dense() if self.coefficients is None else torch.tensordot(self.coefficients, self._dense(), 1)

    def side_by_side(self) -> Tensor:  # [f, num_relations or bases * k]
        """Concatenates the weights, or the bases."""
        return self._dense().transpose(0, 1).flatten(1)

    def _dense(self) -> Tensor:  # [num_relations or bases, f, k]
        if self.weight.shape[1] == 1:
            return self.weight[:, 0]
        count, blocks, rows, columns = self.weight.shape
        dense = self.weight[:, :, :, None] * self.weight.new_ones(blocks).diag()[:, None, :, None]
        return dense.reshape(count, blocks * rows, blocks * columns)


def check_parts(bases: int | None, blocks: int | None, widths: list[int]) -> None:
    """Raises `UserError` for bases combined with blocks, and for indivisible widths."""
    if bases is not None:
        whole("model.bases", bases, 1, MAX_WIDTH)
    if blocks is None:
        return
    whole("model.blocks", blocks, 1, MAX_WIDTH)
    if bases is not None:
        raise UserError(f"model.blocks={blocks}: model.bases={bases} is the other form of weights, set one to null")
    named_widths = {f"model.hidden={width}": width for width in widths[1:-1]}
    named_widths |= {f"{widths[0]} columns of input rows": widths[0], f"{widths[-1]} outputs": widths[-1]}
    for name, width in named_widths.items():
        if width % blocks:
            raise UserError(f"{name} cannot be divided by model.blocks={blocks}: choose another number, or model.bases")
