"""Lazy copies of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def copy_on_write(x: Tensor) -> Tensor:
    """Returns a lazy copy, whose memory is copied on the first write to either.

    Memory that was not allocated by torch, such as an array's, is copied immediately.
    """
    try:
        return torch._lazy_clone(x)
    except RuntimeError:  # torch cannot report in advance whether it supports a lazy clone
        return x.clone()
