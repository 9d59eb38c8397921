"""Cases that run by default hold every pair of values, and keep their ids and marks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cases import exhaustive, few, in_turn, pairwise, product

AXES: dict[str, list[Any]] = {
    "letter": ["a", "b", "c", "d"],
    "number": [1, 2, 3],
    "flag": [True, False],
    "kind": [int, str, float],
}


def read_params(mark: pytest.MarkDecorator) -> list[Any]:
    """Returns the parameters that run by default."""
    return [param for param in mark.args[1] if "exhaustive" not in marks(param)]


def marks(param: Any) -> list[str]:
    return [mark.name for mark in getattr(param, "marks", [])]


def pairs(cases: Sequence[Sequence[Any]]) -> set[Any]:
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


def test_every_pair_is_in_the_default_and_every_case_in_all() -> None:
    mark = product(**AXES)
    everything = list(itertools.product(*AXES.values()))
    assert mark.args[0] == "letter,number,flag,kind"
    assert [param.values for param in mark.args[1]] == everything
    default = [param.values for param in read_params(mark)]
    assert pairs(default) == pairs(everything)
    assert 12 <= len(default) <= 18  # of 72: four letters times three numbers at least


def test_a_case_that_is_left_out_is_in_no_pair() -> None:
    mark = product(lambda letter, number: (letter, number) != ("a", 2), letter=["a", "b"], number=[1, 2])
    assert [param.values for param in mark.args[1]] == [("a", 1), ("b", 1), ("b", 2)]
    assert read_params(mark) == mark.args[1]


def test_a_single_axis_is_kept_whole() -> None:
    assert [param.values for param in read_params(product(letter=["a", "b"]))] == [("a",), ("b",)]


def test_the_same_cases_are_kept_every_time() -> None:
    assert [param.id for param in read_params(product(**AXES))] == [param.id for param in read_params(product(**AXES))]
    cases = list(itertools.product("abc", (1, 2), "xyz"))
    assert pairwise(cases) == pairwise(list(cases))
    assert pairwise(cases)[0] == cases[0]


def test_values_that_are_equal_on_two_axes_are_told_apart() -> None:
    cases = list(itertools.product([0, 1], [0, 1], [0, 1]))
    assert pairs(pairwise(cases)) == pairs(cases)


def test_values_of_shorter_axes_repeat_in_order() -> None:
    assert in_turn("abc", {1: 0, 2: 0}) == [("a", 1), ("b", 2), ("c", 1)]


def test_ids_are_those_of_pytest_and_marks_of_values_stay() -> None:
    marked = pytest.param("b", marks=pytest.mark.slow)
    named = pytest.param(2.5, id="half")
    mark = product(letter=["a", marked], number=[1, named], kind=[int, lambda: 0, [3]])
    ids = [str(param.id) for param in mark.args[1]]
    assert ids[:4] == ["a-1-int", "a-1-<lambda>", "a-1-kind2", "a-half-int"]
    assert len({*ids}) == 12
    assert all(("slow" in marks(param)) == (param.values[0] == "b") for param in mark.args[1])


@pytest.mark.parametrize(
    ("default", "expected"), [(1, "a"), (2, "ae"), (3, "ace"), (5, "abcde"), (["b"], "b"), ({"d", "a"}, "ad")]
)
def test_few_are_spread_evenly_or_named(default: Any, expected: str) -> None:
    mark = few("letter", "abcde", default=default)
    assert "".join(param.values[0] for param in read_params(mark)) == expected
    assert len(mark.args[1]) == 5


def test_few_are_named_by_id_and_have_several_arguments() -> None:
    params = [pytest.param(1, "x", id="first"), pytest.param(2, "y", id="second", marks=pytest.mark.slow)]
    mark = few("number,letter", [*params, (3, "z")], default=["first", (3, "z")])
    assert [marks(param) for param in mark.args[1]] == [[], ["slow", "exhaustive"], []]
    assert [getattr(param, "values", param) for param in mark.args[1]] == [(1, "x"), (2, "y"), (3, "z")]


@pytest.mark.parametrize("default", [["f"], ["a", "f"]])
def test_a_default_that_is_no_case_is_refused(default: list[str]) -> None:
    with pytest.raises(AssertionError, match="not among"):
        few("letter", "abcde", default=default)


def test_a_case_that_is_exhaustive_keeps_its_values_id_and_marks() -> None:
    assert exhaustive((1, 2)).values == (1, 2)
    assert exhaustive("ab").values == ("ab",)
    actual = exhaustive(pytest.param(1, id="one", marks=pytest.mark.slow))
    assert (actual.values, actual.id, marks(actual)) == ((1,), "one", ["slow", "exhaustive"])
