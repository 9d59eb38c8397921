"""Parameters with their optimiser, rebuilt from plain values and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.errors import UserError
from gnnkit.utils.documents import Json

State = dict[int, dict[str, Any]]  # optimiser state: tensors and numbers by name, by parameter number


@dataclass(frozen=True, slots=True)
class Groups:
    """An optimiser's parameter groups as plain values."""

    members: tuple[tuple[int, ...], ...]  # parameter numbers, by group
    settings: tuple[Json, ...]  # settings such as the learning rate, by group

    @classmethod
    def of(cls, optimizer: Optimizer, parameters: Sequence[Parameter]) -> Groups:
        """Reads an optimiser's groups.

        Raises `UserError` for settings that are not plain values.

        Args:
            parameters: The parameters, numbered by position. The optimiser's other
                parameters are ignored.
        """
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        members = tuple(
            tuple(places[id(p)] for p in group["params"] if id(p) in places) for group in optimizer.param_groups
        )
        return cls(members, tuple(_plain(group) for group in optimizer.param_groups))

    def within(self, numbers: Sequence[int]) -> Groups:
        """Restricts the groups to some parameters, renumbered by position."""
        places = {number: place for place, number in enumerate(numbers)}
        groups = tuple(tuple(places[n] for n in group if n in places) for group in self.members)
        return Groups(groups, self.settings)


class Optimised:
    """Parameters with their optimiser, on the CPU."""

    def __init__(
        self, values: Tensor, shapes: Sequence[Sequence[int]], groups: Groups, make: Callable[..., Optimizer]
    ) -> None:
        """Creates parameters and optimiser.

        Args:
            values: [n] all parameters, concatenated.
        """
        self.parameters = [Parameter(part) for part in _parts(values, shapes)]
        self._numbers = [number for number, members in enumerate(groups.members) if members]
        self._order = [place for members in groups.members for place in members]
        self.optimizer = make(
            [
                {**groups.settings[n], "params": [self.parameters[place] for place in groups.members[n]]}
                for n in self._numbers
            ]
        )

    def step(self, gradient: Tensor, rate: float) -> None:
        """Applies one step with a gradient [n], at `rate` times the learning rate.

        The learning rate is scaled, not the gradient, because Adam ignores a gradient's
        scale.
        """
        for parameter, part in zip(self.parameters, _parts(gradient, [p.shape for p in self.parameters]), strict=True):
            parameter.grad = part
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, base_rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = base_rate * rate
        self.optimizer.step()
        for group, base_rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = base_rate

    def values(self) -> Tensor:  # [n]
        """Returns a copy of the parameters, concatenated."""
        return to_vector(self.parameters)

    def set_values(self, values: Tensor) -> None:
        """Replaces the parameters. `values` is [n]."""
        from_vector(values, self.parameters)

    def set_settings(self, settings: Sequence[Mapping[str, object]]) -> None:
        """Replaces learning rates and other settings, by group."""
        for number, group in zip(self._numbers, self.optimizer.param_groups, strict=True):
            group.update(settings[number])

    def state(self) -> State:
        """Returns the optimiser's state by parameter number."""
        by_index = self.optimizer.state_dict()["state"]
        return {place: dict(by_index[i]) for i, place in enumerate(self._order) if i in by_index}

    def set_state(self, state: State) -> None:
        """Replaces the optimiser's state."""
        by_index = {i: state[place] for i, place in enumerate(self._order) if place in state}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": by_index})


def pack_state(state: State) -> tuple[list[Any], dict[str, Tensor]]:
    """Splits a state into plain values [number, name, value], and tensors by key."""
    items = [(number, name, value) for number, moments in state.items() for name, value in moments.items()]
    plain = [[number, name, value] for number, name, value in items if not isinstance(value, Tensor)]
    return plain, {f"{number}/{name}": value for number, name, value in items if isinstance(value, Tensor)}


def unpack_state(plain: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> State:
    """Reverses `pack_state`. Tensors without a slash in their key are ignored."""
    state: State = {}
    for number, name, value in plain:
        state.setdefault(number, {})[name] = value
    for key, tensor in tensors.items():
        number, slash, name = key.partition("/")
        if slash:
            state.setdefault(int(number), {})[name] = tensor
    return state


def _parts(values: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Splits a vector into tensors of the given shapes."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(torch.Size(shape)) for part, shape in zip(torch.split(values, sizes), shapes, strict=True)]


def _plain(group: Mapping[str, object]) -> Json:
    """Returns a parameter group's settings as JSON values."""
    plain = {name: _number(value) for name, value in group.items() if name != "params"}
    for name, value in plain.items():
        inner = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, bool | int | float | str) for item in inner):
            raise UserError(
                f"sync: the optimiser's setting {name} is a {type(value).__name__}, but servers support numbers only"
            )
    return plain


def _number(value: object) -> object:
    """Converts a one-element tensor to a number, and a tuple to a list."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return [_number(item) for item in value] if isinstance(value, tuple | list) else value
