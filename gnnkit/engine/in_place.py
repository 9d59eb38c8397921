"""What a model's call may do: change no lasting tensor, make tensors of its dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gnnkit.errors import UserError

if TYPE_CHECKING:
    from gnnkit.engine.adjacency import Adjacency

_NEW_VERSION = (0,)  # expected version of a tensor created in the meantime
_CASTS = ("float", "to", "type")  # names of methods that ask for a dtype


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Returns a context in which new tensors of numbers have a model's dtype.

    `torch.set_default_dtype` would also change the ranks that are other threads.

    Args:
        dtype: The model's dtype. Only float64 differs from torch's default.
    """
    return _Double() if dtype == torch.float64 else nullcontext()


class _Double(TorchFunctionMode):
    """Creates float64 tensors where torch would use its default dtype."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if type(out) is not Tensor or out.dtype != torch.float32 or kwargs.get("dtype") is not None:
            return out
        if getattr(func, "__name__", "") in _CASTS or any(map(_has_dtype, _flat((*args, *kwargs.values())))):
            return out
        return out.double()


def _flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _has_dtype(value: object) -> bool:
    """Returns whether a value's own dtype determines that of a result."""
    is_floating = isinstance(value, Tensor) and value.is_floating_point()
    return is_floating or isinstance(value, np.ndarray | np.generic | torch.dtype)


@contextmanager
def forbid_writes(model: object, adjacencies: Sequence[Adjacency], **values: object) -> Iterator[None]:
    """Raises `UserError` on exit if `model` has modified a tensor in place.

    Within the context, the model's new tensors have the dtype of its parameters.

    Later steps would read the modified values. Writes that bypass torch's version
    counter, as through `tensor.data` or `tensor.numpy()`, are not detected.

    Args:
        model: The model, for the message.
        adjacencies: Adjacencies, including the tensors they create in the body.
        **values: Further values by their names in the message. Only tensors are
            checked.
    """
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    before = {id(tensor): (version_of(tensor), tensor) for _, tensor in _named_tensors(adjacencies, tensors)}
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    with default_dtype(next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)):
        yield
    for name, tensor in _named_tensors(adjacencies, tensors):
        if version_of(tensor) != before.get(id(tensor), _NEW_VERSION)[0]:
            raise _error(model, name if name in tensors else f"adjacency.{name}")


def _error(model: object, name: str) -> UserError:
    return UserError(
        f"model={type(model).__name__}: {name} was changed in place, and later steps read it too: copy it first, as in "
        f"{name}.clone(), or use an out-of-place operation, such as x + 1 instead of x += 1"
    )


def _named_tensors(adjacencies: Sequence[Adjacency], tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [*tensors.items(), *(item for adjacency in adjacencies for item in adjacency.tensors().items())]


def version_of(tensor: object) -> int:
    """Returns torch's counter of in-place changes, 0 for inference tensors."""
    return 0 if not isinstance(tensor, Tensor) or tensor.is_inference() else tensor._version
