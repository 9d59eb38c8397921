"""Checks a model's parameters and buffers before the first step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from gnnkit.errors import UserError

_REGISTERED = ("_parameters", "_buffers", "_modules")  # attributes of every module
_DEPTH = 3  # maximum depth of nested lists that are searched


def dtype_of(model: nn.Module) -> torch.dtype:
    """Returns the dtype of a model's rows: its first floating-point parameter's."""
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)


def check(model: nn.Module) -> None:
    """Raises `UserError` for parameters that cannot be trained or synchronised."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        _check_tensor(model, name, tensor)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise _error(model, f"{name}.weight has sparse gradients, which ranks do not add up: leave sparse out")
    parameter_ids = {id(parameter) for parameter in model.parameters()}
    for name, parameter in _in_containers(model):
        if parameter.requires_grad and id(parameter) not in parameter_ids:
            raise _error(
                model,
                f"{name} is in a plain list or dictionary, so it is neither trained nor saved: use nn.ModuleList, "
                "nn.ModuleDict or nn.ParameterList, or requires_grad_(False) where it shall stay as it is",
            )


def _error(model: nn.Module, text: str) -> UserError:
    return UserError(f"model={type(model).__name__}: {text}")


def _check_tensor(model: nn.Module, name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise _error(model, f"{name} has no shape before the first call: give the layer its in_features")
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise _error(model, f"numbers of {name} share one place in memory, as after expand(): use .clone()")


def _in_containers(model: nn.Module) -> Iterator[tuple[str, Parameter]]:
    """Yields the parameters in modules' lists and dictionaries, with their names."""
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _REGISTERED:
                yield from _inside(f"{place}.{name}".removeprefix("."), value, _DEPTH)


def _inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Parameter]]:
    if isinstance(value, Parameter):
        yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{inner}", parameter) for inner, parameter in value.named_parameters())
    elif isinstance(value, list | tuple | dict) and depth:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _inside(f"{name}[{key!r}]", item, depth - 1)
