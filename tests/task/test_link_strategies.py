"""Edges to predict under sampled strategies: one result, whoever holds the edges."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import check_graph
from torch import Tensor, nn

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote.owned_rows import CACHES
from gnnkit.engine.remote.owners import MessageCounter
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.partition import Grid
from gnnkit.sampler import FullSampler, LaborSampler, NeighborSampler, Sampler, WeightedSampler
from gnnkit.sampler.links import codes, pair_codes, pairs_of
from gnnkit.strategy import Batch, ExecutionStrategy
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.seeds import GraphEdges, ShardEdges, StepEdges
from tests.cases import few
from tests.task.steps import make_workers, run_steps
from tests.task.test_link_prediction import GRAPH, LINKS, TASK, make_model, positive_ends
from tests.turns import turns

NUM_NODES = GRAPH.num_nodes
STRATEGIES: dict[str, Callable[[int], ExecutionStrategy]] = {
    "shared": lambda size: IndividualSample(batch_size=size),
    "features apart": lambda size: IndividualSample(batch_size=size, features="partitioned"),
    "topology apart": lambda size: IndividualSample(batch_size=size, topology="partitioned"),
    "cooperative": lambda size: JointSample(batch_size=size),
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 3], threads=1),
    "uneven": lambda: NeighborSampler([4, 2], threads=1),
    "weighted": lambda: WeightedSampler([3, 2], alpha=0.5, threads=1),
    "labor": lambda: LaborSampler([3, 3], threads=1),
    "full": FullSampler,
}


def workers_of(strategy: ExecutionStrategy, ranks: int, sampler: Sampler) -> Callable[[Threads], Any]:
    reads = {"whole": strategy.reads.graph, "features": not strategy.reads.from_owners}
    return make_workers(GRAPH, Grid(ranks, 1, 1), sampler=sampler, rows=LINKS, **reads)


def total(strategy: ExecutionStrategy, ranks: int, sampler: Sampler, model: nn.Module) -> Tensor:
    """Sums loss and gradient over the ranks, for each batch of two epochs."""
    return run_steps(strategy, TASK, model, workers_of(strategy, ranks, sampler), ranks)


@functools.cache
def of_a_shared_graph(size: int, ranks: int, sampler: str, model: str) -> Tensor:
    """Returns what ranks compute that all read the whole graph."""
    return total(STRATEGIES["shared"](size), ranks, SAMPLERS[sampler](), make_model(model))


def made(kind: str, size: int, ranks: int, sampler: Sampler) -> list[list[Batch]]:
    """Returns the batches of one epoch, by rank."""

    def work(comm: Threads) -> list[Batch]:
        rank_strategy = STRATEGIES[kind](size)
        rank_strategy.setup(workers_of(rank_strategy, ranks, sampler)(comm), make_model("gcn"))
        batches = list(rank_strategy.batches(1))
        rank_strategy.close()
        return batches

    return Threads.run(work, ranks)


@pytest.mark.slow
@few(
    "name,kind",
    itertools.product(SAMPLERS, ["topology apart", "features apart"]),
    default=[("labor", "features apart"), ("full", "topology apart")],
)
def test_batches_of_edges_have_the_bits_of_a_shared_graph(kind: str, name: str) -> None:
    model = "gat" if name == "neighbor" else "sage"
    for ranks in (1, 3) if name == "uneven" else (3,):
        actual = total(STRATEGIES[kind](36), ranks, SAMPLERS[name](), make_model(model))
        assert torch.equal(actual, of_a_shared_graph(36, ranks, name, model)), ranks


@pytest.mark.slow
@few("name", SAMPLERS, ["labor", "full"])
def test_edges_predicted_together_have_the_loss_and_gradient_of_one_rank(name: str) -> None:
    model = "gcn" if name == "neighbor" else "gin"
    for ranks in (1, 4) if name == "neighbor" else (3,):
        actual = total(STRATEGIES["cooperative"](24), ranks, SAMPLERS[name](), make_model(model))
        torch.testing.assert_close(actual, of_a_shared_graph(24 * ranks, 1, name, model), rtol=1e-10, atol=1e-10)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_nodes_and_edges_of_all_ranks_are_the_serial_batch_of_edges() -> None:
    sampler = SAMPLERS["uneven"]()
    for ranks in (1, 2, 3, 4):
        parts = made("cooperative", 12, ranks, sampler)
        (serial,) = made("shared", 12 * ranks, 1, sampler)
        for step, batch in enumerate(serial):
            for layer, reference in enumerate(batch.adjacencies):
                loads = [part[step].adjacencies[layer] for part in parts]
                for ids in (lambda a: a.src_nodes[: a.num_dst], lambda a: a.src_nodes, lambda a: a.edge_ids):
                    actual = torch.cat([ids(adjacency) for adjacency in loads])
                    assert torch.equal(actual.sort().values, ids(reference).sort().values)
            assert sum(len(part[step].rows) for part in parts) == batch.total == parts[0][step].total


@pytest.mark.slow
@turns(kind=list(STRATEGIES), name=["gcn", "gat"])
def test_no_rank_reads_an_edge_that_any_rank_predicts_in_the_step(kind: str, name: str) -> None:
    assert LINKS is not None
    held = pair_codes(np.concatenate([LINKS.val.pairs, LINKS.test.pairs]), NUM_NODES)
    every, strategy = pairs_of(GRAPH.csc), STRATEGIES[kind](10)

    def work(comm: Threads) -> list[tuple[Ids, Ids]]:
        rank_strategy = STRATEGIES[kind](10)
        model = make_model(name)
        rank_strategy.setup(workers_of(strategy, 3, FullSampler())(comm), model)
        steps = []
        for batch in rank_strategy.batches(0):
            ids = np.concatenate([adjacency.edge_ids.numpy() for adjacency in batch.adjacencies])
            steps.append((positive_ends(batch), every[ids[ids < GRAPH.num_edges]]))
        rank_strategy.close()
        return steps

    predictions = []
    for step in zip(*Threads.run(work, 3), strict=True):
        positive, read = (np.concatenate(arrays) for arrays in zip(*step, strict=True))
        assert not np.isin(pair_codes(positive, NUM_NODES), pair_codes(read, NUM_NODES)).any()
        assert not np.isin(held, pair_codes(read, NUM_NODES)).any()
        assert len(read) > 0
        predictions.append(positive)
    loops = every[:, 0] == every[:, 1]
    np.testing.assert_array_equal(  # every edge once in an epoch
        np.sort(codes(np.concatenate(predictions), NUM_NODES)), np.sort(codes(every[~loops], NUM_NODES))
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_deal_edges_out_as_the_whole_graph_does_and_no_rank_holds_all(ranks: int) -> None:
    workers = make_workers(GRAPH, Grid(ranks, 1, 1), whole=False)

    def work(comm: Threads) -> list[list[StepEdges]]:
        counter, shard = MessageCounter.zeros(ranks), workers(comm).shard
        graph, shards = GraphEdges(GRAPH.csc, 7, comm), ShardEdges(shard, 7, comm)
        assert (shards.num_steps, shards.num_edges) == (graph.num_steps, graph.num_edges)
        results = []
        for key in (0, 2**63 + 5):
            dealt, reference = shards.schedule_epoch(key, comm, counter), graph.schedule_epoch(key, comm, counter)
            for step in range(graph.num_steps):
                one, two = dealt(step, comm, counter), reference(step, comm, counter)
                np.testing.assert_array_equal(one.own, two.own)
                np.testing.assert_array_equal(one.excluded, two.excluded)
                assert one.total == two.total
                results.append([one])
        assert (counter.num_bytes.sum() > 0) == (ranks > 1)
        return results

    parts = Threads.run(work, ranks)
    counts = [sum(len(one.own) for (one,) in part) for part in parts]
    assert max(counts) - min(counts) <= 2


@pytest.mark.exhaustive
@pytest.mark.slow
@few("cache", CACHES, ["exact"])
def test_a_cache_changes_no_batch_of_edges(cache: str) -> None:
    cached = IndividualSample(batch_size=24, topology="partitioned", cache=cache, cache_rows=None)
    actual = total(cached, 3, SAMPLERS["neighbor"](), make_model("sage"))
    assert torch.equal(actual, of_a_shared_graph(24, 3, "neighbor", "sage"))


@pytest.mark.parametrize("kind", ["topology apart", "cooperative"])
def test_messages_about_edges_count_as_bytes_and_not_as_words(kind: str) -> None:
    def work(comm: Threads) -> tuple[int, int]:
        rank_strategy = STRATEGIES[kind](12)
        rank_strategy.setup(workers_of(rank_strategy, 2, NeighborSampler([0, 0]))(comm), make_model("gcn"))
        batches = rank_strategy.batches(0)
        next(batches)
        counted = rank_strategy.tally.bytes_sent, rank_strategy.tally.total("gather")
        rank_strategy.close()
        return counted

    for sent, words in Threads.run(work, 2):
        assert sent > 24 * GRAPH.num_edges / 8  # about a quarter of the edges go to the other rank, twice
        assert words == 0


class WithoutIds(NeighborSampler):
    """A sampler with batches of its own, which lack edge ids."""

    def sample(self, graph: Any, seeds: Ids, *, key: int) -> Any:
        self.edge_ids = False
        return super().sample(graph, seeds, key=key)


def test_a_sampler_without_edge_ids_is_refused() -> None:
    strategy = STRATEGIES["shared"](12)
    with pytest.raises(UserError, match="task=link_prediction: the sampler gives no edge ids"):
        total(strategy, 1, WithoutIds([3, 3], threads=1), make_model("gcn"))


@pytest.mark.slow
def test_epochs_go_on_from_any_step() -> None:
    def work(comm: Threads) -> None:
        for kind, make in STRATEGIES.items():
            strategy = make(18)
            strategy.setup(workers_of(strategy, 2, SAMPLERS["neighbor"]())(comm), make_model("gcn"))
            all_batches = [described(batch) for batch in strategy.batches(1)]
            broken = strategy.batches(1)
            next(broken)
            del broken  # batches made ahead are dropped, on all ranks alike
            for first in (1, len(all_batches) - 1, len(all_batches)):
                for one, two in zip(
                    [described(b) for b in strategy.batches(1, first)], all_batches[first:], strict=True
                ):
                    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True)), kind
            strategy.close()

    Threads.run(work, 2)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "keys"),
    [
        ("threads", {"name": "joint_sample"}),
        ("gloo", {"name": "individual_sample", "topology": "partitioned", "cache": "vip"}),
    ],
    ids=["cooperative", "individual"],
)
def test_whole_runs_over_edges_that_no_rank_holds_are_verified(comm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    result = gnnkit.train(
        check_graph(48).symmetrize(),
        types="ignore",
        strategy=keys | {"batch_size": 9},
        task={"name": "link_prediction", "width": 6, "eval_negatives": 5},
        sampler={"name": "neighbor", "fanouts": [3, 3]},
        job="verify",
        workers=3,
        comm=comm,
        folder=tmp_path / "run",
    )
    assert result["verified"], dict(result)
    assert result["reference"] == "one rank with the whole graph"


def described(batch: Batch) -> Sequence[Tensor]:
    return batch.x, batch.rows, batch.labels, *(adjacency.edge_ids for adjacency in batch.adjacencies)
