"""Edges to predict: never read by the step that predicts them, equal to one process."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import WIDTH, check_graph
from safetensors import safe_open
from torch import Tensor, nn
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.engine import BlockAdjacency, Engine, ShardAdjacency, derive
from gnnkit.errors import UserError
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import Block, Graph, Ids
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid
from gnnkit.sampler import ClusterSampler, FullSampler, MetropolisHastingsSampler, NeighborSampler
from gnnkit.sampler.links import Links, codes, links_of, load_rows, pair_codes, pairs_of, without_pairs
from gnnkit.strategy import Batch, ExecutionStrategy, Worker, seeds
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.decoder import dot
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.link_split import with_edges
from gnnkit.task.ranking import ranking
from gnnkit.testing import check_task
from gnnkit.training.step import loss_part
from tests.cases import few
from tests.models import MODELS
from tests.runs import BARE
from tests.task.steps import make_workers, run_steps
from tests.turns import turns

TASK = LinkPrediction(width=6, negatives=2, eval_negatives=7)
GIVEN = check_graph(48).symmetrize()
GRAPH, LINKS = TASK.prepare(GIVEN)
GRIDS = (Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2))
assert LINKS is not None


def make_model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name](WIDTH, 6, hidden=4, dropout=0.3).double()


@functools.cache
def on_grid(name: str, grid: Grid) -> Tensor:
    """Returns loss and gradient of each step of full-graph training."""
    workers = make_workers(GRAPH, grid, whole=False, rows=LINKS)
    return run_steps(VertexCentric(), TASK, make_model(name), workers, grid.world_size)


@pytest.mark.slow
@turns(name=list(MODELS), grid=GRIDS)
def test_full_graph_ranks_compute_together_what_one_process_computes(name: str, grid: Grid) -> None:
    torch.testing.assert_close(on_grid(name, grid), on_grid(name, Grid(1, 1, 1)), rtol=1e-10, atol=1e-10)


@few("name", ["gcn", pytest.param("gat", marks=pytest.mark.slow)], ["gcn"])
def test_sampling_ranks_compute_together_what_one_process_computes(name: str) -> None:
    model, sampler = make_model(name), NeighborSampler([3, 3], threads=1)
    for ranks in (1, 3):
        strategy = IndividualSample(batch_size=24)
        alone = strategy.on_one_rank(ranks, sampler)
        assert alone is not None
        many, one = (
            make_workers(GRAPH, Grid(count, 1, 1), whole=True, sampler=sampler, rows=LINKS) for count in (ranks, 1)
        )
        actual = run_steps(strategy, TASK, model, many, ranks)
        torch.testing.assert_close(actual, run_steps(alone, TASK, model, one, 1), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vertex_centric", "individual_sample"])
def test_parameters_of_a_decoder_have_on_several_ranks_the_gradients_of_one_process(kind: str) -> None:
    is_whole, model, ranks = kind == "individual_sample", make_model("sage"), 3
    task = LinkPrediction(width=6, negatives=2, decoder="mlp")
    sampler = NeighborSampler([3, 3], threads=1) if is_whole else None
    strategy: ExecutionStrategy = IndividualSample(batch_size=12) if is_whole else VertexCentric()
    alone = strategy.on_one_rank(ranks, sampler)
    assert alone is not None
    many, one = (
        make_workers(GRAPH, Grid(count, 1, 1), whole=is_whole, sampler=sampler, rows=LINKS) for count in (ranks, 1)
    )
    actual = run_steps(strategy, task, model, many, ranks)
    torch.testing.assert_close(actual, run_steps(alone, task, model, one, 1), rtol=1e-10, atol=1e-10)
    head = task.head()
    assert head is not None
    of_head = actual[:, -sum(parameter.numel() for parameter in head.parameters()) :]
    assert (of_head.abs().sum(0) > 0).double().mean() > 0.8


@pytest.mark.slow
def test_a_decoder_with_parameters_keeps_the_promises_of_tasks() -> None:
    check_task(lambda: LinkPrediction(width=6, eval_negatives=7, decoder="mlp"))


def test_the_score_of_a_decoder_is_that_of_the_reverse_pair_and_not_the_dot_product() -> None:
    task, pairs = LinkPrediction(width=6, decoder="mlp"), torch.randn(5, 2, 6)
    torch.testing.assert_close(task.score(pairs), task.score(pairs.flip(1)))
    assert not torch.allclose(task.score(pairs), dot(pairs))
    assert LinkPrediction(width=6).head() is None


@pytest.mark.slow
@pytest.mark.parametrize("halo", ["none", "one_hop"])
@pytest.mark.parametrize("degrees", ["global", "local"])
def test_shares_predict_their_own_edges_and_count_those_of_all_ranks(halo: str, degrees: str) -> None:
    for ranks in (1, 3):
        workers = make_workers(GRAPH, Grid(ranks, 1, 1), whole=True, rows=LINKS)
        batches: list[Batch] = []
        strategy = PresetWorkload(halo=halo, degrees=degrees)
        actual = run_steps(strategy, TASK, make_model("sage"), workers, ranks, batches.append)
        again = run_steps(strategy, TASK, make_model("sage"), workers, ranks)
        torch.testing.assert_close(actual, again, rtol=0, atol=1e-12)
        totals = sorted({batch.total for batch in batches})
        assert sum(len(batch.rows) for batch in batches) == sum(totals)
        positives = [positive_ends(batch) for batch in batches]
        for batch, ends in zip(batches, positives, strict=True):
            assert not np.isin(pair_codes(ends, 48), pair_codes(edges_read(batch), 48)).any()
            assert (batch.adjacencies[-1].src_nodes[batch.rows] >= 0).all()
        if halo == "one_hop":  # no edge is lost, and none is predicted twice
            all_batches: list[Batch] = []
            one = make_workers(GRAPH, Grid(1, 1, 1), whole=True, rows=LINKS)
            run_steps(strategy, TASK, make_model("sage"), one, 1, all_batches.append)
            several = np.sort(codes(np.concatenate(positives), 48))
            np.testing.assert_array_equal(
                several, np.sort(codes(np.concatenate([positive_ends(batch) for batch in all_batches]), 48))
            )


def positive_ends(batch: Batch) -> Ids:  # [k, 2]
    """Returns the edges that a batch predicts."""
    last = batch.adjacencies[-1]
    ends = batch.outputs(last.src_nodes[: last.num_dst, None].double())[:, :, 0].long()
    return np.asarray(ends[batch.labels == 1].numpy())


def edges_read(batch: Batch) -> Ids:  # [num_edges, 2]
    """Returns the edges that the layers of a batch read, without added loops."""
    results = []
    for adjacency in batch.adjacencies:
        if isinstance(adjacency, ShardAdjacency):
            shard = adjacency.engine.shard
            destinations = np.repeat(shard.targets, np.diff(shard.csc.indptr))
            results.append(np.stack([shard.sources[shard.csc.indices], destinations], 1))
        else:
            assert isinstance(adjacency, BlockAdjacency)
            graph = adjacency.rank_graph.edge_index
            results.append(adjacency.src_nodes[graph.T].numpy())
    return np.concatenate(results)


@pytest.mark.slow
@turns(kind=["vertex_centric", "individual_sample"], name=["gcn", "gat"])
def test_no_layer_reads_an_edge_that_its_step_predicts_or_one_held_out(name: str, kind: str) -> None:
    assert LINKS is not None
    is_whole = kind == "individual_sample"
    strategy: ExecutionStrategy = IndividualSample(batch_size=12) if is_whole else VertexCentric()
    sampler = FullSampler() if is_whole else None
    workers = make_workers(GRAPH, Grid(1, 1, 1), whole=is_whole, sampler=sampler, rows=LINKS)
    held = pair_codes(np.concatenate([LINKS.val.pairs, LINKS.test.pairs]), 48)
    predicted_edges: list[int] = []

    def look(batch: Batch) -> None:
        positive = positive_ends(batch)
        read = pair_codes(edges_read(batch), 48)
        assert not np.isin(pair_codes(positive, 48), read).any()
        assert not np.isin(held, read).any()
        assert np.isin(codes(positive, 48), codes(pairs_of(GRAPH.csc), 48)).all()
        predicted_edges.append(len(positive))

    run_steps(strategy, TASK, make_model(name), workers, 1, look)
    pairs = pairs_of(GRAPH.csc)
    if is_whole:  # every edge once in an epoch
        assert sum(predicted_edges) == 2 * int((pairs[:, 0] != pairs[:, 1]).sum())
    else:
        assert 0.1 < np.mean(predicted_edges) / len(pairs) < 0.5


@pytest.mark.slow
@few("name", ["gcn", "sage", "sage-max", "gat", "gine"], ["gcn", "sage-max", "gine"])
def test_leaving_out_held_edges_is_the_graph_without_them(name: str) -> None:
    model = make_model(name).eval()
    taken = pair_codes(pairs_of(GRAPH.csc), 48) % 3 == 0
    less = with_edges(GRAPH, np.flatnonzero(~taken))

    def out(graph: Graph, grid: Grid, kept: bool) -> Tensor:
        workers = make_workers(graph, grid, whole=False)

        def work(comm: Threads) -> tuple[Ids, Tensor]:
            worker, replica = workers(comm), copy.deepcopy(model)
            engine: Engine = worker.engine(replica)
            if kept:
                shard = engine.shard
                destinations = np.repeat(shard.targets, np.diff(shard.csc.indptr))
                pairs = np.stack([shard.sources[shard.csc.indices], destinations], 1)
                loops = shard.edge_ids >= GRAPH.num_edges
                engine = engine.select_edges(np.flatnonzero((pair_codes(pairs, 48) % 3 != 0) | loops))
            with torch.no_grad():
                adjacencies = ShardAdjacency.layers(engine, 2, 0)
                return worker.owned, replica(worker.features.rows(worker.owned), adjacencies)

        parts = Threads.run(work, grid.world_size)
        order = np.argsort(np.concatenate([nodes for nodes, _ in parts]))
        return torch.cat([rows for _, rows in parts])[order]

    reference = out(less, Grid(1, 1, 1), False)
    if name in ("gat", "gine"):  # added loops have the mean features of all in-edges
        reference = out(GRAPH, Grid(1, 1, 1), True)
    for grid in (Grid(1, 1, 1), *GRIDS):
        torch.testing.assert_close(out(GRAPH, grid, True), reference, rtol=1e-10, atol=1e-10, msg=f"{name} on {grid}")


def train_scores(worker: Worker, task: LinkPrediction, strategy: ExecutionStrategy) -> dict[str, float]:
    """Trains, and returns the last epoch's loss and ROC AUC, and the validation's."""
    torch.manual_seed(0)
    model = GraphSAGE(16, task.width, num_layers=1, dropout=0.0).double()
    strategy.setup(worker, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for epoch in range(8):
        losses, scores, labels = [], [], []
        for batch in strategy.batches(epoch):
            optimizer.zero_grad()
            out = model(batch.x, batch.adjacencies)
            loss = loss_part(task, out, batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            scores.append(dot(batch.outputs(out.detach())).sigmoid())
            labels.append(batch.labels.long())
    strategy.close()
    with torch.no_grad():
        outputs = Evaluation.of(worker, model, 100.0).logits(model)
    train = float(binary_auroc(torch.cat(scores), torch.cat(labels)))
    return {"loss": float(np.mean(losses)), "train": train, "val": task.measure(outputs, worker)["val_roc_auc"]}


SERVING: dict[str, ExecutionStrategy] = {
    "shared": IndividualSample(batch_size=400),
    "features apart": IndividualSample(batch_size=400, features="partitioned"),
    "topology apart": IndividualSample(batch_size=400, topology="partitioned"),
    "cooperative": JointSample(batch_size=400),
}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", SERVING)
def test_a_planted_leak_looks_much_better_in_training_and_the_honest_batches_do_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges and features are random, so that only a leak can tell edges from others."""
    strategy = SERVING[name]
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 1200, (2, 1500))
    task = LinkPrediction(width=16, val_share=0.2, eval_negatives=1)
    features = rng.normal(size=(1200, 16))
    graph, links = task.prepare(Graph.from_edges(src, dst, 1200, features=features).symmetrize())
    assert links is not None
    reads = {"whole": strategy.reads.graph, "features": not strategy.reads.from_owners}
    workers = make_workers(graph, Grid(1, 1, 1), sampler=FullSampler(num_hops=1), rows=links, **reads)
    (honest,) = Threads.run(lambda comm: train_scores(workers(comm), task, copy.copy(strategy)), 1)
    monkeypatch.setattr(seeds, "without_pairs", lambda block, *_: block)
    (leaking,) = Threads.run(lambda comm: train_scores(workers(comm), task, copy.copy(strategy)), 1)
    assert leaking["train"] - leaking["val"] > 0.25
    assert leaking["loss"] < honest["loss"] - 0.15
    assert abs(honest["train"] - honest["val"]) < 0.1


