"""Losses over an edge and its negative pairs, and negatives by popularity."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gnnkit.model.rgcn import RGCN
from gnnkit.partition import Grid
from gnnkit.sampler import NeighborSampler
from gnnkit.sampler.links import Links, codes, links_of, load_rows, pairs_of
from gnnkit.strategy import ExecutionStrategy
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.decoder import PairDots, dot
from gnnkit.task.link_prediction import LinkPrediction, link_losses
from gnnkit.task.link_split import repeat_by_popularity
from tests.graphs import shop
from tests.task.steps import make_workers, run_steps
from tests.turns import turns

GRAPH = shop(20, 14, 6, num_buys=90)
NAME = "user-buys-item"


def prepare_links(loss: str = "bpr", sampling: str = "popularity") -> tuple[LinkPrediction, Links]:
    task = LinkPrediction(width=6, negatives=2, relation=NAME, loss=loss, negative_sampling=sampling)
    links = task.prepare(GRAPH)[1]
    assert links is not None
    return task, links


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return RGCN(GRAPH.features.shape[1], 6, GRAPH.num_relations, hidden=4, inverse=False).double()


def test_losses_are_those_of_the_papers() -> None:
    edges, negative = [0.5, -1.0], [[0.2, 0.9], [-3.0, 1.5]]
    scores = torch.tensor([*edges, *negative[0], *negative[1]], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0, 0, 0, 0])
    bpr = [np.mean([-math.log(1 / (1 + math.exp(n - e))) for n in row]) for e, row in zip(edges, negative, strict=True)]
    softmax = [
        -math.log(math.exp(e) / sum(math.exp(x) for x in (e, *row))) for e, row in zip(edges, negative, strict=True)
    ]
    cross = np.mean(
        [math.log(1 + math.exp(-e)) for e in edges] + [math.log(1 + math.exp(n)) for n in np.ravel(negative)]
    )
    for name, mean in (("bpr", np.mean(bpr)), ("softmax", np.mean(softmax)), ("cross_entropy", cross)):
        losses = link_losses(name, scores, labels, 2)
        assert losses.shape == (6,)
        assert losses.sum().item() / 6 == pytest.approx(mean, rel=1e-12), name
        assert link_losses(name, scores[:0], labels[:0], 2).shape == (0,)


@pytest.mark.slow
@turns(
    loss=("bpr", "softmax"),
    kind=("vertex_centric", "individual_sample", "joint_sample"),
    grid=(Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 1, 2)),
)
def test_ranks_compute_the_loss_and_gradient_of_one_process(loss: str, kind: str, grid: Grid) -> None:
    task, links = prepare_links(loss)
    graph = task.prepare(GRAPH)[0]
    sampler = None if kind == "vertex_centric" else NeighborSampler({"default": [3, 3]}, threads=1)
    strategies: dict[str, ExecutionStrategy] = {
        "vertex_centric": VertexCentric(),
        "individual_sample": IndividualSample(batch_size=12),
        "joint_sample": JointSample(batch_size=12),
    }
    grid = grid if sampler is None else Grid(grid.world_size, 1, 1)
    strategy, whole = strategies[kind], sampler is not None
    alone = strategy.on_one_rank(grid.world_size, sampler)
    assert alone is not None
    many, one = (
        make_workers(graph, layout, whole=whole, sampler=sampler, rows=links) for layout in (grid, Grid(1, 1, 1))
    )
    together = run_steps(strategy, task, make_model(), many, grid.world_size)
    torch.testing.assert_close(together, run_steps(alone, task, make_model(), one, 1), rtol=1e-10, atol=1e-10)
    assert together[:, 1:].abs().sum() > 0


def test_popular_items_are_negatives_as_often_as_documented() -> None:
    _, links = prepare_links()
    number = GRAPH.schema.edge_types.index(NAME)
    graph = LinkPrediction(relation=NAME).prepare(GRAPH)[0]
    pairs = pairs_of(graph.csc)[graph.edge_types == number]
    items = GRAPH.schema.nodes("item")
    weights = np.bincount(pairs[:, 1], minlength=GRAPH.num_nodes)[items] ** 0.75
    negatives = links.negative_pairs(pairs, np.arange(len(pairs)), 400, key=3)
    known = set(codes(pairs, GRAPH.num_nodes).tolist())
    assert not known & set(codes(negatives.reshape(-1, 2), GRAPH.num_nodes).tolist())
    reference = np.zeros(len(weights))
    for user, _ in pairs:
        free = np.array(
            [int(item) not in set(pairs[pairs[:, 0] == user, 1].tolist()) for item in range(items.start, items.stop)]
        )
        reference += free * weights / (free * weights).sum() / len(pairs)
    shares = np.bincount(negatives[..., 1].ravel(), minlength=GRAPH.num_nodes)[items] / negatives[..., 1].size
    assert np.abs(shares - reference).max() < 0.01
    assert np.abs(shares - 1 / len(shares)).max() > 0.02  # uniform negatives would differ


def test_evaluation_negatives_stay_uniform_and_a_share_keeps_its_nodes() -> None:
    links, uniform = prepare_links()[1], prepare_links(sampling="uniform")[1]
    pairs, ids = links.val.pairs, np.arange(len(links.val))
    first, second = (each.negative_pairs(pairs, ids, 9, 5, evaluates=True) for each in (links, uniform))
    np.testing.assert_array_equal(first, second)
    items = GRAPH.schema.nodes("item")
    share = np.concatenate([np.arange(20), np.arange(items.start, items.start + 6)])
    negatives = links.negative_pairs(pairs, ids, 9, 5, among=share)
    assert set(negatives[..., 1].ravel().tolist()) <= set(share.tolist())


def test_repetitions_follow_the_power_of_the_number_of_edges() -> None:
    pairs = np.array([[0, 1]] * 1 + [[0, 2]] * 16 + [[0, 3]] * 81)
    counts = np.bincount(repeat_by_popularity(pairs, 5), minlength=5)
    weights = np.array([98, 1, 16, 81, 0]) ** 0.75
    np.testing.assert_array_equal(counts, np.maximum(np.rint(8 * weights / weights.mean()), 1))


def test_popular_nodes_are_saved_with_the_links(tmp_path: Path) -> None:
    _, links = prepare_links()
    links.save(tmp_path / "links")
    loaded_rows = links_of(load_rows(tmp_path / "links"))
    assert loaded_rows.training.popular is not None
    assert links.training.popular is not None
    np.testing.assert_array_equal(loaded_rows.training.popular, links.training.popular)


@pytest.mark.parametrize("num_pairs", [0, 1, 5000])
def test_pairs_are_scored_and_differentiated_as_copies_of_their_rows_are(num_pairs: int) -> None:
    x = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    pairs, grad = torch.randint(0, 50, (num_pairs, 2)), torch.randn(num_pairs, dtype=torch.float64)
    scores, reference = PairDots.apply(x, pairs), dot(x[pairs])
    torch.testing.assert_close(scores, reference)
    gradients = [torch.autograd.grad(values, x, grad)[0] for values in (scores, reference)]
    torch.testing.assert_close(*gradients)
