"""Individual samples of a graph that no rank holds: same bits, words as predicted."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.strategy import check_strategy
from torch import Tensor, nn

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote.features import round_rows
from gnnkit.engine.remote.owned_rows import CACHES
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Split
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import BalancedSampler, FullSampler, LaborSampler, NeighborSampler, Sampler, WeightedSampler
from gnnkit.strategy import EdgeTask, ExecutionStrategy, Worker
from gnnkit.strategy.fetched_batches import FetchedBatches
from gnnkit.strategy.individual_sample import IndividualSample
from tests.cases import few
from tests.remote.test_frontier import GRAPH, PARTITIONS
from tests.strategy.test_individual_sample import make_model, step
from tests.turns import turns

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 2]),
    "neighbor, replaced and redrawn": lambda: NeighborSampler([3, 2], replace=True, redraw=True),
    "nothing": lambda: NeighborSampler([0, 0]),
    "weighted": lambda: WeightedSampler([3, 2], alpha=0.5),
    "labor": lambda: LaborSampler([3, 2]),
    "full": FullSampler,
}
TOPOLOGY = Graph(GRAPH.csc, np.empty((GRAPH.num_nodes, 0)), GRAPH.labels, GRAPH.split, GRAPH.edge_features)
WHOLE = {"shared": GRAPH, "features": TOPOLOGY, "partitioned": None}  # what every rank reads, by mode
_MODELS = {name: make_model(name) for name in ("gcn", "gat", "gin", "gine", "sage")}
KEYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "features": {"features": "partitioned"},
    "partitioned": {"topology": "partitioned"},
}


def on_ranks(
    ranks: int, work: Callable[[Worker], Any], mode: str, sampler: Sampler, partition: str = "random", **keys: Any
) -> list[Any]:
    owner = PARTITIONS[partition](ranks).astype(np.int32)
    shards = list(cut_all(GRAPH, Partition(owner, None, Grid(ranks, 1, 1))))

    def on_rank(comm: Communicator) -> Any:
        own = copy.deepcopy(sampler)
        return work(Worker(comm, shards[comm.rank], torch.float64, 3, WHOLE[mode], own, **keys))

    return Threads.run(on_rank, ranks)


def made(name: str) -> nn.Module:
    """A model of the rank's own. Ranks are threads, and torch has one generator."""
    return copy.deepcopy(_MODELS[name])


def train(worker: Worker, mode: str, model: str = "sage", epochs: int = 1, **keys: Any) -> Tensor:
    """Loss and gradient of every batch, [num_batches, 1 + num_parameters]."""
    module, strategy = made(model), IndividualSample(**{"batch_size": 4} | KEYS[mode] | keys)
    strategy.check(worker.sampler, 2)
    strategy.setup(worker, module)
    try:
        return torch.stack([step(batch, module) for epoch in range(epochs) for batch in strategy.batches(epoch)])
    finally:
        strategy.close()


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for first, two in zip(found, expected, strict=True):
        assert torch.equal(first, two), "bits differ"


@pytest.mark.slow
@turns(name=[*SAMPLERS], mode=["partitioned", "features"])
def test_losses_and_gradients_have_the_bits_of_a_shared_graph(name: str, mode: str) -> None:
    for ranks, partition in ((1, "random"), (2, "contiguous"), (4, "one owns nothing")):
        reference = on_ranks(ranks, functools.partial(train, mode="shared"), "shared", SAMPLERS[name]())
        results = on_ranks(ranks, functools.partial(train, mode=mode), mode, SAMPLERS[name](), partition)
        assert_same(results, reference)


@pytest.mark.slow
def test_input_rows_in_bfloat16_are_the_same_wherever_they_come_from() -> None:
    rounded = round_rows(GRAPH.features)
    tables: dict[str, Any] = {"shared": {"rounded": rounded}, "features": {}, "partitioned": {}}

    def rows(worker: Worker, mode: str) -> list[Tensor]:
        strategy = IndividualSample(batch_size=4, **KEYS[mode])
        strategy.setup(worker, made("sage"))
        batches = [batch.x for batch in strategy.batches(0)]
        strategy.close()
        return batches

    results = {
        mode: on_ranks(
            2, functools.partial(rows, mode=mode), mode, NeighborSampler([3, 2]), input_dtype=torch.bfloat16, **keys
        )
        for mode, keys in tables.items()
    }
    exact = on_ranks(2, functools.partial(rows, mode="shared"), "shared", NeighborSampler([3, 2]))
    for rank in range(2):
        for one, *others in zip(exact[rank], *(of_ranks[rank] for of_ranks in results.values()), strict=True):
            assert [other.dtype for other in others] == [torch.bfloat16] * 3
            assert all(torch.equal(other, one.bfloat16()) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "gat", "gin", "gine", "sage"])
