"""Rankings of all items against plain NumPy, on one to three ranks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.partition import Grid
from gnnkit.sampler.links import pairs_of
from gnnkit.task import item_ranking
from gnnkit.task.event_ranking import RULES
from gnnkit.task.item_ranking import ItemRanking
from gnnkit.task.link_prediction import LinkPrediction
from tests.graphs import shop
from tests.task.steps import make_workers

USERS, ITEMS, K = 20, 14, 4
NAME = "user-buys-item"
TASK = LinkPrediction(width=6, val_share=0.2, test_share=0.2, relation=NAME, top_k=K)
GRAPH = shop(USERS, ITEMS, 6, num_buys=90)
PREPARED, LINKS = TASK.prepare(GRAPH)
assert LINKS is not None
FIRST = GRAPH.schema.nodes("item").start
OUTPUTS = torch.randn(GRAPH.num_nodes, 6, generator=torch.Generator().manual_seed(3))


def training_pairs() -> set[tuple[int, int]]:
    assert PREPARED.edge_types is not None
    number = PREPARED.schema.edge_types.index(NAME)
    return {(int(u), int(v)) for u, v in pairs_of(PREPARED.csc)[PREPARED.edge_types == number]}


def expected(scores: np.ndarray, split: str) -> tuple[float, float, float]:
    """Returns NDCG, recall and MRR of scores [users, items], one user at a time."""
    assert LINKS is not None
    seen = training_pairs() | ({(int(u), int(v)) for u, v in LINKS.val.pairs} if split == "test" else set())
    edges = {(int(u), int(v)) for u, v in getattr(LINKS, split).pairs}
    figures = []
    for user in sorted({u for u, _ in edges}):
        targets = {v - FIRST for u, v in edges if u == user}
        items = [i for i in range(ITEMS) if (user, i + FIRST) not in seen or i in targets]
        order = sorted(items, key=lambda i: -scores[user, i])
        hits = [item in targets for item in order[:K]]
        ideal = sum(1 / np.log2(place + 2) for place in range(min(K, len(targets))))
        gain = sum(hit / np.log2(place + 2) for place, hit in enumerate(hits))
        first = min(order.index(item) for item in targets)
        figures.append((gain / ideal, sum(hits) / len(targets), 1 / (1 + first)))
    return tuple(np.mean(figures, 0).tolist())


def on_ranks(task: LinkPrediction, ranks: int, outputs: Tensor = OUTPUTS) -> list[dict[str, float]]:
    workers = make_workers(PREPARED, Grid(ranks, 1, 1), whole=False, rows=LINKS)

    def work(comm: Threads) -> dict[str, float]:
        worker = workers(comm)
        return LinkPrediction(**vars_of(task)).measure(outputs[torch.from_numpy(worker.owned.astype(np.int64))], worker)

    return Threads.run(work, ranks)


def vars_of(task: LinkPrediction) -> dict[str, object]:
    return {"width": task.width, "decoder": task.decoder, "relation": NAME, "top_k": task.top_k}


def test_metrics_are_those_of_plain_numpy() -> None:
    (figures,) = on_ranks(TASK, 1)
    scores = (OUTPUTS[:USERS] @ OUTPUTS[FIRST : FIRST + ITEMS].t()).numpy()
    for split in ("val", "test"):
        names = [f"{split}_{name}" for name in item_ranking.metric_names(K)]
        assert [figures[name] for name in names] == pytest.approx(expected(scores, split), rel=1e-12), split
    assert set(figures) <= set(TASK.names)


def test_popularity_is_ranked_beside() -> None:
    (figures,) = on_ranks(TASK, 1)
    counts = np.bincount([v - FIRST for _, v in training_pairs()], minlength=ITEMS)
    # Ties are broken as torch does, so only distinct counts can be compared exactly.
    assert LINKS is not None
    ranking = ItemRanking(LINKS, K)
    np.testing.assert_array_equal(ranking.popularity.numpy(), counts)
    assert 0 < figures["test_popularity_recall_4"] < 1
    assert figures["test_popularity_recall_4"] != figures["test_recall_4"]


def test_a_model_whose_scores_are_equal_gains_nothing_from_ties() -> None:
    (figures,) = on_ranks(TASK, 1, torch.ones_like(OUTPUTS))
    assert figures["test_full_mrr"] < 0.35
    assert figures["test_recall_4"] < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_ranks_measure_and_recommend_what_one_process_does(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_ranking, "_CELLS", 3 * ITEMS)  # several blocks per rank
    torch.manual_seed(5)
    task = LinkPrediction(width=6, decoder=decoder, relation=NAME, top_k=K)
    head, rows = task.head(), OUTPUTS.double()
    if head is not None:
        head.double()
    results = []
    for ranks in (1, 2, 3):
        workers = make_workers(PREPARED, Grid(ranks, 1, 1), whole=False, rows=LINKS)

        def work(comm: Threads, workers=workers) -> tuple[dict[str, float], item_ranking.TopItems | None]:  # type: ignore[no-untyped-def]
            worker, copy = workers(comm), LinkPrediction(**vars_of(task))
            copy._head = head
            outputs = rows[torch.from_numpy(worker.owned.astype(np.int64))]
            return copy.measure(outputs, worker), copy.recommend(outputs, worker)

        results.append(Threads.run(work, ranks))
    (one, top) = results[0][0]
    assert top is not None
    for result in results:
        for rank, (figures, lists) in enumerate(result):
            assert figures == pytest.approx(one, rel=1e-10)
            assert (lists is None) == (rank > 0)
        assert result[0][1] is not None
        assert torch.equal(result[0][1].items, top.items)
        torch.testing.assert_close(result[0][1].scores, top.scores)


def test_recommended_items_are_the_best_without_an_edge() -> None:
    workers = make_workers(PREPARED, Grid(1, 1, 1), whole=False, rows=LINKS)
    (top,) = Threads.run(lambda comm: TASK.recommend(OUTPUTS, workers(comm)), 1)
    assert top is not None
    assert GRAPH.edge_types is not None
    edges = pairs_of(GRAPH.csc)[GRAPH.edge_types == GRAPH.schema.edge_types.index(NAME)]
    scores = (OUTPUTS[:USERS] @ OUTPUTS[FIRST : FIRST + ITEMS].t()).numpy()
    scores[edges[:, 0], edges[:, 1] - FIRST] = -np.inf
    np.testing.assert_array_equal(top.items.numpy(), np.argsort(-scores, 1)[:, :K])


def test_the_best_model_is_selected_by_the_ranking() -> None:
    task, second = (LinkPrediction(width=6, relation=NAME, top_k=k) for k in ("auto", None))
    assert second.metrics_of_some == tuple(f"{rule}_mrr" for rule in RULES)
    workers = make_workers(PREPARED, Grid(1, 1, 1), whole=False, rows=LINKS)

    def begun(comm: Threads, task: LinkPrediction) -> str:
        task.begin(workers(comm))
        return task.progress

    assert Threads.run(functools.partial(begun, task=task), 1) == ["val_ndcg_20"]
    assert Threads.run(functools.partial(begun, task=second), 1) == ["val_mrr"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"relation": "user-follows-user"}, "task.top_k=4 needs a relation between two node types"),
        ({"relation": NAME, "filtered": False}, "task.top_k=4 needs the filter of seen edges: set task.filtered=true"),
    ],
)
def test_edges_that_cannot_be_ranked_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LinkPrediction(width=6, top_k=K, **keys).prepare(GRAPH)  # type: ignore[arg-type]


def test_blocks_of_few_users_rank_as_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = on_ranks(TASK, 1)
    monkeypatch.setattr(item_ranking, "_CELLS", 1)
    (small,) = on_ranks(TASK, 1)
    assert small == pytest.approx(one, rel=1e-12)
