"""A rank alone receives zeros, and its own rows."""

from __future__ import annotations

import torch
from gnnkit_plan.trial import Alone


def test_own_rows_come_back_among_zeros_of_peers() -> None:
    rows = torch.arange(12.0).view(6, 2)
    index = torch.tensor([5, 4, 3, 2, 1, 0])
    found = Alone(1, 3).start(rows, [1, 2, 3], [2, 2, 1], index=index).wait()
    assert found.tolist() == [[0, 0], [0, 0], [8, 9], [6, 7], [0, 0]]
    assert Alone(1, 3).all_to_all(rows, [1, 2, 3], [0, 2, 0]).tolist() == rows[1:3].tolist()
