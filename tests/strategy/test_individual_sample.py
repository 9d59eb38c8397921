"""Individual-sample mini-batches on several ranks, and beside full-graph training."""

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
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from torch import Tensor, nn

from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, Shard, cut_all
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
from gnnkit.strategy import Batch, ExecutionStrategy, Worker, weighing_sums
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.vertex_centric import VertexCentric
from tests.cases import few
from tests.models import MODELS
from tests.sampler.test_base import FirstNeighbors
from tests.turns import turns

GRAPH = check_graph(48)
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 3]),
    "weighted": lambda: WeightedSampler([3, 3]),
    "balanced": lambda: BalancedSampler([3, 2]),
    "labor": lambda: LaborSampler([3, 2], redraw=True),
    "metropolis_hastings": lambda: MetropolisHastingsSampler([3, 3], walk_length=3, num_walks=4),
    "cluster": lambda: ClusterSampler(np.arange(GRAPH.num_nodes) % 12),
    "full": FullSampler,
}
ALONE = ("balanced", "cluster")  # what a node draws depends on its batch, so no single rank draws the same


class Numbered(Threads):
    """One of several ranks, computed without the others."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


def make_model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name](WIDTH, CLASSES, hidden=4, dropout=0.3).double()


@functools.cache
def shards(ranks: int) -> list[Shard]:
    owner = (np.arange(GRAPH.num_nodes) % ranks).astype(np.int32)
    return list(cut_all(GRAPH, Partition(owner, None, Grid(ranks, 1, 1))))


def worker(comm: Any, sampler: Sampler | None) -> Worker:
    return Worker(comm, shards(comm.world_size)[comm.rank], torch.float64, 3, GRAPH, sampler)


def step(batch: Batch, model: nn.Module) -> Tensor:  # [1 + num_parameters]
    """This rank's part of loss and gradient."""
    model.zero_grad()
    logits = model(batch.x, batch.adjacencies)
    loss = nn.functional.cross_entropy(logits[batch.rows], batch.labels, reduction="sum") / batch.total
    loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)])


def steps(strategy: ExecutionStrategy, model: nn.Module, own: Worker, epochs: int = 1) -> Tensor:
    """Of every batch of some epochs, [num_batches, 1 + num_parameters]."""
    strategy, model = copy.copy(strategy), copy.deepcopy(model)
    strategy.setup(own, model)
    return torch.stack([step(batch, model) for epoch in range(epochs) for batch in strategy.batches(epoch)])


def numbers_of_ranks(name: str, model: str) -> tuple[int, int]:
    """Every sampler meets every number from 1 to 8, and so does every model."""
    place = list(SAMPLERS).index(name) + list(MODELS).index(model)
    return 1 + place % 8, 1 + (place + 4) % 8


@pytest.mark.slow
@turns(name=[*SAMPLERS], model=[*MODELS])
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_one_to_eight_ranks_compute_together_what_one_computes(name: str, model: str) -> None:
    if (name, model) == ("metropolis_hastings", "gine"):
        model = "gin"  # walks end at nodes, and no edge with features leads there
    size, module = 4, make_model(model)
    for ranks in numbers_of_ranks(name, model):
        strategy = IndividualSample(batch_size=size)
        actual = sum(steps(strategy, module, worker(Numbered(r, ranks), SAMPLERS[name]())) for r in range(ranks))
        alone = strategy.on_one_rank(ranks, SAMPLERS[name]())
        assert (alone is None) == (name in ALONE)
        if alone is None:  # the same batches, by threads that meet
            work = lambda comm: steps(strategy, module, worker(comm, SAMPLERS[name]()))  # noqa: E731, B023
            reference = sum(Threads.run(work, ranks))
        else:
            reference = steps(alone, module, worker(Numbered(0, 1), SAMPLERS[name]()))
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_walks_that_compare_features_are_the_same_on_several_ranks() -> None:
    module = make_model("sage")
    sampler = MetropolisHastingsSampler([3, 3], walk_length=3, num_walks=4, target="similarity")
    parts = [steps(IndividualSample(batch_size=4), module, worker(Numbered(rank, 3), sampler)) for rank in range(3)]
    alone = IndividualSample(batch_size=4).on_one_rank(3, sampler)
    assert alone is not None
    reference = steps(alone, module, worker(Numbered(0, 1), sampler))
    torch.testing.assert_close(sum(parts), reference, rtol=1e-10, atol=1e-10)
    uniform = MetropolisHastingsSampler([3, 3], walk_length=3, num_walks=4)
    assert not torch.equal(reference, steps(alone, module, worker(Numbered(0, 1), uniform)))