def test_edges_that_are_left_out_change_no_weight_of_the_others() -> None:
    block = Block(np.array([0, 3, 4]), np.array([1, 2, 0, 0]), np.array([5, 7, 9]), np.array([10, 11, 12, 13]))
    actual = without_pairs(block, np.array([6, 1]), np.sort(pair_codes(np.array([[7, 5]]), 20)), 20)
    np.testing.assert_array_equal(actual.indptr, [0, 2, 2])  # 7 -> 5 and 5 -> 7 are gone
    np.testing.assert_array_equal(actual.indices, [2, 0])
    np.testing.assert_array_equal(actual.edge_ids, [11, 12])
    np.testing.assert_array_equal(actual.weight, [2.0, 2.0])  # 3 of 6 were drawn


def test_an_edge_and_its_reverse_edge_are_held_out_together() -> None:
    assert LINKS is not None
    parts = [pair_codes(pairs, 48) for pairs in (pairs_of(GRAPH.csc), LINKS.val.pairs, LINKS.test.pairs)]
    for i in range(3):
        for j in range(i):
            loops = pairs_of(GRAPH.csc)[:, 0] == pairs_of(GRAPH.csc)[:, 1]
            assert not np.isin(parts[i], parts[j][~loops] if j == 0 else parts[j]).any()
    assert len(LINKS.val) > 0
    assert sum(map(len, parts)) == GIVEN.num_edges
    assert GRAPH.csc.weight is not None
    assert GRAPH.edge_positions is not None
    again, links = LinkPrediction(width=6, negatives=2, eval_negatives=7).prepare(GIVEN)
    np.testing.assert_array_equal(again.csc.indices, GRAPH.csc.indices)
    second, _ = LinkPrediction(seed=1).prepare(GIVEN)
    assert links is not None
    assert not np.array_equal(second.csc.indptr, GRAPH.csc.indptr)


