"""Keyed dropout against torch's, which draws from one stream and knows no ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Against

from gnnkit import _core


def compare(against: Against, num_rows: int, width: int, has_gate: bool, threads: int, rounds: int) -> None:
    x, ids = np.random.default_rng(0).standard_normal((num_rows, width), dtype=np.float32), np.arange(num_rows)
    out, tensor = np.empty_like(x), torch.from_numpy(x)
    gate = x if has_gate else None

    def reference() -> torch.Tensor:
        return torch.nn.functional.dropout(tensor.relu() if has_gate else tensor, 0.5)

    against(lambda: _core.dropout(x, ids, 0.5, 7, out, gate=gate, threads=threads), reference, rounds=rounds)


@pytest.mark.parametrize("has_gate", [False, True], ids=["dropout", "relu_dropout"])
@pytest.mark.parametrize("width", [1, 16, 100, 128])
def test_dropout(against: Against, width: int, has_gate: bool) -> None:
    compare(against, 500_000 // width, width, has_gate, threads=1, rounds=20)


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_full_size(against: Against, threads: int) -> None:
    torch.set_num_threads(threads)
    compare(against, 50_000, 256, True, threads, rounds=10)
