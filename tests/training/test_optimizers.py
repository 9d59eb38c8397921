"""The table of optimisers describes torch's optimisers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnkit.config.settings import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_counts_the_numbers_that_an_optimizer_keeps_for_each_parameter(name: str) -> None:
    parameter = torch.ones(7, requires_grad=True)
    optimizer = getattr(torch.optim, OPTIMIZERS[name].torch_name)([parameter], lr=0.1)
    parameter.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    kept = [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
    assert sum(value.shape == parameter.shape for value in kept) == OPTIMIZERS[name].moments