def test_edges_that_the_data_set_names_are_predicted_and_leave_the_graph(tmp_path: Path) -> None:
    pairs = pairs_of(GIVEN.csc)
    proper = pairs[pairs[:, 0] < pairs[:, 1]]
    missing = np.array([[3, 4]])
    assert not np.isin(pair_codes(missing, 48), pair_codes(pairs, 48)).any()
    val, test = proper[:5], np.concatenate([proper[5:12], missing])  # some are edges of the graph, one is not
    named_graph = dataclasses.replace(GIVEN, val_edges=val, test_edges=test.astype(np.int32))
    named_graph.save(tmp_path / "graph")
    for graph in (named_graph, Graph.load(tmp_path / "graph")):
        less, links = LinkPrediction().prepare(graph)
        assert links is not None
        assert links.given
        np.testing.assert_array_equal(links.val.pairs, val)
        np.testing.assert_array_equal(links.test.pairs, test)
        assert less.test_edges is None
        remaining = pair_codes(pairs_of(less.csc), 48)
        assert not np.isin(pair_codes(np.concatenate([val, test]), 48), remaining).any()
        assert len(remaining) == len(pairs) - 2 * 12
        negatives = links.negative_pairs(np.array([[3, 7]]).repeat(500, 0), np.arange(500), 1, 0, evaluates=True)[:, 0]
        both = np.concatenate([missing, missing[:, ::-1]])  # the graph that trains is undirected
        assert not np.isin(codes(both, 48), codes(negatives, 48)).any()
        check_saved(links, tmp_path / "links")
    _, links = LinkPrediction().prepare(dataclasses.replace(GIVEN, val_edges=val))
    assert links is not None
    assert (len(links.val), len(links.test)) == (5, 0)
    _, links = LinkPrediction().prepare(GIVEN)
    assert links is not None
    assert not links.given
    with pytest.raises(
        UserError, match=r"task.test_share=0.2 has no effect, because the dataset provides val_edges or test_edges"
    ):
        LinkPrediction(test_share=0.2).prepare(named_graph)


