"""Negative pairs of events exist at the event's time and are no event then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.times import ALWAYS
from gnnkit.sampler.links import Links, at_times, links_of, load_rows, pairs_of, supervised_pairs
from gnnkit.task.link_prediction import LinkPrediction
from tests.cases import few

EVENT = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 6))


def make_links(events: list[tuple[int, int, int]], borders: tuple[int, int] = (4, 6), **keys: object) -> Links:
    src, dst, time = np.array(events, np.int64).T
    graph = Graph.from_edges(src, dst, 6, edge_time=time).split_by_time(borders=borders)
    return LinkPrediction(**keys).prepare(graph)[1]  # type: ignore[arg-type]


@given(st.lists(EVENT, max_size=14), st.sampled_from([1, 2, 3]))
def test_negatives_existed_before_the_event_and_are_no_positive_at_its_time(
    later: list[tuple[int, int, int]], threads: int
) -> None:
    events = [(0, 1, 0), (2, 3, 1), (3, 4, 2), *later, (0, 2, 5)]
    links = make_links(events)
    assert links.val.time is not None
    edges = links.val.events
    drawn = links.negative_pairs(edges, np.arange(len(edges)), 40, 3, threads=threads, evaluates=True)
    for (source, destination, time), negatives in zip(edges.tolist(), drawn.tolist(), strict=True):
        exist = {end for event in events if event[2] < time for end in event[:2]}
        positive = {event[1] for event in events if event[0] == source and event[2] == time}
        assert {pair[0] for pair in negatives} == {source}
        assert {pair[1] for pair in negatives} <= exist - positive - {source, destination}


def test_all_nodes_that_exist_are_drawn_equally_often_also_those_of_earlier_edges_of_the_source() -> None:
    links = make_links([(0, 1, 0), (0, 2, 1), (0, 3, 2), (0, 4, 4), (0, 5, 5), (5, 0, 6)])
    edge = np.tile([0, 4, 4], (3000, 1))
    drawn = links.negative_pairs(edge, np.arange(3000), 1, 0, evaluates=True)[:, 0, 1]
    nodes, counts = np.unique(drawn, return_counts=True)
    assert nodes.tolist() == [1, 2, 3], "4 is the destination, and 5 appears later"
    assert (np.abs(counts - 1000) < 120).all()


def test_the_first_events_of_training_draw_from_all_nodes_in_training() -> None:
    links = make_links([(0, 1, 0), (0, 1, 1), (2, 3, 2), (4, 5, 4), (0, 5, 6)])
    assert links.timeline.train_time is not None
    first = np.array([[0, 1, 0]]).repeat(200, 0)
    drawn = links.negative_pairs(first, np.arange(200), 1, 0)[:, 0, 1]
    assert set(drawn.tolist()) == {2, 3}


def test_an_evaluated_event_without_negatives_is_an_error_with_key_and_time() -> None:
    links = make_links([(0, 1, 0), (0, 1, 4), (1, 0, 6)])
    edges = links.val.events
    with pytest.raises(
        UserError, match=r"task\.eval_negatives=2: the edge from node 0 to node 1 at time 4 has no negative"
    ):
        links.negative_pairs(edges, np.arange(1), 2, 0, evaluates=True)


def test_draws_depend_on_the_event_and_its_id_only() -> None:
    rng = np.random.default_rng(0)
    links = make_links([(0, 1, 0), (2, 3, 1), (4, 5, 2), (1, 2, 4), (0, 2, 6)])
    edges = np.stack([*rng.integers(0, 3, (2, 50)), rng.integers(3, 7, 50)], 1)
    ids = rng.permutation(1000)[:50]
    drawn = links.negative_pairs(edges, ids, 3, 7)
    part = rng.permutation(50)[:9]
    np.testing.assert_array_equal(links.negative_pairs(edges[part], ids[part], 3, 7), drawn[part])
    assert not np.array_equal(links.negative_pairs(edges, ids, 3, 8), drawn)
    assert links.negative_pairs(edges[:0], ids[:0], 3, 7).shape == (0, 3, 2)


def test_times_of_nodes_take_the_place_of_their_first_edges() -> None:
    graph = Graph.from_edges([0, 2, 0], [1, 3, 1], 5, edge_time=[0, 1, 9], node_time=[0, 0, 0, 20, ALWAYS])
    _, links = LinkPrediction().prepare(graph.split_by_time(borders=[9, 10]))
    drawn = links.negative_pairs(np.array([[0, 1, 9]]).repeat(100, 0), np.arange(100), 1, 0, evaluates=True)
    assert set(drawn[:, 0, 1].tolist()) == {2, 4}, "3 exists from 20 on, and 4 always"


def test_popular_nodes_are_drawn_more_often_and_never_before_they_exist() -> None:
    events = [(0, 1, 0), *[(2, 3, 1)] * 40, *[(4, 5, 2)] * 40, (0, 1, 3), (0, 2, 4), (0, 2, 6)]
    links = make_links(events, negative_sampling="popularity")
    edges = np.array([[0, 2, 2]]).repeat(2000, 0)
    drawn = links.negative_pairs(edges, np.arange(2000), 1, 0)[:, 0, 1].tolist()
    assert set(drawn) == {1, 3}
    assert drawn.count(3) > 3 * drawn.count(1)


def test_a_quarter_of_historical_negatives_are_earlier_destinations_of_the_source_in_training_only(
    tmp_path: Path,
) -> None:
    events = [(0, 1, 0), (0, 2, 1), (0, 2, 2), (3, 4, 2), (0, 1, 3), (0, 4, 3), (5, 3, 3), (0, 3, 4), (0, 4, 6)]
    links = make_links(events, negative_sampling="historical")
    links.save(tmp_path / "links")
    edges = np.array([[0, 1, 3]]).repeat(4000, 0)
    for evaluates in (False, True):
        drawn = links_of(load_rows(tmp_path / "links")).negative_pairs(
            edges, np.arange(4000), 1, 0, evaluates=evaluates
        )
        nodes, counts = np.unique(drawn[:, 0, 1], return_counts=True)
        assert nodes.tolist() == [2, 3], "1 is the destination, 4 one at the same time, 5 appears then"
        assert abs(counts[0] / 4000 - (0.5 if evaluates else 7 / 12)) < 0.03, "a drawn 1 is replaced by any node"
    with pytest.raises(UserError, match=r"task\.negative_sampling=historical draws earlier destinations"):
        LinkPrediction(negative_sampling="historical").prepare(Graph.from_edges([0, 1], [1, 2]))


def test_destinations_have_the_type_of_the_relation_and_candidates_of_a_share_are_kept() -> None:
    time = np.arange(8)
    graph = Graph.from_edges(
        [0, 1, 2, 0, 1, 2, 0, 1], [3, 4, 5, 4, 5, 3, 5, 3], 6, edge_time=time, node_types=[("user", 3), ("item", 3)],
        edge_types=np.zeros(8, int), edge_type_names=["user-buys-item"], relations=[("user", "buys", "item")],
    )  # fmt: skip
    _, links = LinkPrediction().prepare(graph.split_by_time(borders=[6, 7]))
    edges = np.array([[0, 5, 6]]).repeat(60, 0)
    drawn = links.negative_pairs(edges, np.arange(60), 1, 0, evaluates=True)
    assert set(drawn[:, 0, 1].tolist()) == {3, 4}
    among = links.negative_pairs(edges, np.arange(60), 1, 0, np.array([0, 4, 5]))
    assert set(among[:, 0, 1].tolist()) == {4}


def test_stored_links_draw_the_same_pairs(tmp_path: Path) -> None:
    links = make_links([(0, 1, 0), (2, 3, 1), (4, 5, 2), (1, 2, 4), (0, 2, 6)])
    links.save(tmp_path / "links")
    stored = links_of(load_rows(tmp_path / "links"))
    edges = links.val.events
    for evaluates in (False, True):
        drawn = [side.negative_pairs(edges, np.arange(1), 9, 3, evaluates=evaluates) for side in (links, stored)]
        np.testing.assert_array_equal(*drawn)


@few("borders", [(1250, 1400), (1400, 1450)], default=1)
def test_an_event_of_which_few_nodes_are_negative_draws_those(borders: tuple[int, int]) -> None:
    ring = [(node, (node + 1) % 1000, node) for node in range(1000)]  # all nodes exist
    message = [(0, node, 1300) for node in range(1, 997)]  # 997 to 999 are negative
    events = np.array([*ring, *message, (5, 6, 1400), (6, 7, 1500)])
    graph = Graph.from_edges(events[:, 0], events[:, 1], 1000, edge_time=events[:, 2]).split_by_time(borders=borders)
    training, links = LinkPrediction().prepare(graph)
    assert links.timeline.train_time is not None
    if borders[0] < 1300:
        edges = links.val.events
    else:
        trained = np.flatnonzero(links.timeline.train_time == 1300)
        edges = at_times(pairs_of(training.csc)[trained], links.timeline.train_time[trained])
    edges = edges[edges[:, 2] == 1300]
    drawn = links.negative_pairs(edges, np.arange(len(edges)), 5, 1, evaluates=borders[0] < 1300)
    assert np.unique(drawn[..., 1]).tolist() == [997, 998, 999]


@pytest.mark.parametrize("shift", [-10_000, 10_000])
def test_training_negatives_exist_in_training_whatever_the_sign_of_times(shift: int) -> None:
    rng, time = np.random.default_rng(0), np.arange(60) + shift
    src = np.concatenate([rng.integers(0, 5, 40), rng.integers(5, 40, 20)])
    dst = np.where(np.arange(60) < 40, (src + 1) % 5, (src - 4) % 35 + 5)  # new nodes in the held-out time
    graph = Graph.from_edges(src, dst, 40, edge_time=time).split_by_time(borders=[40 + shift, 50 + shift])
    training, links = LinkPrediction().prepare(graph)
    edges = at_times(pairs_of(training.csc), links.timeline.train_time)
    assert links.negative_pairs(edges, np.arange(len(edges)), 20, 7).max() < 5


@pytest.mark.parametrize("sampling", ["uniform", "popularity", "historical"])
def test_negatives_of_a_share_are_in_the_share(sampling: str) -> None:
    rng, share = np.random.default_rng(0), np.arange(20)
    src = rng.integers(0, 60, 600)
    dst = (src + 1 + rng.integers(0, 59, 600)) % 60
    graph = Graph.from_edges(src, dst, 60, edge_time=np.arange(600)).split_by_time(shares=[0.7, 0.15, 0.15])
    training, links = LinkPrediction(negative_sampling=sampling).prepare(graph)
    pairs = pairs_of(training.csc)
    inside = np.flatnonzero(np.isin(pairs, share).all(1))
    drawn, *_ = supervised_pairs(links, pairs[inside], inside, 3, share)
    assert np.isin(drawn, share).all()


def test_edges_that_are_always_visible_are_no_events() -> None:
    time = np.array([ALWAYS, ALWAYS, 1, 2, 3, 4, 5, 6])
    graph = Graph.from_edges([0, 1, 2, 3, 4, 5, 0, 1], [1, 2, 3, 4, 5, 0, 2, 3], 6, edge_time=time)
    links = LinkPrediction().prepare(graph.split_by_time(borders=[5, 6]))[1]
    assert links.timeline.events is not None
    assert links.timeline.events[:, 2].min() == 1
