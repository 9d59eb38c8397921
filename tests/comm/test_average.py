"""Parameters of any layout in memory travel as one vector, and stay where they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.comm.agreement import average_parameters, drift, from_vector, models_differ, to_vector
from gnnkit.comm.threads import Threads


def test_tensors_of_any_layout_come_back_from_a_vector() -> None:
    base = torch.arange(12.0)
    tensors = [base.view(3, 4).t(), torch.zeros(()), torch.zeros(0, 2), base[::5]]
    places = [tensor.data_ptr() for tensor in tensors]
    vector = to_vector(tensors)
    assert vector.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 0, 0, 5, 10]
    from_vector(vector + 1, [*tensors[:3], torch.zeros(3)])
    assert tensors[0].tolist() == (torch.arange(12.0).view(3, 4).t() + 1).tolist()
    assert [tensor.data_ptr() for tensor in tensors] == places


def test_a_turned_parameter_is_averaged_where_it_stands() -> None:
    def on_rank(comm: Communicator) -> list[float]:
        model = nn.Module()
        held = torch.full((2, 3), float(comm.rank))
        model.turned = nn.Parameter(held.t())
        assert drift(model, comm) == 1
        average_parameters(model, comm, 1.0)
        assert drift(model, comm) == 0
        return held.flatten().tolist()

    assert Threads.run(on_rank, 2) == [[0.5] * 6] * 2


@pytest.mark.parametrize("changed", [None, "weight", "counter"])
def test_one_changed_bit_of_one_rank_is_found(changed: str | None) -> None:
    def on_rank(comm: Communicator) -> bool:
        model = nn.Module()
        model.weight = nn.Parameter(torch.tensor([1.0, float("nan"), float("inf")]))
        model.register_buffer("counter", torch.tensor(3))
        if changed is not None and comm.rank == 1:
            tensor = model.state_dict()[changed]
            tensor.view(-1)[:1] = torch.nextafter(tensor.view(-1)[:1], torch.tensor(2.0)) if changed == "weight" else 4
        return models_differ(model, comm)

    assert Threads.run(on_rank, 3) == [changed is not None] * 3
