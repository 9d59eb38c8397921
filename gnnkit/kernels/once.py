"""Maps whose gradients kernels compute, without recording them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

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


Map = Callable[[Tensor], Tensor]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Map, transpose: Map) -> Tensor:
        ctx.transpose = transpose
        return function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transpose(grad), None, None


class _LinearOnce(_Linear):
    backward = staticmethod(once_only(_Linear.backward))


def linear(x: Tensor, function: Map, transpose: Map) -> Tensor:
    """Applies a linear map, and its transpose to the gradient.

    Args:
        x: [...] the input.
        function: The map, which autograd does not record.
        transpose: Computes the gradient of `x`. Must not hold `x`, to free its memory.
    """
    result: Tensor = _Linear.apply(x, function, transpose)
    return result


def linear_once(x: Tensor, function: Map, transpose: Map) -> Tensor:
    """Like `linear`, for a transpose that autograd cannot record.

    Takes the arguments of `linear`.
    """
    result: Tensor = _LinearOnce.apply(x, function, transpose)
    return result
