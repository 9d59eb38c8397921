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
from gnnkit_testing.graphs import CLASSES, WIDTH
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.model.gcn import GCN
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
from gnnkit.training.finite import decide_together
from tests.models import MODELS, PyG
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


def uneven(comm: Any, sampler: Sampler) -> Worker:
    """A rank of which one owns nothing, and one most nodes."""
    return replace(_parts(comm.world_size)(comm, sampler), graph=None)


@functools.cache
def _parts(ranks: int) -> Callable[[Any, Sampler], Worker]:
    owner = np.random.default_rng(2).integers(0, max(ranks - 1, 1), GRAPH.num_nodes)
    shards = list(cut_all(GRAPH, Partition(np.minimum(owner, owner[::-1]).astype(np.int32), None, Grid(ranks, 1, 1))))
    return lambda comm, sampler: replace(worker(Numbered(0, 1), sampler), comm=comm, shard=shards[comm.rank])


def together(strategy: ExecutionStrategy, model: nn.Module, sampler: Callable[[], Sampler], ranks: int) -> Tensor:
    """Loss and gradient of each batch, added up over the ranks."""
    parts = Threads.run(lambda comm: steps(strategy, model, uneven(comm, sampler())), ranks)
    return sum(parts[1:], start=parts[0])


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
    parts = Threads.run(lambda comm: first_batch(JointSample(batch_size=2), uneven(comm, DRAWS[name]()), model), ranks)
    reference = first_batch(IndividualSample(batch_size=2 * ranks), worker(Numbered(0, 1), DRAWS[name]()), model)
    for layer, one in enumerate(reference.adjacencies):
        owned = [part.adjacencies[layer] for part in parts]
        for ids in (lambda a: a.src_nodes[: a.num_dst], lambda a: a.src_nodes, lambda a: a.edge_ids):
            actual = torch.cat([ids(adjacency) for adjacency in owned])
            assert torch.equal(actual.sort().values, ids(one).sort().values)  # each on one rank, none twice
    assert sum(len(part.rows) for part in parts) == reference.total == parts[0].total
    features = torch.cat([part.x for part in parts])
    assert torch.equal(features.sort(dim=0).values, reference.x.sort(dim=0).values)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_one_to_eight_ranks_have_the_loss_and_gradient_of_one(model: str) -> None:
    module, sampler = make_model(model), lambda: NeighborSampler([3, 3])
    for ranks in (1, 2, 3, 5, 8):
        actual = together(JointSample(batch_size=4), module, sampler, ranks)
        check_equal(actual, serial(module, sampler, 4 * ranks))


@pytest.mark.slow
@turns(name=[*DRAWS], model=[*MODELS])
def test_owners_that_draw_together_compute_every_model_as_one_rank(name: str, model: str) -> None:
    module, sampler = make_model(model), DRAWS[name]
    check_equal(together(JointSample(batch_size=6), module, sampler, 3), serial(module, sampler, 18))


@pytest.mark.slow
def test_a_model_of_one_layer_and_one_of_three() -> None:
    for layers in (1, 3):
        torch.manual_seed(1)
        module, sampler = GCN(WIDTH, CLASSES, 4, layers, 0.3).double(), lambda: NeighborSampler([2] * layers)  # noqa: B023
        check_equal(together(JointSample(batch_size=3), module, sampler, 3), serial(module, sampler, 9))


@pytest.mark.slow
def test_batches_of_one_and_more_ranks_than_seeds_are_no_special_case() -> None:
    module = make_model("sage")
    assert np.count_nonzero(GRAPH.split == Split.TRAIN) < 12 * 2
    isolated = np.setdiff1d(
        np.arange(GRAPH.num_nodes), [*GRAPH.csc.indices, *np.flatnonzero(np.diff(GRAPH.csc.indptr))]
    )
    assert (GRAPH.split[isolated] == Split.TRAIN).any()
    for ranks, size in ((2, 1), (12, 2)):
        actual = together(JointSample(batch_size=size), module, FullSampler, ranks)
        check_equal(actual, serial(module, FullSampler, size * ranks))