def check_saved(links: Links, folder: Path) -> None:
    links.save(folder)
    again = links_of(load_rows(folder))
    assert again.given == links.given
    np.testing.assert_array_equal(again.test.pairs, links.test.pairs)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 1], [2, 48]], r"test_edges\[1, 1\] = 48 is out of range for 48 nodes"),
        ([[-1, 1]], r"test_edges\[0, 0\] = -1 is out of range for 48 nodes"),
        ([0, 1], r"test_edges has shape \[2\], expected rows of source and destination"),
        ([[0.5, 1]], "test_edges has dtype float64, expected integers"),
    ],
)
def test_edges_to_predict_that_are_no_pairs_of_nodes_are_refused(edges: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(GIVEN, test_edges=np.array(edges))


@pytest.mark.slow
def test_an_npz_file_names_edges_to_predict_and_the_result_says_so(tmp_path: Path) -> None:
    csc, masks = GIVEN.csc, {f"{name}_mask": np.ones(48, bool) & (name == "train") for name in ("train", "val", "test")}
    pairs = pairs_of(csc)
    test = pairs[pairs[:, 0] < pairs[:, 1]][:6]
    arrays = {"indptr": csc.indptr, "indices": csc.indices, "x": GIVEN.features, "y": np.zeros(48, np.int64), **masks}
    for split, named in (("data set", {"test_edges": test}), ("drawn", {})):
        np.savez(tmp_path / "graph.npz", **arrays, **named)
        folder = tmp_path / split
        result = gnnkit.train(
            dataset={"name": "npz", "root": str(tmp_path / "graph.npz")},
            strategy="vertex_centric",
            task={"name": "link_prediction", "width": 4, "eval_negatives": 3},
            workers=2,
            comm="threads",
            trainer={"max_epochs": 1},
            report=False,
            logger="none",
            folder=folder,
        )
        assert result["edge_split"] == split
        predictions = np.load(folder / "predictions.npy")[:, :2]
        assert np.array_equal(predictions, test) == (split == "data set")


def test_shares_of_held_out_edges_are_as_asked_for() -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(0, 3000, (2, 20_000)), 3000)
    _, links = LinkPrediction(val_share=0.1, test_share=0.2).prepare(graph)
    assert links is not None
    assert len(links.val) / 20_000 == pytest.approx(0.1, abs=0.01)
    assert len(links.test) / 20_000 == pytest.approx(0.2, abs=0.01)


