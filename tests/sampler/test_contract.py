"""Batches that a sampler of a user makes at once, and that break the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Ids, MiniBatch
from gnnkit.sampler import Loader, NeighborSampler, Sampler
from gnnkit.sampler.loader import _Checked

GRAPH = CSC(np.array([0, 2, 3, 4]), np.array([1, 2, 2, 0], np.int32))
SEEDS = np.array([2, 0])


class Made(Sampler):
    """Changes the batches of another sampler."""

    num_hops = 2

    def __init__(self, change: Callable[[MiniBatch], Any]) -> None:
        self._change = change

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Any:
        raise AssertionError("whole batches are made")

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> Any:
        return self._change(NeighborSampler([-1, -1]).sample(graph, seeds, key=key))


def first(**changes: Any) -> Callable[[MiniBatch], Any]:
    """Replaces fields of the first block."""

    def change(batch: MiniBatch) -> MiniBatch:
        block = replace(batch.blocks[0], **{name: make(batch.blocks[0]) for name, make in changes.items()})
        return replace(batch, blocks=(block, *batch.blocks[1:]))

    return change


def test_a_batch_that_keeps_the_contract_comes_as_it_was_made() -> None:
    (found,) = [batch.arrays() for batch in Loader(GRAPH, Made(lambda batch: batch), SEEDS, 2)]
    (expected,) = [batch.arrays() for batch in Loader(GRAPH, NeighborSampler([-1, -1]), SEEDS, 2)]
    for one, other in zip(found["blocks"], expected["blocks"], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def reversed_sources(block: Block) -> Ids:
    return np.ascontiguousarray(block.src_nodes[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.blocks, "must return a MiniBatch, got "),
        (lambda batch: replace(batch, blocks=iter(batch.blocks)), "blocks must be a sequence of Block, got "),
        (lambda batch: replace(batch, blocks=batch.blocks[1:]), "blocks has 1 entries, expected num_hops=2"),
        (lambda batch: replace(batch, seeds=batch.seeds[::-1]), "seeds must come back in their order"),
        (lambda batch: replace(batch, blocks=(None, batch.blocks[1])), r"blocks\[0\] must be a Block, got NoneType"),
        (
            first(src_nodes=reversed_sources, edge_ids=lambda _: None),
            r"blocks\[0\] must compute the nodes that the next",
        ),
        (first(src_nodes=lambda block: block.src_nodes.tolist()), r"blocks\[0\].src_nodes must be a contiguous array"),
        (first(src_nodes=lambda block: block.src_nodes * 0), r"blocks\[0\].src_nodes repeat"),
        (first(src_nodes=lambda block: block.src_nodes + 7), r"blocks\[0\].src_nodes\[\d\] = \d+ is out of range"),
        (first(indptr=lambda block: np.zeros(9, np.int64)), r"blocks\[0\]: indptr has 8 rows for 3 src_nodes"),
        (first(indptr=lambda block: np.empty(0, np.int64)), r"blocks\[0\]: indptr has -1 rows for 3 src_nodes"),
        (first(indices=lambda block: block.indices + 1), r"blocks\[0\].indices\[\d\] = 3 is out of range 0..2"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused_by_class_and_field(
    change: Callable[[MiniBatch], Any], message: str
) -> None:
    with pytest.raises(UserError, match=rf"Made\.sample.*{message}"):
        _Checked(Made(change)).sample(GRAPH, SEEDS, key=1)


def test_a_loader_tells_what_its_threads_have_refused() -> None:
    with pytest.raises(UserError, match=r"Made\.sample: seeds must come back in their order"):
        list(Loader(GRAPH, Made(lambda batch: replace(batch, seeds=batch.seeds[::-1])), SEEDS, 2))


def test_hops_that_are_checked_as_they_are_drawn_are_not_checked_again() -> None:
    class Drawn(Sampler):
        num_hops = 2

        def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Any:
            return NeighborSampler([-1, -1]).draw(graph, nodes, hop, key=key)

    for one, other in zip(
        _Checked(Drawn()).sample(GRAPH, SEEDS, key=1).blocks,
        _Checked(Made(lambda batch: batch)).sample(GRAPH, SEEDS, key=1).blocks,
        strict=True,
    ):
        np.testing.assert_array_equal(one.src_nodes, other.src_nodes)
        np.testing.assert_array_equal(one.indices, other.indices)
