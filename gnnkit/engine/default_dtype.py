"""torch's default dtype for one thread, while a model runs in another precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CASTS = ("float", "to", "type")  # names of methods that ask for a dtype


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Returns a context in which new tensors of numbers have a model's dtype.

    `torch.set_default_dtype` would also change the ranks that are other threads.

    Args:
        dtype: The model's dtype. Only float64 differs from torch's default.
    """
    return _Double() if dtype == torch.float64 else nullcontext()


class _Double(TorchFunctionMode):
    """Creates float64 tensors where torch would use its default dtype."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if type(out) is not Tensor or out.dtype != torch.float32 or kwargs.get("dtype") is not None:
            return out
        if getattr(func, "__name__", "") in _CASTS or any(map(_has_dtype, _flat((*args, *kwargs.values())))):
            return out
        return out.double()


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _has_dtype(value: object) -> bool:
    """Returns whether a value's own dtype determines that of a result."""
    is_floating = isinstance(value, Tensor) and value.is_floating_point()
    return is_floating or isinstance(value, np.ndarray | np.generic | torch.dtype)
