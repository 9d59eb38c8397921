"""Lists as of each held-out event's time are those of loops over all events."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph, Ids, Relation
from gnnkit.partition import Grid
from gnnkit.sampler.links import HeldOutEdges, Links
from gnnkit.task import event_ranking
from gnnkit.task.event_ranking import EventRanking
from gnnkit.task.link_prediction import LinkPrediction
from tests.task.steps import make_workers

USERS, ITEMS, K = 6, 9, 3


def purchases(count: int = 120) -> tuple[Graph, Links]:
    """Users buy items at few times. Items exist from the time at which they appear."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, USERS, count), USERS + rng.integers(0, ITEMS, count)
    relation = Relation("user", "buys", "item")
    graph = Graph.from_edges(
        src,
        dst,
        USERS + ITEMS,
        edge_types=np.zeros(count, np.int64),
        edge_type_names=[relation.edge_type],
        node_types=(("user", USERS), ("item", ITEMS)),
        relations=(relation,),
        edge_time=10 + np.sort(rng.integers(0, 40, count)),
        node_time=[0] * USERS + rng.integers(0, 50, ITEMS).tolist(),
    )
    graph = graph.split_by_time(borders=[18, 30])
    return LinkPrediction(relation=relation.edge_type, eval_negatives=40).prepare(graph)


GRAPH, LINKS = purchases()


def score(pairs: Ids) -> Tensor:
    """Scores pairs by a hash of all three columns."""
    mixed = (pairs * [7919, 104729, 1299709]).sum(-1)
    return torch.from_numpy((mixed % 10007).astype(np.float64))


def expected(links: Links, split: str) -> list[tuple[float, float, float]]:
    """Returns NDCG, recall and MRR of each event whose pair is new."""
    assert links.timeline.events is not None
    assert links.timeline.node_time is not None
    events, figures = links.timeline.events.tolist(), []
    for source, reference, time in getattr(links, split).events.tolist():
        bought = {d for s, d, t in events if s == source and t < time}
        also = {d for s, d, t in events if s == source and t == time}
        if reference in bought:
            continue
        exists = [item for item in range(USERS, USERS + ITEMS) if links.timeline.node_time[item] < time]
        candidates = [item for item in exists if item not in bought | also]
        of = {item: float(score(np.array([[source, item, time]]))) for item in [reference, *candidates]}
        above, ties = (
            sum(test(of[item], of[reference]) for item in candidates) for test in (float.__gt__, float.__eq__)
        )
        rank = 1 + above
        assert ties == 0, "so that the list does not depend on how ties are broken"
        figures.append((1 / math.log2(1 + rank) if rank <= K else 0.0, float(rank <= K), 1 / (rank + ties / 2)))
    return figures


def measure(links: Links, ranks: int) -> list[dict[str, float]]:
    workers = make_workers(GRAPH, Grid(ranks, 1, 1), whole=False, rows=links)
    return Threads.run(lambda comm: EventRanking(links, K).measure(workers(comm), score, ("val", "test")), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_figures_are_means_over_events_of_new_pairs(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_ranking, "_CHUNK", 2 * ITEMS)  # several chunks per rank
    for figures in measure(LINKS, ranks):
        for split in ("val", "test"):
            rows = expected(LINKS, split)
            assert figures[f"{split}_ranked_events"] == len(rows) > 5
            assert len(rows) < len(getattr(LINKS, split)), "some pairs are not new"
            names = [f"{split}_{name}" for name in ("ndcg_3", "recall_3", "full_mrr")]
            assert [figures[name] for name in names] == pytest.approx(np.mean(rows, 0), rel=1e-12)
            assert 0 < figures[f"{split}_popularity_full_mrr"] < 1


def test_popularity_counts_earlier_events() -> None:
    ranking, events = EventRanking(LINKS, K), np.asarray(LINKS.timeline.events)
    pairs = np.stack([np.zeros(ITEMS, np.int64), USERS + np.arange(ITEMS), np.full(ITEMS, 25)], 1)[None]
    before = events[events[:, 2] < 25, 1] - USERS
    np.testing.assert_array_equal(ranking._count_events(pairs)[0].numpy(), np.bincount(before, minlength=ITEMS))


def test_as_many_pairs_are_scored_as_negative_pairs() -> None:
    links = replace(LINKS, evaluation=replace(LINKS.evaluation, count=1))
    choice, every = EventRanking(links, K)._events["test"], EventRanking(LINKS, K)._events["test"]
    assert len(choice) == len(LINKS.test) * 2 // ITEMS < len(every)
    assert {tuple(event) for event in choice.tolist()} < {tuple(event) for event in every.tolist()}
    (figures,) = measure(links, 1)
    assert figures["test_ranked_events"] == len(choice)
    assert measure(links, 3)[0] == pytest.approx(figures, rel=1e-12)


def test_a_split_without_new_pairs_has_no_figures() -> None:
    old = replace(LINKS, val=HeldOutEdges(LINKS.val.pairs[:0], LINKS.val.time[:0]))  # type: ignore[index]
    assert not any(name.startswith("val_") for name in measure(old, 2)[0])