def test_every_model_gets_the_degrees_loops_and_edges_of_the_whole_graph(model: str) -> None:
    sampler = NeighborSampler([3, 2])
    reference = on_ranks(3, functools.partial(train, mode="shared", model=model), "shared", sampler)
    results = on_ranks(3, functools.partial(train, mode="partitioned", model=model), "partitioned", sampler)
    assert_same(results, reference)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16])
def test_batches_of_one_and_more_ranks_than_seeds_are_no_special_case(size: int) -> None:
    """With 16 seeds a batch, one step has all seeds, and ranks 1 to 3 have none."""
    reference = on_ranks(4, functools.partial(train, mode="shared", batch_size=size), "shared", FullSampler())
    results = on_ranks(4, functools.partial(train, mode="partitioned", batch_size=size), "partitioned", FullSampler())
    assert_same(results, reference)


def words(worker: Worker, mode: str, epochs: int = 2, **keys: Any) -> dict[str, Any]:
    """What some epochs move, and what their batches read."""
    strategy = IndividualSample(**{"batch_size": 4} | KEYS[mode] | keys)
    strategy.setup(worker, made("sage"))
    owned, remote = worker.shard.owned, 0
    for epoch in range(epochs):
        for batch in strategy.batches(epoch):
            remote += int((~np.isin(batch.adjacencies[0].src_nodes.numpy(), owned)).sum())
        strategy.end_epoch(epoch, None, made("sage"))  # type: ignore[arg-type]
    strategy.close()
    assert isinstance(strategy.sampled, FetchedBatches)
    width = strategy.sampled.rows.width
    hits = strategy.figures()["cache_hits"]
    return {
        "fetched": strategy.tally.total("fetch") / width,
        "remote": remote,
        "saved": hits["words_saved"][worker.comm.rank] * epochs / width,
        "rate": hits["rate"][worker.comm.rank],
        "bytes": strategy.tally.bytes_sent,
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["partitioned", "features"])
def test_words_fetched_are_the_distinct_rows_of_other_ranks(mode: str) -> None:
    for result in on_ranks(3, functools.partial(words, mode=mode), mode, NeighborSampler([3, 2])):
        assert result["fetched"] == result["remote"] > 0
        assert result["saved"] == result["rate"] == 0
        assert result["bytes"] > 0
    (alone,) = on_ranks(1, functools.partial(words, mode=mode), mode, NeighborSampler([3, 2]))
    assert alone["fetched"] == alone["remote"] == alone["bytes"] == 0


@pytest.mark.slow
@turns(cache=[name for name in CACHES if name != "none"], mode=["partitioned", "features"])
def test_a_cache_changes_words_and_nothing_else(cache: str, mode: str) -> None:
    sampler, keys = NeighborSampler([3, 2]), {"cache": cache, "cache_rows": 8}
    plain = on_ranks(3, functools.partial(train, mode=mode, epochs=2), mode, sampler)
    assert_same(on_ranks(3, functools.partial(train, mode=mode, epochs=2, **keys), mode, sampler), plain)
    for result in on_ranks(3, functools.partial(words, mode=mode, **keys), mode, sampler):
        filled = result["fetched"] + result["saved"] - result["remote"]
        assert result["saved"] > 0
        assert 0 < result["rate"] < 1
        assert 0 <= filled <= 8 * (2 if cache == "exact" else 1), "rows fetched ahead"
        if cache in ("lru", "exact"):
            assert result["fetched"] <= result["remote"]


@pytest.mark.slow
def test_a_cache_of_all_rows_fetches_each_row_once() -> None:
    keys = {"cache": "lru", "cache_rows": GRAPH.num_nodes, "epochs": 4}
    for result in on_ranks(3, functools.partial(words, mode="partitioned", **keys), "partitioned", FullSampler()):
        assert result["fetched"] <= GRAPH.num_nodes < result["remote"]