def test_negative_pairs_are_no_edges_and_change_either_end() -> None:
    assert LINKS is not None
    pairs = pairs_of(GRAPH.csc)
    actual = LINKS.negative_pairs(pairs, np.arange(len(pairs)), 5, key=4)
    flat = actual.reshape(-1, 2)
    assert not np.isin(codes(flat, 48), codes(pairs, 48)).any()
    assert (flat[:, 0] != flat[:, 1]).all()
    is_kept = actual == pairs[:, None]
    assert is_kept.any(2).all()
    assert 0.4 < is_kept[:, :, 0].mean() < 0.6
    part = np.arange(0, len(pairs), 3)
    np.testing.assert_array_equal(LINKS.negative_pairs(pairs[part], part, 5, key=4), actual[part])
    assert not np.array_equal(LINKS.negative_pairs(pairs, np.arange(len(pairs)), 5, key=5), actual)
    assert len(np.unique(flat[:, 1])) > 30


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [{"name": "individual_sample", "batch_size": 4000}, "vertex_centric"])
def test_a_model_that_memorises_a_random_graph_has_no_skill_on_held_out_edges(strategy: Any, tmp_path: Path) -> None:
    """Only negatives that avoid held-out edges could show where these are."""
    pairs = np.argwhere(np.triu(np.random.default_rng(0).random((60, 60)) < 0.9, 1))
    result = gnnkit.train(
        Graph.from_edges(*pairs.T, 60, features=np.eye(60, dtype=np.float32)).symmetrize(),
        strategy=strategy,
        **({"sampler": "full"} if isinstance(strategy, dict) else {}),
        task={"name": "link_prediction", "width": 32, "negatives": 5, "eval_negatives": 20}
        | {"val_share": 0.1, "test_share": 0.1},
        model={"name": "sage", "num_layers": 1, "dropout": 0.0},
        workers=1,
        comm="threads",
        trainer={"max_epochs": 40, "lr": 0.03, "check_val_every_n_epoch": 40},
        report=False,
        logger="none",
        folder=tmp_path / "run",
    )
    assert 0.4 < result["test_roc_auc"] < 0.65


