"""Sums over in-edges against torch's CSR product, the rest against torch operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from conftest import Against, Edges

from gnnkit import _core

NUM_NODES, NUM_EDGES = 20_000, 400_000
Make = Callable[[str, int, int], Edges]


def torch_csr(edges: Edges) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        parts = torch.from_numpy(edges.indptr), torch.from_numpy(edges.indices), torch.ones(len(edges.indices))
        return torch.sparse_csr_tensor(*parts, size=(edges.num_nodes, edges.num_nodes))


def aggregator_of(edges: Edges) -> _core.Aggregator:
    return _core.Aggregator(edges.indptr, edges.indices, edges.num_nodes)


def rows(num_rows: int, width: int) -> Any:
    return np.random.default_rng(1).standard_normal((num_rows, width), dtype=np.float32)


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_sum(against: Against, edges: Make, kind: str, width: int) -> None:
    graph = edges(kind, NUM_NODES, NUM_EDGES)
    aggregator, matrix, x = aggregator_of(graph), torch_csr(graph), rows(NUM_NODES, width)
    out, tensor = np.empty_like(x), torch.from_numpy(x)
    against(lambda: aggregator.sum(x, out), lambda: matrix @ tensor)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_weighted_sum(against: Against, edges: Make, is_transposed: bool) -> None:
    graph = edges("sbm", NUM_NODES, NUM_EDGES)
    aggregator, matrix, x = aggregator_of(graph), torch_csr(graph), rows(NUM_NODES, 64)
    aggregator = aggregator.transpose() if is_transposed else aggregator
    weight, out, tensor = rows(NUM_EDGES, 1), np.empty_like(x), torch.from_numpy(x)
    against(lambda: aggregator.sum(x, out, weight=weight), lambda: matrix @ tensor)


def test_weighted_sum_of_heads(against: Against, edges: Make) -> None:
    graph = edges("sbm", NUM_NODES, NUM_EDGES)
    aggregator, matrix, x = aggregator_of(graph), torch_csr(graph), rows(NUM_NODES, 64)
    weight, out, tensor = rows(NUM_EDGES, 8), np.empty_like(x), torch.from_numpy(x)
    against(lambda: aggregator.sum(x, out, weight=weight), lambda: matrix @ tensor)


def test_edge_dot(against: Against, edges: Make) -> None:
    graph = edges("sbm", NUM_NODES, NUM_EDGES)
    aggregator, x, grad = aggregator_of(graph), rows(NUM_NODES, 64), rows(NUM_NODES, 64)
    out, tensors = np.empty(NUM_EDGES, dtype=np.float32), (torch.from_numpy(x), torch.from_numpy(grad))
    src, dst = torch.from_numpy(graph.indices), torch.from_numpy(graph.targets)
    of_src, of_dst, theirs = torch.empty(NUM_EDGES, 64), torch.empty(NUM_EDGES, 64), torch.empty(NUM_EDGES)

    def with_torch() -> None:
        """Gathers into memory used again, because fresh pages would cost most."""
        torch.index_select(tensors[0], 0, src, out=of_src)
        torch.index_select(tensors[1], 0, dst, out=of_dst)
        torch.sum(of_src.mul_(of_dst), 1, out=theirs)

    against(lambda: aggregator.edge_dot(x, grad, out), with_torch, rounds=5)


def test_max_and_its_gradient(against: Against, edges: Make) -> None:
    graph = edges("sbm", NUM_NODES, NUM_EDGES)
    aggregator, x = aggregator_of(graph), rows(NUM_NODES, 64)
    matrix, tensor = torch_csr(graph), torch.from_numpy(x)
    out, back, arg = np.empty_like(x), np.empty_like(x), np.empty(x.shape, dtype=np.int64)

    def forward_and_backward() -> None:
        aggregator.max(x, out, arg)
        aggregator.max_backward(out, arg, back)

    against(forward_and_backward, lambda: matrix @ tensor)


@pytest.mark.full
@pytest.mark.parametrize("peer", ["torch", "scipy"])
@pytest.mark.parametrize("has_weights", [False, True], ids=["sum", "weighted"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_full_size(
    against: Against, edges: Make, kind: str, width: int, threads: int, has_weights: bool, peer: str
) -> None:
    graph = edges(kind, 200_000, 4_000_000)
    if peer == "scipy" and threads > 1:
        pytest.skip("scipy has one thread")
    torch.set_num_threads(threads)
    aggregator, x = aggregator_of(graph), rows(graph.num_nodes, width)
    weight, out, tensor = np.ones(len(graph.indices), dtype=np.float32), np.empty_like(x), torch.from_numpy(x)
    matrix: Any = torch_csr(graph)
    if peer == "scipy":
        matrix, tensor = scipy.sparse.csr_matrix((weight, graph.indices, graph.indptr)), x
    ours = (
        (lambda: aggregator.sum(x, out, threads, weight=weight))
        if has_weights
        else (lambda: aggregator.sum(x, out, threads))
    )
    against(ours, lambda: matrix @ tensor, rounds=5)
