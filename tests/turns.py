"""The cases of tests over a product, of which few run by default."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cases import exhaustive, product


def turns(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrises a test over a product. By default each value has one case or more.

    There are as many default cases as the longest axis has values: values of a shorter
    axis take turns. Each other case is exhaustive. Of two axes, `product` keeps all.

    Args:
        **axes: The values of each argument, as for `pytest.mark.parametrize`.
    """
    names, params = product(**axes).args
    sizes = [len(values) for values in axes.values()]
    kept = {tuple(number % size for size in sizes) for number in range(max(sizes))}
    cases = [
        pytest.param(*param.values, id=param.id, marks=[mark for mark in param.marks if mark.name != "exhaustive"])
        for param in params
    ]
    places = itertools.product(*map(range, sizes))
    return pytest.mark.parametrize(
        names, [case if place in kept else exhaustive(case) for case, place in zip(cases, places, strict=True)]
    )
