"""Sparse features: full-graph training equals that on dense features."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import SparseRows
from gnnkit.graph import CSC, Graph, SparseFeatures, Split
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.sync.all_reduce import AllReduce
from tests.cases import few
from tests.sync.training import parameters, train

WIDTH, CLASSES = 66, 3
MODELS: dict[str, Callable[..., nn.Module]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": GAT,
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=2),
}
SPARSE = ("gcn", "sage", "gat", "gin")  # models that multiply before they aggregate
SHAPES = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2)]
GRIDS = [Grid(*shape) for shape in SHAPES]


def make_graph() -> Graph:
    """Has nodes without features, columns of zeros, and weights of edges."""
    rng, n = np.random.default_rng(3), 31
    src, dst = rng.integers(0, n, (2, 4 * n))
    features = np.where(rng.random((n, WIDTH)) < 0.08, rng.standard_normal((n, WIDTH)), 0)
    features[::5], features[:, ::7] = 0, 0
    split = np.where(np.arange(n) < 0.6 * n, Split.TRAIN, Split.TEST).astype(np.int8)
    csc = CSC.from_edges(src, dst, n, rng.random(4 * n) + 0.5)
    return Graph(csc, features, rng.integers(0, CLASSES, n), split, rng.standard_normal((4 * n, 2)))


def shards_on(grid: Grid, graph: Graph) -> list[Shard]:
    """Cuts the graph. With three ranks or more, rank 1 owns no node."""
    ranks = [rank for rank in range(grid.world_size) if rank != 1 or grid.world_size < 3]
    owner = np.array(ranks, np.int32)[np.arange(graph.num_nodes) * 5 % len(ranks)]
    return list(cut_all(graph, Partition(owner, None, grid)))


@functools.cache
def outcome(name: str, dropout: float, grid: Grid, *, sparse: bool) -> list[tuple[Tensor, Tensor, bool]]:
    """Trains, and returns each rank's parameters and logits, and if rows are sparse."""
    graph = make_graph()
    shards = shards_on(grid, replace(graph, features=SparseFeatures.of(graph.features)) if sparse else graph)
    torch.manual_seed(1)
    model = MODELS[name](WIDTH, CLASSES, hidden=4, dropout=dropout).double()

    def on_rank(comm: Communicator) -> tuple[Tensor, Tensor, bool]:
        replica = copy.deepcopy(model)
        module, strategy, _ = train(shards, AllReduce, replica, comm, epochs=3)
        logits = torch.zeros(graph.num_nodes, CLASSES, dtype=torch.float64)
        logits[torch.from_numpy(shards[comm.rank].owned)] = module.evaluation.logits(replica)  # type: ignore[union-attr, operator]
        assert not torch.equal(parameters(replica), parameters(model))
        return parameters(replica), comm.all_reduce(logits), isinstance(strategy.x, SparseRows)

    return Threads.run(on_rank, grid.world_size)


@pytest.mark.slow
@few(
    "grid,name",
    itertools.product(GRIDS, MODELS),
    default=[*zip(GRIDS[1:], itertools.islice(itertools.cycle(MODELS), 1, None), strict=False)],
)
def test_any_grid_equals_one_process_on_dense_features(name: str, grid: Grid) -> None:
    for dropout in (0.0, 0.4) if grid in (GRIDS[0], GRIDS[5]) else (0.4,):
        ((reference, logits, sparse),) = outcome(name, dropout, GRIDS[0], sparse=False)
        assert not sparse
        for result in outcome(name, dropout, grid, sparse=True):
            assert result[2] == (name in SPARSE)
            torch.testing.assert_close(result[0], reference, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(result[1], logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SPARSE)
def test_a_first_layer_that_aggregates_before_its_product_reads_dense_rows(name: str) -> None:
    wide = MODELS[name](4, CLASSES, hidden=4)
    assert wide.reads_sparse == (name == "gat")  # which never does
    assert MODELS[name](5, CLASSES, hidden=4).reads_sparse


@pytest.mark.slow
def test_shards_of_sparse_features_are_saved_and_loaded(tmp_path: object) -> None:
    graph = make_graph()
    for shard in shards_on(Grid(2, 2, 1), replace(graph, features=SparseFeatures.of(graph.features))):
        folder = tmp_path / str(shard.rank)  # type: ignore[operator]
        shard.save(folder)
        assert not (folder / "features.npy").exists()
        loaded_shard = Shard.load(folder).features
        assert isinstance(loaded_shard, SparseFeatures)
        np.testing.assert_array_equal(loaded_shard, graph.features[shard.owned])
