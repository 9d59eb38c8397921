"""Results that every exact pass over constant rows shares."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from gnnkit.exchange.schedule import Passes
from gnnkit.kernels.product_rows import Rows


class FixedRows:
    """Constant input rows, and the cached results of exact training passes."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.rows: Rows | None = None  # [num_owned, f]
        self._results: dict[Hashable, Tensor] = {}

    def fix(self, rows: Rows) -> None:
        """Declares `rows` [num_owned, f] constant, instead of earlier ones."""
        self.rows, self._results = rows, {}

    def result(self, x: Tensor, key: Hashable, compute: Callable[[], Tensor]) -> Tensor | None:
        """Returns `compute()`, called once per key, or None unless `x` is constant.

        Without autograd, only results from earlier training passes are returned. All
        ranks agree, including those without rows. Callers must not modify the result.

        Args:
            x: [num_owned, f] rows that `compute` reads.
            key: Identifies the result.
            compute: Computes the result from `x`.
        """
        if x is not self.rows or not self._passes.exact or x.requires_grad:
            return None
        if key not in self._results and torch.is_grad_enabled():
            self._results[key] = compute()
        return self._results.get(key)
