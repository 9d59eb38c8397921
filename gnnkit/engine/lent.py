"""The guard over tensors that a model reads and that outlast its call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gnnkit.engine.adjacency import Adjacency
from gnnkit.errors import UserError

_NEW = (0,)  # writes into a tensor that was made in between


@contextmanager
def lent(model: object, adjacencies: Sequence[Adjacency], **others: Any) -> Iterator[None]:
    """Raises `UserError` after its body where `model` has written into a tensor.

    Later steps would read what this step wrote. Writes that go round torch, as through
    `tensor.data` or `tensor.numpy()`, are not seen.

    Args:
        model: Named in the error.
        adjacencies: All that these have made by then is looked at too.
        **others: Further values by their names in the error. Only tensors are looked
            at.
    """
    tensors = {name: value for name, value in others.items() if isinstance(value, Tensor)}
    before = {id(tensor): (_version(tensor), tensor) for _, tensor in _all(adjacencies, tensors)}
    yield
    for name, tensor in _all(adjacencies, tensors):
        if _version(tensor) != before.get(id(tensor), _NEW)[0]:
            raise _error(model, name if name in tensors else f"adjacency.{name}")


def _error(model: object, name: str) -> UserError:
    return UserError(
        f"model={type(model).__name__}: {name} was changed in place, and later steps read it too: copy first, as in "
        f"{name}.clone(), or use the operation that is not in place, as in x + 1 instead of x += 1"
    )


def _all(adjacencies: Sequence[Adjacency], others: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [*others.items(), *(item for each in adjacencies for item in each.lent().items())]


def _version(tensor: Tensor) -> int:
    """Counts the writes, of which torch keeps no count in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
