"""The codec interface. Codecs encode rows for transfer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Codec(ABC):
    """A compressed encoding for rows sent between two ranks.

    Not encoded are a rank's own rows, integers, softmax maxima and numbers that several
    holders must receive bitwise equal. A row that would not shrink is sent unencoded.
    Encoding must be a deterministic function of rows, ids and key.

    Rows may be encoded in a background thread, so a codec must not keep state
    between calls.
    """

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Returns the encoded size of a row, in bytes.

        All rows of one width have the same size, so receivers need no lengths.

        Args:
            width: Numbers per row.
        """

    @abstractmethod
    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:  # -> [n, row_bytes] uint8
        """Encodes rows.

        Args:
            rows: [n, width] floating-point.
            ids: [n] int64, which make the rows' random draws independent.
        """

    @abstractmethod
    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # -> [n, width]
        """Decodes rows.

        Args:
            data: [n, row_bytes] uint8, from `encode`.
            width: Numbers per row.
            dtype: The result's dtype.
        """
