"""Detection of in-place changes to tensors that outlast a model's call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.engine.adjacency import Adjacency
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.errors import UserError

_NEW_VERSION = (0,)  # expected version of a tensor created in the meantime


@contextmanager
def forbid_writes(model: object, adjacencies: Sequence[Adjacency], **values: Any) -> Iterator[None]:
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


def version_of(tensor: Any) -> int:
    """Returns torch's counter of in-place changes, 0 for inference tensors."""
    return 0 if not isinstance(tensor, Tensor) or tensor.is_inference() else tensor._version