@pytest.mark.slow
@few("cache", ["none", "lru", "exact"], ["none", "exact"])
def test_an_epoch_goes_on_from_any_step_to_the_bit(cache: str) -> None:
    def work(worker: Worker) -> None:
        module, strategy = made("gcn"), IndividualSample(batch_size=2, topology="partitioned", cache=cache)
        strategy.setup(worker, module)
        all_batches = [step(batch, module) for batch in strategy.batches(1)]
        broken = strategy.batches(1)
        next(broken)
        broken.close()  # batches made ahead are dropped, on all ranks alike
        for first in (0, 1, len(all_batches) - 1, len(all_batches)):
            again = [step(batch, module) for batch in strategy.batches(1, first)]
            assert_same(again, all_batches[first:])
        strategy.close()

    on_ranks(3, work, "partitioned", NeighborSampler([3, 2]))


def test_an_error_on_one_rank_reaches_the_training_thread_of_all() -> None:
    class Broken(NeighborSampler):
        def native(self) -> Any:
            if self.fails:
                raise RuntimeError("no draws today")
            return super().native()

        fails = False

    def work(worker: Worker) -> None:
        strategy = IndividualSample(batch_size=4, topology="partitioned")
        strategy.setup(worker, made("sage"))
        assert isinstance(strategy.sampled, FetchedBatches)
        strategy.sampled.draws._frontier.sampler.fails = worker.comm.rank == 1  # type: ignore[attr-defined]
        list(strategy.batches(0))

    with pytest.raises(RuntimeError, match="no draws today"):
        on_ranks(3, work, "partitioned", Broken([3, 2]))


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "keys,sampler",
    [
        ({"topology": "partitioned", "cache": "lru"}, LaborSampler([3, 3], redraw=True)),
        ({"topology": "partitioned", "cache": "lru"}, NeighborSampler([5, 5], threads=1)),
        ({"features": "partitioned", "cache": "exact"}, None),
    ],
    default=1,
)
def test_the_promises_of_strategies_hold(keys: dict[str, Any], sampler: Sampler | None) -> None:
    check_strategy(lambda: IndividualSample(batch_size=3, cache_rows=5, **keys), sampler=sampler)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"topology": "replicated"}, r"^strategy\.topology=replicated is not supported: all workers"),
        ({"topology": "split"}, r"^strategy\.topology=split is not known: there are: partitioned, shared"),
        ({"features": "split"}, r"^strategy\.features=split is not known"),
        ({"topology": "partitioned", "features": "shared"}, r"^strategy\.features=shared with strategy\.topology=part"),
        ({"topology": "partitioned", "batching": "balanced"}, r"^strategy\.options\.batching=balanced with"),
        ({"cache": "lru"}, r"^strategy\.cache=lru keeps rows of other workers: use strategy\.features=partitioned"),
        ({"features": "partitioned", "cache": "fifo"}, r"^strategy\.cache=fifo is not known"),
        ({"features": "partitioned", "cache_rows": 4}, r"^strategy\.options\.cache_rows=4 needs a strategy\.cache"),
        ({"features": "partitioned", "cache": "lru", "cache_rows": 0}, r"^strategy\.options\.cache_rows=0 must be"),
    ],
)
def test_bad_choices_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IndividualSample(**keys)


def test_a_sampler_that_reads_other_nodes_is_refused_before_ranks_start() -> None:
    strategy = IndividualSample(topology="partitioned")
    with pytest.raises(UserError, match="sampler=balanced draws from more than the in-edges of one node"):
        strategy.check(BalancedSampler([3, 2]), 2)
    IndividualSample(features="partitioned").check(BalancedSampler([3, 2]), 2)


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "comm,keys,nodes",
    [
        ("threads", {"topology": "partitioned", "cache": "vip"}, "hash"),
        ("gloo", {"topology": "partitioned", "cache": "lru"}, "random"),
        ("threads", {"features": "partitioned", "cache": "exact"}, "contiguous"),
    ],
    default=1,
)
def test_whole_runs_are_those_of_a_shared_graph(tmp_path: Path, comm: str, keys: dict[str, Any], nodes: str) -> None:
    def run(name: str, **more: Any) -> Any:
        return gnnkit.train(
            GRAPH,
            strategy={"name": "individual_sample", "batch_size": 3} | more,
            model="gcn",
            types="ignore",
            comm=comm,
            workers=3,
            trainer={"max_epochs": 2},
            overrides=["sampler.fanouts=[4,4]", f"partition={nodes}"],
            report=False,
            logger="none",
            folder=tmp_path / name,
        )

    result, reference = run("found", **keys), run("expected")
    assert result["train_loss"] == reference["train_loss"]
    assert result["test_accuracy"] == reference["test_accuracy"]
    assert result["words_fetched"] > 0 == reference["words_fetched"]
    assert max(result["cache_hits"]["rate"]) > 0
    assert result["inexact"] == reference["inexact"]
    assert all("approximate" in reason for reason in result["inexact"])  # batches are, and nothing else is


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"topology": "partitioned"}, {"features": "partitioned"}], ids=["both", "features"])
def test_whole_runs_are_verified(tmp_path: Path, keys: dict[str, Any]) -> None:
    result = gnnkit.train(
        GRAPH,
        strategy={"name": "individual_sample", "batch_size": 3} | keys,
        model="sage",
        types="ignore",
        comm="gloo",
        workers=3,
        overrides=["job=verify", "sampler.fanouts=[4,4]"],
        folder=tmp_path / "run",
    )
    assert result["verified"], dict(result)
    assert result["reference"].startswith("one rank")


