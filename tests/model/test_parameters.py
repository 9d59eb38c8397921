"""What ranks cannot train together is refused before the first step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gnnkit.errors import UserError
from gnnkit.model.exactness import check_parameters


class Net(nn.Module):
    """A linear layer, and one part more."""

    def __init__(self, change: Callable[[Net], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        change(self)


def setting(name: str, make: Callable[[Net], object]) -> Callable[[Net], None]:
    return lambda net: setattr(net, name, make(net))


REFUSED = {
    "lazy": (setting("late", lambda net: nn.LazyLinear(3)), "late.weight has no shape before the first call"),
    "sparse": (setting("rows", lambda net: nn.Embedding(4, 2, sparse=True)), "rows.weight has sparse gradients"),
    "expanded": (
        lambda net: net.register_buffer("one", torch.ones(1).expand(5)),
        "numbers of one share one place in memory",
    ),
    "a list": (setting("parts", lambda net: [nn.Linear(2, 2)]), r"parts\[0\].weight is in a plain list"),
    "a dictionary of lists": (
        setting("parts", lambda net: {"a": [nn.Parameter(torch.ones(2))]}),
        r"parts\['a'\]\[0\] is in a plain list",
    ),
}
TAKEN = {
    "shared": setting("same", lambda net: net.linear),
    "a list of registered modules": setting("parts", lambda net: [net.linear]),
    "a list of frozen modules": setting("teacher", lambda net: [nn.Linear(2, 2).requires_grad_(False)]),
    "turned": setting("turned", lambda net: nn.Parameter(torch.ones(2, 3).t())),
    "lists of numbers": setting("widths", lambda net: [[1, 2], {"a": (3,)}]),
    "a frozen embedding": setting("rows", lambda net: nn.Embedding(4, 2, sparse=True).requires_grad_(False)),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_parameters_that_ranks_cannot_train_are_named(change: Callable[[Net], object], message: str) -> None:
    with pytest.raises(UserError, match=f"^model=Net: {message}"):
        check_parameters(Net(change))


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN)
def test_other_parameters_are_taken(change: Callable[[Net], object]) -> None:
    check_parameters(Net(change))
