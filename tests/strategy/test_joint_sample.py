"""Joint-sample mini-batches: what ranks draw and compute together, one rank does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

import gnnkit
from gnnkit import testing
from gnnkit.comm.threads import Threads
from gnnkit.engine.columns import join_blocks, pack_block, unpack_block
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.kernels.dropout import dropout
from gnnkit.model.gcn import GCN
from gnnkit.model.pyg import PyG
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    LaborSampler,
    MetropolisHastingsSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.sync.neighbour import Neighbour
from gnnkit.testing.graphs import CLASSES, WIDTH
from gnnkit.training.finite import decide_together
from tests.cases import few
from tests.models import MODELS
from tests.strategy.test_individual_sample import GRAPH, Numbered, make_model, step, steps, worker
from tests.turns import turns

DRAWS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 2]),
    "redraw": lambda: NeighborSampler([3, 2], redraw=True),
    "with replacement": lambda: NeighborSampler([3, 2], replace=True),
    "weighted": lambda: WeightedSampler([3, 2], alpha=0.5),
    "labor": lambda: LaborSampler([3, 2]),
    "full": FullSampler,
    "no draw": lambda: NeighborSampler([2, 0]),
}
LINEAR = ("gcn", "sage", "gin")  # linear before the sum over in-edges


def uneven(comm: Any, sampler: Sampler, *, whole: bool) -> Worker:
    """A rank of which one owns nothing, and one most nodes."""
    return replace(_parts(comm.world_size)(comm, sampler), graph=GRAPH if whole else None)


@functools.cache
def _parts(ranks: int) -> Callable[[Any, Sampler], Worker]:
    owner = np.random.default_rng(2).integers(0, max(ranks - 1, 1), GRAPH.num_nodes)
    shards = list(cut_all(GRAPH, Partition(np.minimum(owner, owner[::-1]).astype(np.int32), None, Grid(ranks, 1, 1))))
    return lambda comm, sampler: replace(worker(Numbered(0, 1), sampler), comm=comm, shard=shards[comm.rank])


def together(strategy: ExecutionStrategy, model: nn.Module, sampler: Callable[[], Sampler], ranks: int) -> Tensor:
    """Loss and gradient of each batch, added up over the ranks."""
    parts = Threads.run(lambda comm: steps(strategy, model, uneven(comm, sampler(), whole=_reads(strategy))), ranks)
    return sum(parts[1:], start=parts[0])


def _reads(strategy: ExecutionStrategy) -> bool:
    return strategy.reads.graph


def serial(model: nn.Module, sampler: Callable[[], Sampler], batch_size: int) -> Tensor:
    """Loss and gradient of each batch of one rank with the whole graph."""
    return steps(IndividualSample(batch_size=batch_size), model, worker(Numbered(0, 1), sampler()))


def check_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def first_batch(strategy: ExecutionStrategy, own: Worker, model: nn.Module) -> Batch:
    strategy.setup(own, model)
    return next(iter(strategy.batches(0)))


@pytest.mark.slow
@turns(name=[*DRAWS], ranks=[3, 8, 1])
def test_the_union_of_the_ranks_nodes_and_edges_is_the_serial_batch(name: str, ranks: int) -> None:
    model = make_model("gcn")
    parts = Threads.run(
        lambda comm: first_batch(JointSample(batch_size=2), uneven(comm, DRAWS[name](), whole=False), model), ranks
    )
    expected = first_batch(IndividualSample(batch_size=2 * ranks), worker(Numbered(0, 1), DRAWS[name]()), model)
    for layer, one in enumerate(expected.adjacencies):
        owned = [part.adjacencies[layer] for part in parts]
        for ids in (lambda a: a.src_nodes[: a.num_dst], lambda a: a.src_nodes, lambda a: a.edge_ids):
            found = torch.cat([ids(adjacency) for adjacency in owned])
            assert torch.equal(found.sort().values, ids(one).sort().values)  # each on one rank, none twice
    assert sum(len(part.rows) for part in parts) == expected.total == parts[0].total
    features = torch.cat([part.x for part in parts])
    assert torch.equal(features.sort(dim=0).values, expected.x.sort(dim=0).values)


@pytest.mark.slow
@turns(mode=["cooperative", "push_pull"], model=["gcn", "sage"])
def test_one_to_eight_ranks_have_the_loss_and_gradient_of_one(mode: str, model: str) -> None:
    module, sampler = make_model(model), lambda: NeighborSampler([3, 3])
    for ranks in (1, 2, 3, 5, 8):
        found = together(JointSample(mode, batch_size=4), module, sampler, ranks)
        check_equal(found, serial(module, sampler, 4 * ranks))


@pytest.mark.slow
@turns(name=[*DRAWS], model=[*MODELS])
def test_owners_that_draw_together_compute_every_model_as_one_rank(name: str, model: str) -> None:
    module, sampler = make_model(model), DRAWS[name]
    check_equal(together(JointSample(batch_size=6), module, sampler, 3), serial(module, sampler, 18))


ANY: dict[str, Callable[[], Sampler]] = {
    **{name: DRAWS[name] for name in ("redraw", "weighted", "no draw")},
    "balanced": lambda: BalancedSampler([3, 2]),
    "cluster": lambda: ClusterSampler(np.arange(GRAPH.num_nodes) % 12),
    "walks": lambda: MetropolisHastingsSampler([3, 3], walk_length=3, num_walks=4),
    "similar walks": lambda: MetropolisHastingsSampler([3, 3], walk_length=3, num_walks=4, target="similarity"),
}


@pytest.mark.slow
@turns(
    name=[*ANY], model=LINEAR, hidden=[1, 7]
)  # columns of a rank: 2, 2 and 1. Products come before the sum, or after
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_columns_of_the_first_layer_add_up_to_individual_batches(name: str, model: str, hidden: int) -> None:
    torch.manual_seed(1)
    module, sampler = MODELS[model](WIDTH, CLASSES, hidden=hidden, dropout=0.3).double(), ANY[name]
    work = lambda comm: steps(IndividualSample(batch_size=6), module, worker(comm, sampler()))  # noqa: E731
    check_equal(together(JointSample("push_pull", 6), module, sampler, 3), sum(Threads.run(work, 3)))


@pytest.mark.slow
@turns(name=[*DRAWS], model=LINEAR)
def test_columns_of_a_graph_that_no_rank_holds_give_the_same_batches(name: str, model: str) -> None:
    module, sampler = make_model(model), DRAWS[name]
    expected = together(JointSample("push_pull", 6), module, sampler, 3)
    check_equal(together(JointSample("push_pull", 6, topology="partitioned"), module, sampler, 3), expected)


@pytest.mark.slow
def test_ranks_without_columns_take_part() -> None:
    module = make_model("gcn")
    many = together(JointSample("push_pull", 2, topology="partitioned"), module, FullSampler, 8)
    check_equal(many, serial(module, FullSampler, 16))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cooperative", "push_pull"])
def test_a_model_of_one_layer_and_one_of_three(mode: str) -> None:
    for layers in (1, 3):
        torch.manual_seed(1)
        module, sampler = GCN(WIDTH, CLASSES, 4, layers, 0.3).double(), lambda: NeighborSampler([2] * layers)  # noqa: B023
        check_equal(together(JointSample(mode, 3), module, sampler, 3), serial(module, sampler, 9))


@pytest.mark.slow
@few("mode", ["cooperative", "push_pull"], ["push_pull"])
def test_batches_of_one_and_more_ranks_than_seeds_are_no_special_case(mode: str) -> None:
    module = make_model("sage")
    assert np.count_nonzero(GRAPH.split == Split.TRAIN) < 12 * 2
    isolated = np.setdiff1d(
        np.arange(GRAPH.num_nodes), [*GRAPH.csc.indices, *np.flatnonzero(np.diff(GRAPH.csc.indptr))]
    )
    assert (GRAPH.split[isolated] == Split.TRAIN).any()
    for ranks, size in ((2, 1), (12, 2)):
        found = together(JointSample(mode, size), module, FullSampler, ranks)
        check_equal(found, serial(module, FullSampler, size * ranks))


@pytest.mark.slow
def test_layers_of_pyg_read_the_rows_of_other_owners() -> None:
    torch.manual_seed(1)
    convs = [GCNConv(WIDTH, 4, normalize=False), nn.ReLU(), nn.Dropout(0.3), SAGEConv(4, CLASSES)]
    module, sampler = PyG(convs).double(), lambda: NeighborSampler([3, 2])
    check_equal(together(JointSample(batch_size=3), module, sampler, 3), serial(module, sampler, 9))


@pytest.mark.exhaustive
@pytest.mark.slow
@few("topology", ["shared", "partitioned"], ["partitioned"])
def test_push_pull_keeps_the_promises_of_strategies(topology: str) -> None:
    """Those of the default mode are tested in `tests/test_conformance.py`."""
    testing.check_strategy(lambda: JointSample("push_pull", batch_size=4, topology=topology))


def words(strategy: ExecutionStrategy, model: nn.Module, own: Worker) -> tuple[int, int]:
    """Numbers gathered and reduced in an epoch."""
    module = copy.deepcopy(model)
    strategy.setup(own, module)
    for batch in strategy.batches(0):
        step(batch, module)
    return strategy.tally.total("gather"), strategy.tally.total("reduce")


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [2, 8])
def test_words_are_the_rows_that_edges_read_once_for_each_rank_and_layer(hidden: int) -> None:
    torch.manual_seed(1)
    module = MODELS["gin"](WIDTH, CLASSES, hidden=hidden, dropout=0.0).double()
    sampler = lambda: NeighborSampler([3, 2])  # noqa: E731

    def work(comm: Threads) -> tuple[tuple[int, int], list[int]]:
        own = uneven(comm, sampler(), whole=False)
        joint = JointSample(batch_size=4)
        joint.setup(own, module)
        halo = [0, 0]  # rows of other ranks, by layer
        for batch in joint.batches(0):
            for layer, adjacency in enumerate(batch.adjacencies):
                edges = adjacency.rank_graph.edge_index  # type: ignore[attr-defined]
                halo[layer] += len(edges[0, edges[0] >= len(adjacency.src_nodes)].unique())
        return words(joint, module, own), halo

    found = Threads.run(work, 3)
    widths = (min(hidden, WIDTH), hidden)
    for (gathered, _), halo in found:
        assert gathered == sum(rows * width for rows, width in zip(halo, widths, strict=True))
    backward = widths if hidden < WIDTH else (0, hidden)  # features get no gradient, products do
    total = sum(rows * width for _, halo in found for rows, width in zip(halo, backward, strict=True))
    assert sum(reduced for (_, reduced), _ in found) == total > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
def test_push_pull_computes_the_same_with_sparse_features_of_its_columns(name: str) -> None:
    rng = np.random.default_rng(5)
    wide = np.where(rng.random((GRAPH.num_nodes, 41)) < 0.1, rng.standard_normal((GRAPH.num_nodes, 41)), 0)
    dense = replace(GRAPH, features=wide, feature_names=None)
    sparse = replace(dense, features=SparseFeatures.of(wide))
    model = MODELS[name](41, CLASSES, hidden=4, dropout=0.3).double()

    def own(graph: Graph, comm: Any) -> Worker:
        return replace(uneven(comm, NeighborSampler([3, 2]), whole=True), graph=graph)

    def found(graph: Graph) -> Tensor:
        parts = Threads.run(lambda comm: steps(JointSample("push_pull", 3), model, own(graph, comm)), 3)
        return sum(parts[1:], start=parts[0])

    check_equal(found(sparse), found(dense))
    rows = Threads.run(lambda comm: first_batch(JointSample("push_pull", 3), own(sparse, comm), model).x, 3)
    columns = [set(np.unique(part.places.table.csr.indices)) for part in rows]
    assert len(set.union(*columns)) == sum(map(len, columns))  # no column on two ranks


def test_push_pull_moves_hidden_rows_only_and_less_than_features_where_hidden_is_narrow() -> None:
    torch.manual_seed(1)
    hidden, ranks, module = 1, 3, MODELS["sage"](WIDTH, CLASSES, hidden=1, dropout=0.0).double()
    sampler = lambda: NeighborSampler([3, 3])  # noqa: E731

    def work(comm: Threads) -> tuple[tuple[int, int], int, int]:
        own, pushed, remote = uneven(comm, sampler(), whole=True), 0, 0
        individual = IndividualSample(batch_size=3)
        individual.setup(own, module)
        for batch in individual.batches(0):
            first = batch.adjacencies[0]
            pushed += first.num_dst * hidden
            remote += int((~np.isin(first.src_nodes.numpy(), own.owned)).sum()) * WIDTH
        return words(JointSample("push_pull", batch_size=3), module, own), pushed, remote

    found = Threads.run(work, ranks)
    every = sum(pushed for _, pushed, _ in found)
    for (gathered, reduced), pushed, _ in found:
        assert reduced == (ranks - 1) * pushed  # products of this rank's batches, from the others
        assert gathered == every - pushed  # gradients of the others' batches
    assert sum(sum(moved) for moved, _, _ in found) < sum(remote for _, _, remote in found)


def test_a_part_of_the_columns_drops_the_same_numbers() -> None:
    ids = torch.arange(5, 25)
    whole = dropout(torch.ones(20, 11), ids, 0.4, 3)
    for first, last in ((0, 4), (3, 11), (4, 9), (10, 11), (11, 11)):
        part = dropout(torch.ones(20, last - first), ids, 0.4, 3, first)
        assert torch.equal(part, whole[:, first:last])


def test_joined_blocks_keep_every_edge_and_travel_as_one_array() -> None:
    sampler = WeightedSampler([3], importance="sum")
    seeds = ([3, 7], [], [7, 1, 9])
    blocks = [sampler.sample(GRAPH.csc, np.array(ids, np.int64), key=1).blocks[0] for ids in seeds]
    block = join_blocks([unpack_block(pack_block(each, torch.device("cpu")).numpy()) for each in blocks])
    assert block.src_nodes[: block.num_dst].tolist() == [3, 7, 7, 1, 9]
    assert np.array_equal(block.edge_ids, np.concatenate([each.edge_ids for each in blocks]))
    assert np.array_equal(block.weight, np.concatenate([each.weight for each in blocks]))
    assert np.array_equal(block.src_nodes[block.indices], GRAPH.csc.indices[block.edge_ids])
    rows = np.repeat(block.src_nodes[: block.num_dst], np.diff(block.indptr))
    assert ((GRAPH.csc.indptr[rows] <= block.edge_ids) & (block.edge_ids < GRAPH.csc.indptr[rows + 1])).all()


class InPython(NeighborSampler):
    """A sampler with draws of its own."""

    def draw(self, graph: Any, nodes: Any, hop: int, *, key: int) -> Any:
        return super().draw(graph, nodes, hop, key=key)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: BalancedSampler([3, 2]),
        lambda: ClusterSampler(np.arange(GRAPH.num_nodes) % 12),
        lambda: MetropolisHastingsSampler([3, 3]),
        lambda: InPython([3, 3]),
    ],
)
def test_samplers_that_owners_cannot_draw_with_are_refused(sampler: Callable[[], Sampler]) -> None:
    reason = rf"^strategy\.mode=cooperative: sampler={type(sampler()).__name__} draws from more than .*mode=push_pull$"
    with pytest.raises(UserError, match=reason):
        JointSample().check(sampler(), 2)
    JointSample("push_pull").check(sampler(), 2)
    with pytest.raises(UserError, match=r"^strategy\.topology=partitioned: sampler=.*topology=shared$"):
        JointSample("push_pull", topology="partitioned").check(sampler(), 2)


@pytest.mark.parametrize("model", sorted(set(MODELS) - set(LINEAR)))
def test_push_pull_refuses_layers_that_are_not_linear_before_the_sum(model: str) -> None:
    with pytest.raises(UserError, match=r"must be linear before the sum over in-edges, but .* is not: use model=gcn"):
        JointSample("push_pull").setup(worker(Numbered(0, 1), NeighborSampler([3, 3])), make_model(model))


def test_owners_need_all_in_edges_of_their_nodes() -> None:
    owner = np.arange(GRAPH.num_nodes) % 4
    shards = list(cut_all(GRAPH, Partition(owner.astype(np.int32), None, Grid(2, 2, 1))))

    def work(comm: Threads) -> None:
        own = replace(worker(Numbered(0, 1), NeighborSampler([3, 3])), comm=comm, shard=shards[comm.rank], graph=None)
        JointSample().setup(own, make_model("gcn"))

    with pytest.raises(UserError, match=r"^strategy\.mode=cooperative: partition\.grid=2 x 2 x 1 distributes"):
        Threads.run(work, 4)


@pytest.mark.parametrize("mode", ["cooperative", "push_pull"])
def test_ranks_decide_together_about_a_loss_because_all_meet_in_a_step(mode: str) -> None:
    assert decide_together(Neighbour(), JointSample(mode))
    assert not decide_together(Neighbour(), IndividualSample())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"mode": "pull"},
            r"^strategy\.mode=pull is not known: did you mean push_pull\? there are: cooperative, push_pull",
        ),
        ({"batch_size": 0}, r"^strategy\.batch_size=0 must be"),
        ({"prefetch": 0}, r"^strategy\.prefetch=0 must be"),
        ({"topology": "replicated"}, r"^strategy\.topology=replicated .* use strategy\.topology=shared"),
        (
            {"topology": "shared"},
            r"^strategy\.topology=shared does not go with strategy\.mode=cooperative: owners draw",
        ),
        ({"features": "shared"}, r"^strategy\.features=shared does not go with .*=cooperative: owners read"),
        ({"mode": "push_pull", "features": "shared"}, r"=push_pull: a worker holds some columns of all nodes"),
        ({"cache": "lru"}, r"^strategy\.cache=lru keeps features of other workers, and .* moves no features"),
        ({"cache": "fifo"}, r"^strategy\.cache=fifo is not known"),
        ({"cache_rows": 4}, r"^strategy\.cache_rows=4 must be null with strategy\.cache=none"),
    ],
)
def test_bad_arguments_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        JointSample(**keys)


def test_the_places_that_a_mode_has_may_be_named() -> None:
    JointSample(topology="partitioned", features="partitioned")
    for topology in ("shared", "partitioned"):
        JointSample("push_pull", topology=topology, features="partitioned")


@pytest.mark.slow
def test_batches_do_not_depend_on_how_many_are_drawn_ahead() -> None:
    module, sampler = make_model("sage"), lambda: NeighborSampler([3, 2])
    one, many = (together(JointSample(batch_size=2, prefetch=count), module, sampler, 3) for count in (1, 9))
    assert torch.equal(one, many)


@pytest.mark.exhaustive
@pytest.mark.slow
@few("mode,topology", [("cooperative", None), ("push_pull", None), ("push_pull", "partitioned")], default=1)
def test_processes_compute_what_one_process_computes(mode: str, topology: str | None, tmp_path: Path) -> None:
    result = gnnkit.train(
        GRAPH,
        strategy={"name": "joint_sample", "mode": mode, "batch_size": 3, "topology": topology},
        sampler={"name": "neighbor", "fanouts": [3, 3]},
        overrides=["job=verify"],
        types="ignore",
        workers=2,
        comm="gloo",
        folder=tmp_path / "run",
    )
    assert result["verified"], result["largest_difference"]
    assert result["reference"] == "one rank with the whole graph"
