"""A rule for gradients that kernels compute without recording them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gnnkit.errors import UserError


def refuse_second() -> NoReturn:
    """Raises `UserError` for a gradient of a gradient."""
    raise UserError(
        "the model needs the gradient of a gradient (create_graph=True), which maxima, sums with learned weights, dropout "
        "and rows of other workers do not support: use workers=1 and sums or means without them"
    )


def once_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Raises `UserError` where autograd would record a gradient as a constant.

    torch's `once_differentiable` does not, if only saved tensors need a gradient.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            refuse_second()
        return backward(ctx, *grads)

    return wrapper
