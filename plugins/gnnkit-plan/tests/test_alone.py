"""A rank alone receives what ranks among others do, in zeros."""

from __future__ import annotations

import torch
from gnnkit_plan.alone import Alone


def test_own_rows_come_back_among_zeros_of_peers() -> None:
    rows = torch.arange(12.0).view(6, 2)
    index = torch.tensor([5, 4, 3, 2, 1, 0])
    found = Alone(1, 3).start(rows, [1, 2, 3], [2, 2, 1], index=index).wait()
    assert found.tolist() == [[0, 0], [0, 0], [8, 9], [6, 7], [0, 0]]
    assert Alone(1, 3).all_to_all(rows, [1, 2, 3], [0, 2, 0]).tolist() == rows[1:3].tolist()


def test_rows_of_a_single_peer_are_lent_and_memory_is_used_again() -> None:
    ranks, rows = Alone(0, 3), torch.ones(4, 2)
    with ranks.start(rows, [0, 4, 0], [0, 0, 5]).borrow() as first:
        assert first.tolist() == [[0, 0]] * 5
    with ranks.start(rows[:, :1].contiguous(), [0, 4, 0], [0, 3, 0]).borrow() as second:
        assert second.tolist() == [[0]] * 3
        assert second.data_ptr() == first.data_ptr()
    for received in ([0, 2, 3], [1, 4, 0]):  # of two peers, and rows of its own
        with ranks.start(rows, [received[0], 3, 0], received).borrow() as copied:
            assert copied.data_ptr() != first.data_ptr()
            assert copied.shape == (5, 2)
    waited = ranks.start(rows, [0, 4, 0], [0, 0, 5]).wait()
    waited += 1  # is the receiver's own
    with ranks.start(rows, [0, 4, 0], [0, 0, 5]).borrow() as again:
        assert again.tolist() == first.tolist()
