"""An independent implementation of dropout noise.

A hash of (key, row id, column) decides whether an element (row, column) is kept. The
hash is splitmix64: `mix` is its last step, and word i of a stream is `mix(key + (i + 1)
GOLDEN)` in 64 bits. A word has four 16-bit lanes, lowest first, for four columns. Uses
Python integers to share no code with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN, _BITS = 0x9E3779B97F4A7C15, 2**64


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % _BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB % _BITS
    return z ^ z >> 31


def derived(key: int, *purposes: int) -> int:
    """Derives a key for a purpose, such as `derived(seed, step, layer)`."""
    for purpose in purposes:
        key = mix(key ^ mix((purpose + _GOLDEN) % _BITS))
    return key


def factors(ids: Sequence[int], width: int, p: float, key: int) -> Tensor:  # [len(ids), width] float64
    """Returns 0 for dropped elements, and otherwise the factor that preserves the mean.

    Args:
        ids: Global id of each row.
        width: Number of columns.
        p: Dropout probability in [0, 1), rounded to 2^-16.
        key: Key of the draw.
    """
    threshold = int(65536 * p + 0.5)
    scale = 65536 / (65536 - threshold)
    return torch.tensor(
        [[scale if _lane(derived(key, row), column) >= threshold else 0.0 for column in range(width)] for row in ids],
        dtype=torch.float64,
    ).view(len(ids), width)


def _lane(stream: int, column: int) -> int:  # 0..65535
    word = mix((stream + (column // 4 + 1) * _GOLDEN) % _BITS)
    return word >> 16 * (column % 4) & 0xFFFF
