"""Batches against a sort, and the rows that they need against torch's row gather."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import Against, Edges

from gnnkit.graph import CSC
from gnnkit.sampler import BalancedSampler, LaborSampler, Loader, NeighborSampler, Sampler, WeightedSampler, gather_rows

NUM_NODES, NUM_EDGES, BATCH_SIZE = 20_000, 400_000, 256
FANOUTS = [15, 10, 5]
Make = Callable[[str, int, int], Edges]


@pytest.fixture(scope="module")
def graph(edges: Make) -> CSC:
    rmat = edges("rmat", NUM_NODES, NUM_EDGES)
    return CSC(rmat.indptr, rmat.indices.astype(np.int32), np.random.default_rng(3).random(NUM_EDGES))


@pytest.fixture(scope="module")
def seeds(graph: CSC) -> np.ndarray:  # [BATCH_SIZE] with in-edges, so that there is work
    return np.random.default_rng(2).permutation(np.flatnonzero(np.diff(graph.indptr)))[:BATCH_SIZE]


@pytest.fixture(scope="module")
def reference() -> Callable[[], object]:
    """Sorts. Like a batch of this size, a sort works in the near caches."""
    ids = np.random.default_rng(4).integers(0, NUM_NODES, 2 * NUM_NODES)
    return lambda: np.unique(ids)


SAMPLERS = {
    "neighbor": NeighborSampler(FANOUTS, threads=1),
    "redraw": NeighborSampler(FANOUTS, threads=1, redraw=True),
    "replace": NeighborSampler(FANOUTS, threads=1, replace=True, importance="sum"),
    "weighted": WeightedSampler(FANOUTS, threads=1),
    "balanced": BalancedSampler(FANOUTS, threads=1),
    "labor": LaborSampler(FANOUTS, threads=1),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_sample(
    against: Against, graph: CSC, seeds: np.ndarray, sampler: Sampler, reference: Callable[[], object]
) -> None:
    against(lambda: sampler.sample(graph, seeds, key=1), reference)


@pytest.mark.parametrize("width", [16, 100])
def test_gather(against: Against, width: int) -> None:
    ids = np.random.default_rng(5).integers(0, NUM_NODES, NUM_NODES)
    x = np.random.default_rng(6).random((NUM_NODES, width), np.float32)
    out, theirs = np.empty_like(x), torch.empty(NUM_NODES, width)
    tensors = torch.from_numpy(x), torch.from_numpy(ids)
    against(lambda: gather_rows(x, ids, out), lambda: torch.index_select(tensors[0], 0, tensors[1], out=theirs))


def test_loader(against: Against, graph: CSC, reference: Callable[[], object]) -> None:
    x = np.random.default_rng(6).random((NUM_NODES, 100), np.float32)
    loader = Loader(graph, NeighborSampler(FANOUTS), None, 1024, features=x, threads=1)

    def epoch() -> None:
        for batch in loader:
            assert batch.x is not None

    against(epoch, reference, rounds=5)