def test_a_graph_without_pairs_to_compare_with_is_refused_unless_negatives_may_be_edges() -> None:
    src, dst = np.nonzero(~np.eye(6, dtype=bool))
    complete, nearly = Graph.from_edges(src, dst, 6), Graph.from_edges(src[1:], dst[1:], 6)
    with pytest.raises(UserError, match=r"each of the 6 nodes has an edge to every other node.*task.filtered=false"):
        LinkPrediction().prepare(complete)
    _, links = LinkPrediction().prepare(nearly)
    assert links is not None
    actual = links.negative_pairs(pairs_of(nearly.csc), np.arange(29), 3, key=0, evaluates=True)
    assert (actual == [src[0], dst[0]]).all()  # the one pair without an edge
    among = (pairs_of(nearly.csc)[:1], np.arange(1), 4, 0, np.array([3, 4]))
    with pytest.raises(
        UserError,
        match=r"task.eval_negatives=4: no pair without an edge was found for the edge \[\d, \d\].*filtered=false",
    ):
        links.negative_pairs(*among, evaluates=True)
    _, links = LinkPrediction(filtered=False).prepare(complete)
    assert links is not None
    assert links.negative_pairs(pairs_of(complete.csc), np.arange(30), 3, key=0).shape == (30, 3, 2)


