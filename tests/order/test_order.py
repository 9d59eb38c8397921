"""Rows in another order: the same shard, and the same training."""

from __future__ import annotations

import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.synthetic import Synthetic
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import by_node
from torch import nn
from torch_geometric.nn import GCNConv

from gnnkit import testing
from gnnkit.__main__ import main
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.partition.order import Auto, ById, Community, Degree, NodeOrder, Rcm, renumbered
from gnnkit.partition.shard import uncut
from gnnkit.sync.all_reduce import AllReduce
from tests.cases import few, in_turn
from tests.runs import train_on_threads
from tests.sync.training import CLASSES, WIDTH, make_graph, train
from tests.turns import turns

ORDERS = {"rcm": Rcm(), "degree": Degree(), "community": Community(size=4)}


class Backwards(NodeOrder):
    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return np.arange(len(nodes))[::-1]


def edges_of(shard: Any) -> set[tuple[int, int, int, float]]:
    """Lists what a shard says of each edge: ends, id and weight."""
    dst = np.repeat(shard.targets, np.diff(shard.csc.indptr))
    weight = np.ones(len(dst)) if shard.csc.weight is None else shard.csc.weight
    return set(
        zip(
            shard.sources[shard.csc.indices].tolist(),
            dst.tolist(),
            shard.edge_ids.tolist(),
            weight.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("order", [*ORDERS.values(), Backwards()], ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("grid", [Grid(3, 1, 1), Grid(2, 2, 1)], ids=str)
def test_a_shard_in_another_order_says_the_same_of_nodes_and_edges(order: NodeOrder, grid: Grid) -> None:
    graph = check_graph()
    owners = (np.arange(graph.num_nodes) % grid.world_size).astype(np.int32)
    for shard in cut_all(graph, Partition(owners, None, grid)):
        actual = renumbered(shard, order)
        back = np.argsort(actual.owned)
        for name in ("owned", "in_degree", "out_degree", "looped", "labels", "split", "mean_edge_features"):
            np.testing.assert_array_equal(getattr(actual, name)[back], getattr(shard, name), name)
        assert edges_of(actual) == edges_of(shard)
        for row in np.split(actual.edge_ids, actual.csc.indptr[1:-1]):
            assert (np.diff(row) > 0).all()  # so sums have the same bits
        by_edge, before = np.argsort(actual.edge_ids), np.argsort(shard.edge_ids)
        np.testing.assert_array_equal(actual.edge_features[by_edge], shard.edge_features[before])


def test_without_an_order_a_shard_stays_as_it_is() -> None:
    shard = uncut(check_graph())
    assert renumbered(shard, None) is shard
    assert renumbered(shard, ById()) is shard
    slice_shard = next(cut_all(check_graph(), Partition(np.zeros(30, np.int32), None, Grid(1, 1, 2))))
    assert renumbered(slice_shard, Backwards()) is slice_shard  # ranks of a cell share its rows


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([0] * 30, "Wrong returned 0 more than once"),
        ([30, *range(29)], "Wrong returned 30, which is out of range for 30 nodes"),
        (list(range(29)), r"of shape \[29\], expected integers of shape \[30\]"),
        (np.arange(30.0), "float64"),
        ("no", "Wrong"),
    ],
)
def test_what_is_no_order_is_refused(given: Any, told: str) -> None:
    class Wrong(NodeOrder):
        def order(self, csc: CSC, nodes: Ids) -> Any:
            return given

    with pytest.raises(UserError, match=told):
        renumbered(uncut(check_graph()), Wrong())


def test_a_plugin_whose_order_is_wrong_fails_the_check() -> None:
    class Drawn(NodeOrder):
        def order(self, csc: CSC, nodes: Ids) -> Ids:
            return np.random.permutation(len(nodes))

    with pytest.raises(AssertionError, match="another order in the second call"):
        testing.check_order(Drawn())


def shuffled_path(num_nodes: int) -> Graph:
    """Makes a path whose ids are drawn."""
    ids = np.random.default_rng(0).permutation(num_nodes)
    src, dst = np.concatenate([ids[:-1], ids[1:]]), np.concatenate([ids[1:], ids[:-1]])
    return Graph.from_edges(src, dst, num_nodes, features=np.zeros((num_nodes, 1), np.float32))


def test_auto_orders_what_has_no_order_and_leaves_what_has_one() -> None:
    shuffled = shuffled_path(20_000)
    actual = renumbered(uncut(shuffled), Auto())
    apart = np.abs(np.repeat(np.arange(20_000), np.diff(actual.csc.indptr)) - actual.csc.indices)
    assert apart.max() == 1  # each row beside those of its neighbours
    line = Graph.from_edges(np.arange(19_999), np.arange(1, 20_000), 20_000, features=np.zeros((20_000, 1), np.float32))
    for graph in (line, shuffled_path(4_000)):  # in order, and so small that all rows stay in a cache
        shard = uncut(graph)
        assert renumbered(shard, Auto()) is shard


def test_nodes_of_a_community_stand_together() -> None:
    graph = Synthetic("sbm", 2_000, 20_000, num_classes=4, width=1, in_block=0.98).load()
    order = Community(size=500).order(graph.csc, np.arange(2_000))
    changes = np.count_nonzero(np.diff(graph.labels[order]))
    assert changes < 0.2 * np.count_nonzero(np.diff(graph.labels))


LAYOUTS: dict[str, dict[str, Any]] = {
    "1d": {},
    "2d": {"model": GAT, "grid": Grid(2, 2, 1)},
    "slices": {"model": GraphSAGE, "grid": Grid(2, 1, 2)},
    "a vertex cut": {"cells": 3, "model": GIN},
    "supersteps": {"local_iterations": 2},
    "pipelined": {"exchange": "pipelined"},
    "quantized": {"exchange": "quantized", "bits": 16},
}


@functools.cache
def logits_by_node(layout: str, order: type[NodeOrder]) -> torch.Tensor:  # [num_nodes, CLASSES]
    """Trains on rows in an order, with dropout."""
    options = dict(LAYOUTS[layout])
    grid, kind = options.pop("grid", Grid(3, 1, 1)), options.pop("model", GCN)
    rng, graph = np.random.default_rng(2), make_graph()
    owners = rng.integers(0, grid.world_size, graph.num_nodes).astype(np.int32)
    cells = options.pop("cells", None)
    of_edges = None if cells is None else rng.integers(0, cells, graph.num_edges).astype(np.int32)
    shards = list(cut_all(graph, Partition(owners, of_edges, grid)))
    torch.manual_seed(0)
    model = kind(WIDTH, CLASSES, hidden=4, dropout=0.4).double()

    def on_rank(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        module, strategy, _ = train(shards, AllReduce, copy.deepcopy(model), comm, epochs=3, order=order(), **options)
        strategy.close()
        return torch.tensor(shards[comm.rank].owned), module.evaluation.logits(module.model)

    return by_node(Threads.run(on_rank, grid.world_size))


@pytest.mark.slow
@turns(layout=list(LAYOUTS), order=[Rcm, Degree, Backwards])
def test_ranks_with_rows_in_any_order_train_the_same(layout: str, order: type[NodeOrder]) -> None:
    actual, reference = logits_by_node(layout, order), logits_by_node(layout, ById)
    torch.testing.assert_close(actual, reference, rtol=1e-8, atol=1e-10)


WAYS: dict[str, dict[str, Any]] = {
    "gcn": {},
    "gat in 2d": {"model": "gat", "partition": "2d", "workers": 4},
    "1.5d": {"model": "sage", "partition": "1.5d", "workers": 4},
    "supersteps": {"strategy": {"name": "vertex_centric", "local_iterations": 2}},
    "pipelined": {"exchange": "pipelined"},
    "learned rows": {"inputs": "learned"},
    "link prediction": {"task": "link_prediction"},
    "a vertex cut": {"partition": "hdrf"},
    "dropout": {"model": {"name": "gin", "dropout": 0.5}},
}


@functools.cache
def trained(way: str, order: str) -> tuple[float, np.ndarray]:
    """Returns the loss and the logits of a run."""
    graph = Synthetic("sbm", 90, 400, num_classes=3, width=6).load()
    keys = {"order": order, "overrides": ["trainer.precision=64", "write=[logits]"], **WAYS[way]}
    with tempfile.TemporaryDirectory() as folder:
        result = train_on_threads(graph, keys.pop("model", "gcn"), Path(folder), 2, **keys)
        return result["train_loss"], np.load(result.folder / "logits.npy")


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "way,order",
    [*in_turn(WAYS, ["rcm", "degree"]), ("learned rows", "rcm")],
    default=[("learned rows", "rcm")],
)
def test_training_is_the_same_in_any_order(way: str, order: str) -> None:
    reference, actual = trained(way, "none"), trained(way, order)
    assert actual[0] == pytest.approx(reference[0], rel=1e-10)
    np.testing.assert_allclose(actual[1], reference[1], rtol=1e-8, atol=1e-10)


class Net(nn.Module):
    """A class of PyG."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(in_features, 8), GCNConv(8, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("model", "file"), [("pagerank", "values.npy"), (Net, "predictions.npy")])
def test_a_class_of_pyg_and_a_program_have_the_same_results_in_any_order(model: Any, file: str, tmp_path: Path) -> None:
    graph, results = Synthetic("sbm", 90, 400, num_classes=3, width=6).load(), []
    for order in ("none", "rcm"):
        overrides = [f"order={order}", "trainer.precision=64"]
        result = train_on_threads(graph, model, tmp_path / order, 1, overrides=overrides)
        results.append(np.load(result.folder / file))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"strategy": "individual_sample", "order": "rcm"},
            "order=rcm: strategy=individual_sample keeps no full-graph rows",
        ),
        ({"order": "rcm", "features": {"place": "disk"}}, "order=rcm: with features.place=disk rows are in the order"),
        ({"order": {"name": "community", "options": {"size": 0}}}, "order.options.size=0"),
        ({"order": "none", "overrides": ["order.options.size=3"]}, "order"),
    ],
)
def test_an_order_that_nobody_reads_is_refused(keys: dict[str, Any], told: str, tmp_path: Path) -> None:
    graph = Synthetic("sbm", 90, 400, num_classes=3, width=6).load()
    with pytest.raises(UserError, match=told):
        train_on_threads(graph, "gcn", tmp_path / "run", 1, **keys)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_job_verify_agrees_in_another_order(tmp_path: Path) -> None:
    command = [
        "job=verify",
        "order=rcm",
        "strategy=vertex_centric",
        "partition=2d",
        "dataset=synthetic",
        "comm=threads",
    ]
    command += ["dataset.num_nodes=200", "dataset.num_edges=800", "cache=false", f"output={tmp_path / 'run'}"]
    assert main(command) == 0


@pytest.mark.slow
def test_rows_that_a_checkpoint_keeps_go_on_in_their_order(tmp_path: Path) -> None:
    graph = Synthetic("sbm", 90, 400, num_classes=3, width=6).load()
    keys: dict[str, Any] = {"exchange": "pipelined", "workers": 2, "overrides": ["trainer.exact_shares=[0,0]"]}
    full_run = train_on_threads(graph, "gcn", tmp_path / "whole", 4, order="rcm", **keys)
    train_on_threads(graph, "gcn", tmp_path / "half", 2, order="rcm", **keys)
    keys["overrides"].append(f"trainer.resume={tmp_path / 'half'}")
    again = train_on_threads(graph, "gcn", tmp_path / "again", 4, order="rcm", **keys)
    assert again["train_loss"] == full_run["train_loss"]
    with pytest.raises(UserError, match="order=degree differs from rcm in the checkpoint"):
        train_on_threads(graph, "gcn", tmp_path / "other", 4, order="degree", **keys)
