"""The classes behind an adjacency, as a reader may rely on them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from gnnkit.engine import Adjacency, BlockAdjacency, ShardAdjacency
from gnnkit.engine.adjacency import LayerEdges, LayerRows, PlainAdjacency
from tests.engine.reference import OneProcess

BASES = [LayerRows, LayerEdges, Adjacency]


def subclasses(cls: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(cls)
    for subclass in children:
        yield subclass
        yield from subclasses(subclass)


def methods(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if inspect.isfunction(value) or isinstance(value, property)}


@pytest.mark.parametrize("base", BASES)
def test_methods_are_abstract_or_final(base: type) -> None:
    abstract = {name for name in methods(base) if getattr(vars(base)[name], "__isabstractmethod__", False)}
    for cls in set(subclasses(base)):
        if not cls.__module__.startswith("gnnkit."):  # such as the witness, with its own dropout
            continue
        overridden = (methods(base) - abstract) & set(vars(cls))
        assert not overridden, f"{cls.__name__} overrides {overridden} of {base.__name__}"


@pytest.mark.parametrize("cls", [*BASES, PlainAdjacency, ShardAdjacency, BlockAdjacency])
def test_classes_have_at_most_15_methods(cls: type) -> None:
    assert len(methods(cls)) <= 15


@pytest.mark.parametrize("cls", [ShardAdjacency, BlockAdjacency, OneProcess])
def test_implementations_implement_all(cls: type) -> None:
    assert not inspect.isabstract(cls)
