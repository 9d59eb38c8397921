"""model=mixer scores pairs by what came before them, exactly on several workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from gnnkit_temporal import Mixer
from gnnkit_temporal.history import EndEvents
from hypothesis import given
from hypothesis import strategies as st

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Relation
from gnnkit.sampler.links import Links, pairs_of
from gnnkit.task.link_prediction import LinkPrediction
from tests.cases import exhaustive

EVENT = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5))
KEYS: dict[str, Any] = {
    "strategy": {"name": "individual_sample", "batch_size": 64},
    "sampler": {"name": "neighbor", "fanouts": [1]},
    "model": {"name": "mixer", "events": 4, "hidden": 8},
    "task": {"name": "link_prediction", "eval_negatives": 20},
    "trainer": {"max_epochs": 2, "precision": 64},
    "inputs": "degree",
    "comm": "threads",
    "report": False,
}


def messages(num_nodes: int = 20, num_events: int = 300, *, width: int = 0) -> Graph:
    """Every other event answers the one before it. Events may have features."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_nodes, (num_events // 2, 2))
    ends[:, 1] = (ends[:, 1] + (ends[:, 0] == ends[:, 1])) % num_nodes
    events = np.stack([ends, ends[:, ::-1]], 1).reshape(-1, 2)
    features = rng.normal(size=(num_events, width)) if width else None
    graph = Graph.from_edges(*events.T, num_nodes, edge_time=10 * np.arange(num_events), edge_features=features)
    return graph.split_by_time([0.7, 0.15, 0.15])


def links_of(events: list[tuple[int, int, int]]) -> Links:
    src, dst, time = np.array([(0, 1, -1), *events, (0, 1, 9), (0, 1, 10)], np.int64).T
    features = np.stack([src, dst, time], 1)
    graph = Graph.from_edges(src, dst, 4, edge_time=time, edge_features=features).split_by_time(borders=[9, 10])
    _, links = LinkPrediction().prepare(graph)
    return links


@given(st.lists(EVENT, max_size=12), st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)))
def test_inputs_are_what_a_loop_over_earlier_events_finds(
    events: list[tuple[int, int, int]], asked: tuple[int, int, int]
) -> None:
    links = links_of(events)
    history, (source, destination, time) = EndEvents(links), asked
    before = [event for event in [(0, 1, -1), *events] if event[2] < time]

    def count(node: int, since: int = -10) -> int:
        return sum((event[0] == node) + (event[1] == node) for event in before if event[2] >= since)

    expected: list[float] = []
    for ends in ((source, destination), (destination, source)):
        times = [event[2] for event in before if event[:2] == ends]
        last = max(times, default=time)
        expected += [len(times), time - last, bool(times)]
        expected += [count(node, last) if times else 0 for node in (source, destination)]
    for node in (source, destination):
        times = [event[2] for event in before if node in event[:2]]
        expected += [count(node), time - max(times, default=time), bool(times)]
    statistics = history.statistics(np.array([asked]), 1.0)
    np.testing.assert_allclose(np.expm1(statistics[0]), expected, atol=1e-5)

    tokens = history.tokens(np.array([source]), np.array([time]), 30)
    ages = sorted(time - event[2] for event in before for end in event[:2] if end == source)
    assert tokens.age[0, : len(ages)].tolist() == ages
    assert tokens.exists[0].sum() == len(ages)
    assert tokens.sent[0].sum() == sum(event[0] == source for event in before)
    assert tokens.features is not None
    rows = [tuple(row) for row in tokens.features[0, tokens.exists[0]].astype(int).tolist()]
    assert sorted(rows) == sorted(event for event in before for end in event[:2] if end == source)
    assert not tokens.features[0, ~tokens.exists[0]].any()


