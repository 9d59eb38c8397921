"""The cases of parametrised tests, of which some are exhaustive.

`pytest` runs every pair of values. `pytest --exhaustive` also runs the other cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

_ALL: Callable[..., bool] = lambda **_: True  # noqa: E731


def product(where: Callable[..., bool] = _ALL, /, **axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrises a test over a product. A case that adds no pair is exhaustive.

    Args:
        where: Says whether there is a case. Takes the values by name.
        **axes: The values of each argument, as for `pytest.mark.parametrize`.
    """
    named = [[_param(value, axis, number) for number, value in enumerate(axes[axis])] for axis in axes]
    cases = [
        case
        for case in itertools.product(*named)
        if where(**dict(zip(axes, (value for param in case for value in param.values), strict=True)))
    ]
    kept = pairwise(cases)
    params = [
        pytest.param(
            *(param.values[0] for param in case),
            id="-".join(str(param.id) for param in case),
            marks=[
                *(mark for param in case for mark in param.marks),
                *([] if case in kept else [pytest.mark.exhaustive]),
            ],
        )
        for case in cases
    ]
    return pytest.mark.parametrize(",".join(axes), params)


def in_turn(*axes: Collection[Any]) -> list[tuple[Any, ...]]:
    """Returns cases that hold each value of each axis, as many as the longest axis has.

    The values of a shorter axis repeat in order.
    """
    longest = max(map(len, axes))
    return list(zip(*(itertools.islice(itertools.cycle(axis), longest) for axis in axes), strict=True))


def few(names: str | Sequence[str], values: Iterable[Any], default: int | Collection[Any]) -> pytest.MarkDecorator:
    """Parametrises a test over values of which most are exhaustive.

    Args:
        names: As for `pytest.mark.parametrize`.
        values: As for `pytest.mark.parametrize`.
        default: The cases that run by default: their ids or values, or how many, spread
            evenly from the first to the last.
    """
    several = not isinstance(names, str) or "," in names
    params = [value if several or _is_param(value) else pytest.param(value) for value in values]
    if isinstance(default, int):
        numbers = {round(i * (len(params) - 1) / max(default - 1, 1)) for i in range(default)}
    else:
        numbers = {i for i, value in enumerate(params) if _is_one_of(value, default)}
        assert len(numbers) >= len(default), f"{default}: not among {params}"
    return pytest.mark.parametrize(
        names, [value if number in numbers else exhaustive(value) for number, value in enumerate(params)]
    )


def exhaustive(value: Any) -> Any:
    """Returns a case of `pytest.mark.parametrize`, marked exhaustive."""
    if _is_param(value):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.exhaustive])
    several = isinstance(value, tuple | list)
    return pytest.param(*(value if several else [value]), marks=pytest.mark.exhaustive)


def pairwise(cases: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns cases that hold every pair of values of two axes that occurs in any case.

    Greedy: each is the first of those that add most pairs.
    """
    pairs = {number: _pairs(case) for number, case in enumerate(cases)}
    uncovered = set().union(*pairs.values())
    kept = []
    while uncovered:
        best = max(pairs, key=lambda number: len(pairs[number] & uncovered))
        uncovered -= pairs.pop(best)
        kept.append(cases[best])
    return kept


def _pairs(case: tuple[Any, ...]) -> set[Any]:
    values = [(axis, id(value)) for axis, value in enumerate(case)]
    return set(itertools.combinations(values, min(len(values), 2)))


def _is_param(value: Any) -> bool:
    return isinstance(value, type(pytest.param(0)))


def _is_one_of(value: Any, default: Collection[Any]) -> bool:
    if _is_param(value):
        return value.id in default or (len(value.values) == 1 and value.values[0] in default)
    return value in default


def _param(value: Any, axis: str, number: int) -> Any:
    """Returns the value as a parameter with the id that pytest would give it."""
    if _is_param(value):
        name = value.id if value.id is not None else _param(value.values[0], axis, number).id
        return pytest.param(*value.values, id=name, marks=value.marks)
    plain = isinstance(value, str | int | float | bool | type(None))
    return pytest.param(value, id=str(value) if plain else getattr(value, "__name__", f"{axis}{number}"))
