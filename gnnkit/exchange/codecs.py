"""How the numbers of a row are written while they travel."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Codec(ABC):
    """A shorter spelling of the rows that travel between two ranks.

    A rank's own rows are never written. Neither are integers, maxima of a softmax and
    numbers that several holders must have to the same bit. A row that would not get
    shorter travels as it is. The same rows, ids and key give the same bytes.
    """

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Returns the bytes of a row of `width` numbers."""

    @abstractmethod
    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:  # -> [n, row_bytes] uint8
        """Writes rows.

        Args:
            rows: [n, width] floating-point.
            ids: [n] int64, which tell the draws of the rows apart.
            key: Key of all draws.
        """

    @abstractmethod
    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # -> [n, width]
        """Reads rows.

        Args:
            data: [n, row_bytes] uint8, from `encode`.
            width: Numbers of a row.
            dtype: Type of the result.
        """