@pytest.mark.slow
def test_layers_of_pyg_read_the_rows_of_other_owners() -> None:
    torch.manual_seed(1)
    convs = [SAGEConv(WIDTH, 4), nn.ReLU(), nn.Dropout(0.3), SAGEConv(4, CLASSES)]
    module, sampler = PyG(convs).double(), lambda: NeighborSampler([3, 2])
    check_equal(together(JointSample(batch_size=3), module, sampler, 3), serial(module, sampler, 9))


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
        own = uneven(comm, sampler())
        joint = JointSample(batch_size=4)
        joint.setup(own, module)
        halo = [0, 0]  # rows of other ranks, by layer
        for batch in joint.batches(0):
            for layer, adjacency in enumerate(batch.adjacencies):
                edges = adjacency.rank_graph.edge_index  # type: ignore[attr-defined]
                halo[layer] += len(edges[0, edges[0] >= len(adjacency.src_nodes)].unique())
        return words(joint, module, own), halo

    results = Threads.run(work, 3)
    widths = (min(hidden, WIDTH), hidden)
    for (gathered, _), halo in results:
        assert gathered == sum(rows * width for rows, width in zip(halo, widths, strict=True))
    backward = widths if hidden < WIDTH else (0, hidden)  # features get no gradient, products do
    total = sum(rows * width for _, halo in results for rows, width in zip(halo, backward, strict=True))
    assert sum(reduced for (_, reduced), _ in results) == total > 0


class InPython(NeighborSampler):
    """A sampler with draws of its own."""

    def draw(self, graph: Any, nodes: Any, hop: int, *, key: int) -> Any:
        return super().draw(graph, nodes, hop, key=key)


@pytest.mark.parametrize(
    ("name", "sampler", "reason"),
    [
        ("balanced", lambda: BalancedSampler([3, 2]), "draws from more than the in-edges"),
        ("cluster", lambda: ClusterSampler(np.arange(GRAPH.num_nodes) % 12), "draws from more than the in-edges"),
        ("metropolis_hastings", lambda: MetropolisHastingsSampler([3, 3]), "draws from more than the in-edges"),
        ("InPython", lambda: InPython([3, 3]), "does not set draws_at_owners"),
    ],
)
def test_samplers_that_owners_cannot_draw_with_are_refused(
    name: str, sampler: Callable[[], Sampler], reason: str
) -> None:
    message = rf"^strategy=joint_sample: sampler={name} {reason}.*or strategy=individual_sample$"
    with pytest.raises(UserError, match=message):
        JointSample().check(sampler(), 2)
    IndividualSample().check(sampler(), 2)
    message = rf"^strategy\.topology=partitioned: sampler={name} {reason}.*or strategy\.topology=shared$"
    with pytest.raises(UserError, match=message):
        IndividualSample(topology="partitioned").check(sampler(), 2)


def test_owners_need_all_in_edges_of_their_nodes() -> None:
    owner = np.arange(GRAPH.num_nodes) % 4
    shards = list(cut_all(GRAPH, Partition(owner.astype(np.int32), None, Grid(2, 2, 1))))

    def work(comm: Threads) -> None:
        rank_worker = replace(
            worker(Numbered(0, 1), NeighborSampler([3, 3])), comm=comm, shard=shards[comm.rank], graph=None
        )
        JointSample().setup(rank_worker, make_model("gcn"))

    with pytest.raises(UserError, match=r"^strategy=joint_sample: partition\.grid=2 x 2 x 1 distributes"):
        Threads.run(work, 4)


def test_ranks_decide_together_about_a_loss_because_all_meet_in_a_step() -> None:
    assert decide_together(Neighbour(), JointSample())
    assert not decide_together(Neighbour(), IndividualSample())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batch_size": 0}, r"^strategy\.batch_size=0 must be"),
        ({"prefetch": 0}, r"^strategy\.prefetch=0 must be"),
    ],
)
def test_bad_arguments_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        JointSample(**keys)


@pytest.mark.slow
def test_batches_do_not_depend_on_how_many_are_drawn_ahead() -> None:
    module, sampler = make_model("sage"), lambda: NeighborSampler([3, 2])
    one, many = (together(JointSample(batch_size=2, prefetch=count), module, sampler, 3) for count in (1, 9))
    assert torch.equal(one, many)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_processes_compute_what_one_process_computes(tmp_path: Path) -> None:
    result = gnnkit.train(
        GRAPH,
        strategy={"name": "joint_sample", "batch_size": 3},
        sampler={"name": "neighbor", "fanouts": [3, 3]},
        overrides=["job=verify"],
        types="ignore",
        workers=2,
        comm="gloo",
        folder=tmp_path / "run",
    )
    assert result["verified"], result["largest_difference"]
    assert result["reference"] == "one rank with the whole graph"