def scores(model: Mixer, links: Links, events: np.ndarray[Any, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model.decoder(torch.zeros(len(events), 2, 4), torch.from_numpy(events), links)


@pytest.mark.parametrize(("pairs", "width"), [(True, 0), (False, 0), (True, 3)])
def test_scores_before_a_cut_do_not_read_what_comes_after_it(pairs: bool, width: int) -> None:
    torch.manual_seed(0)
    graph, rng = messages(width=width), np.random.default_rng(1)
    _, links = LinkPrediction().prepare(graph)
    assert links.timeline.events is not None
    changed = lambda **fields: replace(links, timeline=replace(links.timeline, **fields))  # noqa: E731
    model, cut = Mixer(0, 4, events=3, hidden=8, pairs=pairs, edge_width=width), 2500
    model.decoder.fit(links)
    later = links.timeline.events[:, 2] >= cut
    scrambled, features = np.array(links.timeline.events), links.timeline.event_features
    scrambled[later, :2] = rng.integers(0, 20, (int(later.sum()), 2))
    scrambled = np.concatenate([scrambled, [[0, 1, cut], [2, 3, cut + 7]]])
    if features is not None:
        features = np.concatenate([np.where(later[:, None], 9, features), np.full((2, width), 9)])
    asked = np.stack([*rng.integers(0, 20, (2, 200)), rng.integers(0, cut + 1, 200)], 1)
    first = scores(model, links, asked)
    assert torch.equal(first, scores(model, changed(events=scrambled, event_features=features), asked))
    assert not torch.equal(first, scores(model, changed(events=links.timeline.events[::2]), asked))
    if features is not None:
        before = changed(event_features=-np.asarray(links.timeline.event_features))
        assert not torch.equal(first, scores(model, before, asked))
    pieces = [scores(model, links, piece) for piece in np.array_split(asked, 7)]
    torch.testing.assert_close(torch.cat(pieces), first)


@pytest.mark.slow
def test_figures_are_those_of_one_worker_on_several_and_of_a_stored_run(tmp_path: Path) -> None:
    runs = {}
    for workers in (1, 2, 4):
        keys = {**KEYS, "strategy": {"name": "individual_sample", "batch_size": 64 // workers}}
        runs[workers] = gnnkit.train(messages(width=2), folder=tmp_path / str(workers), workers=workers, **keys)
    for name, value in runs[1].items():
        if name.endswith(("_mrr", "_loss")):
            assert runs[2][name] == pytest.approx(value, rel=1e-9), name
            assert runs[4][name] == pytest.approx(value, rel=1e-9), name
    assert {"test_reply_mrr", "test_mrr"} <= runs[1].keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        exhaustive({"strategy": "vertex_centric"}),
        exhaustive({"strategy": {"name": "individual_sample", "topology": "partitioned"}}),
        {"strategy": "joint_sample"},
    ],
    ids=["vertex_centric", "owners", "joint_sample"],
)
def test_other_strategies_train_it_too(keys: dict[str, Any], tmp_path: Path) -> None:
    values = {**KEYS, **keys, "partition": "1d"}
    if keys["strategy"] == "vertex_centric":
        del values["sampler"]
    result = gnnkit.train(messages(), folder=tmp_path / "run", workers=2, **values)
    assert 0 < result["test_mrr"] <= 1


def purchases(later: Any = (), time: int = 0) -> Graph:
    """Users buy items, and then the pairs `later`, which are the test edges."""
    rng, users, items, count = np.random.default_rng(0), 12, 9, 150
    ends = np.stack([rng.integers(0, users, count), users + rng.integers(0, items, count)], 1)
    edges = np.concatenate([ends, np.reshape(later, (-1, 2)).astype(np.int64)])
    times = np.append(np.sort(rng.integers(0, 300, count)), np.full(len(later), time))
    graph = Graph.from_edges(
        *edges.T,
        users + items,
        node_types=(("user", users), ("item", items)),
        relations=(Relation("user", "buys", "item"),),
        edge_types=np.zeros(len(edges), np.int64),
        edge_type_names=["user-buys-item"],
        edge_time=times,
        features=rng.normal(size=(users + items, 4)),
    )
    return graph.split_by_time(borders=[150, time] if len(later) else [150, 200])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_lists_are_measured_at_each_events_time_and_written_as_of_the_newest_edge(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "top_k": 4, "negative_sampling": "historical", "loss": "softmax"}
    runs = {}
    for workers in (1, 3):
        keys = {**KEYS, "task": task, "strategy": {"name": "individual_sample", "batch_size": 30 // workers}}
        keys |= {"types": "ignore", "inputs": "features", "trainer": KEYS["trainer"] | {"monitor": "val_full_mrr"}}
        runs[workers] = gnnkit.train(purchases(), folder=tmp_path / str(workers), workers=workers, **keys)
    names = ["val_recall_4", "test_ndcg_4", "test_full_mrr", "test_popularity_recall_4", "test_ranked_events"]
    assert [runs[3][name] for name in names] == pytest.approx([runs[1][name] for name in names], rel=1e-9)
    assert runs[1]["test_ranked_events"] > 5
    assert runs[1]["best_value"] == pytest.approx(runs[1]["val_full_mrr"], rel=1e-5)
    tables = []
    for workers in (1, 3):
        folder = tmp_path / f"lists_{workers}"
        gnnkit.predict(runs[1].folder, purchases(), folder=folder, workers=workers, comm="threads")
        tables.append(pyarrow.parquet.read_table(folder / "topk.parquet").to_pandas())
    assert tables[0].iloc[:, :3].equals(tables[1].iloc[:, :3])
    pairs = tables[0][["user", "item"]].to_numpy(int).copy()
    pairs[:, 1] += 12 * (pairs[:, 1].max() < 12)
    known = {tuple(pair) for pair in pairs_of(purchases().csc).tolist()}
    assert len(pairs) > 15
    assert not known & {tuple(pair) for pair in pairs.tolist()}
    after = purchases(pairs, int(np.asarray(purchases().edge_time).max()) + 1)
    tested = gnnkit.predict(
        runs[1].folder, after, job="test", folder=tmp_path / "test", write=["predictions"], workers=1, comm="threads"
    )
    expected = {(int(s), int(d)): score for s, d, score in np.load(tested.folder / "predictions.npy")}
    np.testing.assert_allclose(tables[0]["score"], [expected[tuple(pair)] for pair in pairs.tolist()], atol=1e-5)
    before_1970 = replace(purchases(), edge_time=np.asarray(purchases().edge_time) - 1000, time_borders=None)
    folder = tmp_path / "before_1970"
    gnnkit.predict(runs[1].folder, before_1970, folder=folder, workers=1, comm="threads")
    np.testing.assert_array_equal(
        pyarrow.parquet.read_table(folder / "topk.parquet").to_pandas()["score"], tables[0]["score"]
    )
    untimed = replace(purchases(), edge_time=None, time_borders=None)
    with pytest.raises(UserError, match="the model scores pairs at a time, and the edges have none"):
        gnnkit.predict(runs[1].folder, untimed, folder=tmp_path / "untimed", workers=1, comm="threads")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_answers_are_learned(tmp_path: Path) -> None:
    trainer = {"max_epochs": 25, "lr": 0.01}
    result = gnnkit.train(messages(num_events=1000), folder=tmp_path / "run", **{**KEYS, "trainer": trainer})
    assert result["test_mrr"] > result["test_edgebank_mrr"]


def test_node_features_are_read_and_edges_without_a_split_by_time_are_refused(tmp_path: Path) -> None:
    model = Mixer(3, 4)
    assert model.embed is not None
    graph = replace(messages(), time_borders=None)
    with pytest.raises(UserError, match=r"edges are not split by time: use dataset\.split='\{by: time"):
        gnnkit.train(graph, folder=tmp_path / "random", **KEYS)


def test_tasks_on_nodes_are_refused(tmp_path: Path) -> None:
    graph = replace(messages(), labels=np.arange(20) % 2, split=np.arange(20) % 3 + 1)
    with pytest.raises(UserError, match="Mixer scores pairs at a time: use task=link_prediction"):
        gnnkit.train(graph, folder=tmp_path / "nodes", **{**KEYS, "task": "node_classification"})
    with pytest.raises(ValueError, match=r"model\.events=0"):
        Mixer(3, 4, events=0)