@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_walks_that_compare_features_are_refused_where_other_ranks_have_the_rows() -> None:
    similar = functools.partial(MetropolisHastingsSampler, [3, 3], target="similarity")
    partitioned = IndividualSample(features="partitioned")
    with pytest.raises(
        UserError, match=r"strategy\.features=partitioned: .* as does sampler\.target=similarity without"
    ):
        partitioned.check(similar(), 2)
    with pytest.raises(UserError, match=r"strategy\.topology=partitioned: .* draws from more than the in-edges"):
        IndividualSample(topology="partitioned").check(similar(embeddings=GRAPH.features), 2)
    partitioned.check(similar(embeddings=GRAPH.features), 2)

    model = make_model("sage")  # threads share the generator of first parameters

    def work(comm: Any, strategy: IndividualSample, graph: Graph, sampler: Sampler) -> Tensor:
        own = Worker(comm, shards(comm.world_size)[comm.rank], torch.float64, 3, graph, sampler)
        return steps(strategy, copy.deepcopy(model), own)

    topology = replace(GRAPH, features=np.empty((GRAPH.num_nodes, 0), np.float32))
    results = Threads.run(lambda comm: work(comm, partitioned, topology, similar(embeddings=GRAPH.features)), 2)
    reference = Threads.run(lambda comm: work(comm, IndividualSample(), GRAPH, similar()), 2)
    assert all(torch.equal(mine, other) for mine, other in zip(results, reference, strict=True))


def test_a_model_that_needs_edges_is_refused_where_nodes_are_drawn() -> None:
    rank_worker = worker(Numbered(0, 1), SAMPLERS["metropolis_hastings"]())
    with pytest.raises(UserError, match="model=gine needs edge features, and the edges of this batch have none"):
        steps(IndividualSample(), make_model("gine"), rank_worker)


