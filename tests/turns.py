"""The cases of tests over a product, of which few run by default."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cases import exhaustive, in_turn, product


def turns(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrises a test over a product. By default each value has one case or more.

    There are as many default cases as the longest axis has values: values of a shorter
    axis take turns. Exhaustive cases add the other pairs of values.

    Args:
        **axes: The values of each argument, as for `pytest.mark.parametrize`.
    """
    names, params = product(**axes).args
    default = in_turn(*(range(len(values)) for values in axes.values()))
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    cases = []
    for param, place in zip(params, places, strict=True):
        marks = [mark for mark in param.marks if mark.name != "exhaustive"]
        if place in default:
            cases.append(pytest.param(*param.values, id=param.id, marks=marks))
        elif len(marks) == len(param.marks):  # one of the pairs
            cases.append(exhaustive(param))
    return pytest.mark.parametrize(names, cases)