def test_a_strategy_says_which_data_it_reads() -> None:
    shared, mixed = IndividualSample(), IndividualSample(features="partitioned")
    apart: ExecutionStrategy = IndividualSample(topology="partitioned")
    assert [(each.reads.graph, each.reads.from_owners) for each in (shared, mixed, apart)] == [
        (True, False),
        (True, True),
        (False, True),
    ]
    assert (GRAPH.split == Split.TRAIN).any()


class TwiceOwned(IndividualSample):
    """Each rank's own training nodes, in an order that depends on the epoch, twice."""

    def seeds(self, worker: Worker, epoch: int) -> Ids:
        nodes = np.roll(worker.owned[worker.shard.split == Split.TRAIN], epoch)
        return np.concatenate([nodes, nodes])


def chosen(worker: Worker, mode: str) -> tuple[list[Tensor], list[Tensor]]:
    """Two epochs' losses and gradients, and the rows of the loss."""
    module, strategy = made("gine"), TwiceOwned(batch_size=2, **KEYS[mode])
    strategy.check(worker.sampler, 2)
    strategy.setup(worker, module)
    batches = [[*strategy.batches(epoch)] for epoch in range(2)]
    parts = [step(batch, module) for epoch in batches for batch in epoch]
    resumed = next(strategy.batches(1, len(batches[1]) - 1))
    assert torch.equal(parts[-1], step(resumed, module)), "resumes in an epoch"
    strategy.close()
    return parts, [torch.tensor([len(batch.rows), batch.total]) for epoch in batches for batch in epoch]


@pytest.mark.slow
def test_seeds_that_a_strategy_chooses_are_the_same_wherever_rows_are_stored() -> None:
    sampler, partition = NeighborSampler([3, 2]), "one owns nothing"
    results = {
        mode: on_ranks(4, functools.partial(chosen, mode=mode), mode, sampler, partition)
        for mode in ("shared", "features", "partitioned")
    }
    for mode in ("features", "partitioned"):
        assert_same(
            [torch.stack(part) for part, _ in results[mode]], [torch.stack(part) for part, _ in results["shared"]]
        )
    counts = torch.stack([torch.stack(rows) for _, rows in results["shared"]])  # [ranks, steps, 2]
    assert torch.equal(counts[..., 0].sum(0), counts[0, :, 1]), "the total is that of all ranks"
    assert counts[..., 0].sum() == 4 * (GRAPH.split == Split.TRAIN).sum(), "each twice in each of two epochs"
    assert counts[..., 0].max() <= 2
    assert (counts[..., 0].sum(1) == 0).sum() == 1, "a rank without seeds takes part"


def test_wrong_seeds_of_a_strategy_are_refused() -> None:
    def fail(worker: Worker, seeds: Any) -> None:
        strategy = type("Wrong", (IndividualSample,), {"seeds": lambda self, worker, epoch: seeds})()
        strategy.setup(worker, made("sage"))
        next(iter(strategy.batches(0)))

    train_nodes = np.flatnonzero(GRAPH.split == Split.TRAIN)
    for seeds, message in (
        (np.flatnonzero(GRAPH.split == Split.TEST)[:1], "not training nodes"),
        ([GRAPH.num_nodes], "not training nodes"),
        (train_nodes[[0, 0]], "twice in one step"),
        ([0.5], "seeds"),
        (train_nodes[:0], "no node on any rank in epoch 0"),
    ):
        with pytest.raises(UserError, match=message):
            on_ranks(1, functools.partial(fail, seeds=seeds), "shared", NeighborSampler([3, 2]))
    with pytest.raises(UserError, match=r"strategy\.options\.batching=balanced: this strategy chooses the seeds"):
        TwiceOwned(batching="balanced")
    assert "chooses the nodes" in str(TwiceOwned().lacks(EdgeTask))
    assert TwiceOwned().on_one_rank(2, NeighborSampler([3, 2])) is None