@pytest.mark.slow
@turns(model=[*MODELS], ranks=[3, 1])
def test_all_neighbours_in_one_batch_are_full_graph_training_noise_included(model: str, ranks: int) -> None:
    module, sampler = make_model(model), NeighborSampler([-1, -1])

    def full(comm: Threads) -> Tensor:
        rank_worker = worker(comm, None)
        return steps(VertexCentric(), module, Worker(comm, rank_worker.shard, torch.float64, 3), epochs=3)

    def sampled(comm: Threads) -> Tensor:
        return steps(IndividualSample(batch_size=1000), module, worker(comm, sampler), epochs=3)

    reference, results = (sum(Threads.run(work, ranks)) for work in (full, sampled))
    torch.testing.assert_close(results, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neighbor", "weighted", "labor"])
def test_sums_over_drawn_edges_estimate_the_sums_over_all(name: str) -> None:
    """The mean of one layer's sums over many draws is the sum over all in-edges."""
    samplers = {"neighbor": NeighborSampler([2]), "weighted": WeightedSampler([2]), "labor": LaborSampler([2])}
    x, nodes, draws = torch.tensor(GRAPH.features), np.arange(GRAPH.num_nodes), 250
    strategy = IndividualSample()
    strategy.setup(worker(Numbered(0, 1), samplers[name]), make_model("sage"))

    def sums(sampler: Sampler, key: int) -> Tensor:
        (block,) = sampler.sample(GRAPH.csc, nodes, key=key).blocks
        (adjacency,) = strategy.sampled.layers.layers([block], key=0)
        return adjacency.aggregate(x[block.src_nodes])

    actual = torch.stack([sums(weighing_sums(samplers[name]), key) for key in range(draws)])
    errors = actual.mean(0) - sums(FullSampler(num_hops=1), 0)
    scores = errors / (actual.std(0) / draws**0.5 + 1e-9)
    assert scores.abs().max() < 5, "off by more than chance"
    assert actual.std(0).max() > 0.1, "the draws differ"


def test_an_epoch_covers_the_training_nodes_once_and_ranks_out_of_seeds_join_with_nothing() -> None:
    ranks, values, counts = 5, [], []
    for rank in range(ranks):
        rank_worker = worker(Numbered(rank, ranks), NeighborSampler([2, 2]))
        strategy = IndividualSample(batch_size=3)
        strategy.setup(rank_worker, make_model("sage"))
        batches = list(strategy.batches(0))
        counts.append(len(batches))
        values += [node for b in batches for node in b.adjacencies[-1].src_nodes[: len(b.rows)].tolist()]
        assert all(len(batch.rows) <= 3 for batch in batches)
    assert len(set(counts)) == 1
    assert sorted(values) == np.flatnonzero(GRAPH.split == 1).tolist()


@pytest.mark.slow
@few("model", MODELS, ["gcn"])
def test_empty_batches_isolated_seeds_and_batches_of_one_are_no_special_case(model: str) -> None:
    module = make_model(model)
    for ranks, size in ((3, 1), (40, 4)):
        parts = [
            steps(IndividualSample(batch_size=size), module, worker(Numbered(r, ranks), FullSampler()))
            for r in range(ranks)
        ]
        assert all(part.isfinite().all() for part in parts)
        reference = steps(IndividualSample(batch_size=size * ranks), module, worker(Numbered(0, 1), FullSampler()))
        torch.testing.assert_close(sum(parts), reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batch_size": 0}, r"^strategy\.batch_size=0 must be"),
        ({"prefetch": 0}, r"^strategy\.prefetch=0 must be"),
        ({"batching": "even"}, r"^strategy\.options\.batching=even is not known: there are: balanced, plain"),
    ],
)
def test_bad_arguments_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IndividualSample(**keys)


def test_a_sampler_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"3 hops, but model\.num_layers=2"):
        IndividualSample().check(NeighborSampler([3, 2, 1]), 2)
    with pytest.raises(UserError, match=r"sampler\.num_hops has 3 hops, but model\.num_layers=2"):
        IndividualSample().check(FirstNeighbors(), 2)
    with pytest.raises(UserError, match=r"sampler\.edge_ids=False: strategies need edge ids"):
        IndividualSample().setup(worker(Numbered(0, 1), NeighborSampler([3, 3], edge_ids=False)), make_model("gcn"))
    with pytest.raises(UserError, match=r"sampler\.importance=mean"):
        IndividualSample().setup(worker(Numbered(0, 1), NeighborSampler([3, 3], importance="mean")), make_model("gcn"))


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "sync,comm,overrides",
    [
        ("leader", "threads", ["sampler=balanced", "strategy.options.batching=balanced"]),
        ("all_reduce", "gloo", ["sampler.fanouts=[4,4]"]),
        ("leader", "gloo", ["sampler=labor", "sampler.fanouts=[4,3]", "sampler.options.redraw=true"]),
    ],
    default=1,
)
def test_whole_runs_are_verified(tmp_path: Path, sync: str, comm: str, overrides: list[str]) -> None:
    import gnnkit

    result = gnnkit.train(
        GRAPH,
        types="ignore",
        strategy={"name": "individual_sample", "batch_size": 3},
        model="sage",
        sync=sync,
        comm=comm,
        workers=3,
        overrides=["job=verify", *overrides],
        folder=tmp_path / "run",
    )
    assert result["verified"], dict(result)
    assert result["reference"].startswith("3 ranks" if "sampler=balanced" in overrides else "one rank")