def test_figures_are_those_of_all_scores_by_hand() -> None:
    assert LINKS is not None
    out = torch.randn(48, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ranks in (1, 3):
        workers = make_workers(GRAPH, Grid(ranks, 1, 1), whole=False, rows=LINKS)
        results = Threads.run(lambda comm: TASK.measure(out[workers(comm).owned], workers(comm)), ranks)  # noqa: B023
        assert all(figures == results[0] for figures in results)
        assert set(results[0]) == {f"{split}_{name}" for split in TASK.splits for name in TASK.metrics}
        for index, (split, pairs) in enumerate((("val", LINKS.val.pairs), ("test", LINKS.test.pairs))):
            negative = LINKS.negative_pairs(pairs, np.arange(len(pairs)), 7, derive(LINKS.seed, index), evaluates=True)
            scores = np.array(
                [
                    [float(out[u] @ out[v]) for u, v in [pair, *others]]
                    for pair, others in zip(pairs, negative, strict=True)
                ]
            )
            places = 1 + (scores[:, 1:] > scores[:, :1]).sum(1)
            assert results[0][f"{split}_mrr"] == pytest.approx((1 / places).mean())
            assert results[0][f"{split}_hits_3"] == pytest.approx((places <= 3).mean())
            flat, is_target = torch.tensor(scores).flatten(), (torch.arange(scores.size) % 8 == 0).long()
            chances = torch.sigmoid(flat)
            assert results[0][f"{split}_roc_auc"] == pytest.approx(float(binary_auroc(chances, is_target)), abs=1e-6)
            reference = float(binary_average_precision(chances, is_target))
            assert results[0][f"{split}_average_precision"] == pytest.approx(reference, abs=1e-6)


@pytest.mark.parametrize("negatives", [1, 4, 100])
def test_scores_that_are_all_equal_are_doubted(negatives: int) -> None:
    task = LinkPrediction(eval_negatives=negatives)
    tied = {f"test_{name}": value for name, value in ranking(torch.zeros(7, 1 + negatives)).items()}
    assert (
        "the scores of all pairs are equal, with an edge or without (test_roc_auc=0.500)"
        in task.score_warnings(tied)[0]
    )
    scores = torch.zeros(7, 1 + negatives)
    scores[0, 0], scores[1, 0] = 1, -1
    assert task.score_warnings({f"test_{name}": value for name, value in ranking(scores).items()}) == []
    assert task.score_warnings({}) == []


@pytest.mark.parametrize("column", [0, 3])
def test_a_score_of_nan_makes_every_figure_nan(column: int) -> None:
    scores = torch.rand(50, 6)
    scores[7, column] = torch.nan
    actual = ranking(scores)
    assert len(actual) == 6
    assert np.isnan(list(actual.values())).all()
    assert LinkPrediction().score_warnings({f"test_{name}": value for name, value in actual.items()}) == []


def test_of_equal_scores_half_count_and_large_scores_stay_apart() -> None:
    actual = ranking(torch.tensor([[1.0, 1.0, 0.0], [500.0, 400.0, 400.0]], dtype=torch.float64))
    assert actual["mrr"] == pytest.approx((1 / 1.5 + 1) / 2)
    assert actual["hits_1"] == 0.5
    pairs = [(1.0, 1.0), (1.0, 0.0), (1.0, 400.0), (1.0, 400.0), *[(500.0, x) for x in (1.0, 0.0, 400.0, 400.0)]]
    reference = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    assert actual["roc_auc"] == pytest.approx(reference)


@pytest.mark.parametrize(
    ("keys", "strategy", "message"),
    [
        ({}, PresetWorkload(exchange_every=1), "task=link_prediction: strategy.exchange_every reads edges .* leave"),
        (
            {},
            VertexCentric(exchange=Quantized()),
            "exchange=quantized: rows .* choose exchange=exact",
        ),
        ({}, VertexCentric(local_iterations=2), "strategy.local_iterations above 1: rows"),
        (
            {},
            IndividualSample(batching="balanced"),
            "strategy.options.batching=balanced evens out .* remove the option",
        ),
    ],
)
def test_strategies_that_cannot_serve_are_refused(
    keys: dict[str, Any], strategy: ExecutionStrategy, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        LinkPrediction(**keys).check(strategy, None)
    LinkPrediction().check(VertexCentric(), None)
    LinkPrediction().check(PresetWorkload(average="parameters"), None)


def test_samplers_that_read_more_than_in_edges_are_refused() -> None:
    for sampler in (MetropolisHastingsSampler([3]), ClusterSampler(np.zeros(48, np.int64))):
        with pytest.raises(UserError, match=f"{type(sampler).__name__} reads more than the sampled in-edges"):
            TASK.check(IndividualSample(), sampler)


def test_a_graph_without_edges_that_train_is_refused() -> None:
    with pytest.raises(UserError, match="task=link_prediction: the dataset has no training edges"):
        TASK.prepare(Graph.from_edges([0, 1], [0, 1], 2))
    with pytest.raises(UserError, match="leave no training edges"):
        LinkPrediction(val_share=0.5, test_share=0.5)


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "decoder,keys",
    [
        ("mlp", {"strategy": "vertex_centric", "workers": 2}),
        ("dot", {"strategy": "vertex_centric", "partition": "2d", "workers": 4}),
        ("mlp", {"strategy": "individual_sample", "sampler": {"name": "neighbor", "fanouts": [3, 3]}, "workers": 2}),
    ],
    default=1,
)
def test_a_run_predicts_edges_and_equals_one_process(decoder: str, keys: dict[str, Any], tmp_path: Path) -> None:
    graph = check_graph(60)
    task = {"name": "link_prediction", "width": 8, "eval_negatives": 5, "decoder": decoder}
    keys = {"task": task, "comm": "threads", "types": "ignore", **keys}
    folder = tmp_path / "run"
    trainer = {"max_epochs": 2, "check_val_every_n_epoch": 1, "checkpoint": True}
    result = gnnkit.train(graph, trainer=trainer, folder=folder, report=False, logger="none", **keys)
    assert {f"{split}_{metric}" for split in LinkPrediction.splits for metric in LinkPrediction.metrics} <= set(result)
    is_sampled = result["strategy"] != "vertex_centric"  # its batches are approximate, and nothing else is
    assert (result["exact"], bool(result["inexact"])) == (not is_sampled, is_sampled)
    assert all("approximate" in reason for reason in result["inexact"])
    _, links = LinkPrediction(width=8, eval_negatives=5).prepare(graph)
    assert links is not None
    rows = np.load(folder / "predictions.npy")
    np.testing.assert_array_equal(rows[:, :2], links.test.pairs)
    assert np.isfinite(rows[:, 2]).all()
    files = list(folder.rglob("*.safetensors"))
    assert len(files) == 2  # checkpoint and model
    for path in files:
        with safe_open(path, "pt") as tensors:
            assert any("task_head" in name for name in tensors.keys()) == (decoder == "mlp")  # noqa: SIM118 - no mapping
    tested = gnnkit.predict(folder, graph, job="test", folder=tmp_path / "test", comm="threads")
    assert tested["test_mrr"] == pytest.approx(result["test_mrr"], rel=1e-6)
    assert hasattr(gnnkit.load(folder), "task_head") == (decoder == "mlp")
    verification = gnnkit.train(graph, job="verify", folder=tmp_path / "verify", **keys)
    assert verification["verified"], verification
    assert verification["reference"] == "one rank with the whole graph"


class Own(L.LightningModule):
    """A model of a user, with a loss of its own."""

    num_layers = 2

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.gcn = GCN(in_features, num_classes, hidden=5)

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        return self.gcn(x, adjacencies)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        ends = batch.outputs(self(batch.x, batch.adjacencies))
        scores = (ends[:, 0] * ends[:, 1]).sum(1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum")
        return loss / batch.total


OF_EDGES: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "types": "ignore", **BARE}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_of_ones_own_reads_pairs(tmp_path: Path) -> None:
    """`batch.outputs` brings both ends, from other ranks too."""
    keys = {**OF_EDGES, "task": "link_prediction"}
    runs = [
        gnnkit.train(
            check_graph(60), model=Own, workers=count, trainer={"max_epochs": 1}, folder=tmp_path / str(count), **keys
        )
        for count in (1, 3)
    ]
    assert runs[0]["train_loss"] == pytest.approx(runs[1]["train_loss"], rel=1e-5)


@pytest.mark.slow
def test_a_step_without_the_parameters_of_the_task_is_refused(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "decoder": "mlp"}
    with pytest.raises(UserError, match="model=Own defines training_step, which ignores the task's parameters"):
        gnnkit.train(check_graph(60), model=Own, task=task, folder=tmp_path / "run", **OF_EDGES)
