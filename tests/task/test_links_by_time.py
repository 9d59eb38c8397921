"""Links are predicted and scored from what both ends see before their events."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import gnnkit
from gnnkit.graph import Graph, Relation
from gnnkit.graph.times import ALWAYS
from gnnkit.result.result import Result
from gnnkit.sampler import NeighborSampler
from gnnkit.task.event_ranking import EventRanking
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.utils.checks import Array
from tests.cases import exhaustive, few
from tests.runs import BARE
from tests.task.test_temporal_links import conversations

FIGURES = ("train_loss", "val_mrr", "test_mrr", "val_roc_auc", "test_roc_auc")


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Result]:
    def run(graph: Graph, time: str = "strict", **options: Any) -> Result:
        workers = options.pop("workers", 1)
        fields: dict[str, Any] = {
            "strategy": {"name": "individual_sample", "batch_size": 60 // workers} | options.pop("strategy", {}),
            "sampler": {"name": "neighbor", "fanouts": [3, 3], "time": time} | options.pop("sampler", {}),
            "trainer": {"max_epochs": 2, "precision": 64, "monitor": None} | options.pop("trainer", {}),
            "task": {"name": "link_prediction", "eval_negatives": 10} | options.pop("task", {}),
        }
        options = {
            "model": {"name": "sage", "hidden": 8},
            "output": str(tmp_path / "run"),
            "on_exists": "replace",
        } | options
        return gnnkit.train(graph, workers=workers, comm="threads", launcher="threads", **BARE, **fields, **options)

    return run


def figures(result: Result) -> list[Any]:
    return [result[name] for name in FIGURES]


def scores(result: Result) -> Array:
    assert result.run_folder is not None
    return np.array(np.load(result.run_folder / "predictions.npy"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_figures_do_not_depend_on_workers_or_chunks(train: Callable[..., Result], tmp_path: Path) -> None:
    base = train(conversations())
    assert base["evaluation"] == "fresh"
    for options in ({"workers": 3}, {"trainer": {"evaluation_memory": 0.001}}, {"features": {"place": "disk"}}):
        assert figures(train(conversations(), **options)) == pytest.approx(figures(base), abs=1e-10)
    half = str(tmp_path / "half")
    train(conversations(), trainer={"max_epochs": 1}, output=half)
    assert figures(train(conversations(), trainer={"resume": half})) == figures(base)
    tested = gnnkit.predict(
        Path(half), conversations(), job="test", folder=tmp_path / "test", workers=2, comm="threads"
    )
    assert tested["evaluation"] == "fresh"


@pytest.mark.slow
def test_workers_take_the_steps_of_one_process(train: Callable[..., Result]) -> None:
    result = train(conversations(), job="verify", workers=3)
    assert result["verified"], result


@pytest.mark.slow
def test_events_after_an_event_do_not_change_its_score(train: Callable[..., Result], tmp_path: Path) -> None:
    graph, rng = conversations(), np.random.default_rng(1)
    assert graph.edge_time is not None
    assert graph.time_borders is not None
    cut, dst = graph.time_borders[1] + 300, np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    src = np.where(graph.edge_time >= cut, (dst + rng.integers(1, 30, len(dst))) % 30, graph.csc.indices)
    fields: dict[str, Any] = {"features": graph.features, "edge_time": graph.edge_time, "node_time": np.zeros(30)}
    events = [
        Graph.from_edges(ends, dst, 30, **fields).split_by_time(borders=list(graph.time_borders))
        for ends in (graph.csc.indices, src)
    ]
    base, scrambled = (train(one, write=["predictions"], output=str(tmp_path / str(n))) for n, one in enumerate(events))
    times = np.array([LinkPrediction().prepare(one)[1].test.time for one in events])
    before = times[0] < cut
    assert 10 < before.sum() < len(before) - 10
    assert scrambled["train_loss"] == base["train_loss"]
    np.testing.assert_array_equal(scores(scrambled)[before], scores(base)[before])
    assert not np.array_equal(scores(scrambled)[~before, 2], scores(base)[~before, 2])


def introduced(num_events: int = 900) -> Graph:
    """A node with features of its own joins both ends of an event after the event."""
    rng, n = np.random.default_rng(0), 300
    src = rng.integers(0, n, num_events)
    dst, time = (src + rng.integers(1, n, num_events)) % n, np.sort(rng.integers(0, 10_000, num_events))
    later, after = n + np.arange(num_events), time + 1
    features = np.append(np.zeros((n, 16)), rng.normal(size=(num_events, 16)), 0)
    edges = np.stack([np.concatenate([src, later, later]), np.concatenate([dst, src, dst])])
    types = np.repeat([0, 1, 1], num_events)
    relations = [Relation("person", "meets", "person"), Relation("place", "joins", "person")]
    fields: dict[str, Any] = {"node_types": [("person", n), ("place", num_events)], "relations": relations}
    fields |= {
        "edge_type_names": [relation.edge_type for relation in relations],
        "edge_types": types,
        "edge_time": np.concatenate([time, after, after]),
        "features": features,
    }
    return Graph.from_edges(*edges, n + num_events, **fields).split_by_time(borders=[7_000, 8_500])


@pytest.mark.slow
def test_what_joins_the_ends_of_an_event_later_is_not_learned(train: Callable[..., Result]) -> None:
    options: dict[str, Any] = {"task": {"relation": "person-meets-person", "width": 16}, "sampler": {"fanouts": [-1]}}
    options |= {"model": {"name": "rgcn", "hidden": 16, "num_layers": 1}, "strategy": {"batch_size": 128}}
    trainer = {"max_epochs": 6, "lr": 0.01, "check_val_every_n_epoch": 6}
    losses = {time: train(introduced(), time, trainer=trainer, **options)["train_loss"] for time in ("none", "strict")}
    assert losses["none"] < 0.65
    assert losses["strict"] > 0.67


def purchases(later: Array | None = None, time: int = 0) -> Graph:
    """Users buy items, and items are bought by users.

    Args:
        later: [k, 2] further purchases, which are the test edges.
        time: Their time.
    """
    rng, users, items, count = np.random.default_rng(0), 12, 9, 60
    ends = np.stack([rng.integers(0, users, count), users + rng.integers(0, items, count)], 1)
    times, later = np.sort(rng.integers(0, 100, count)), np.empty((0, 2), int) if later is None else later
    edges = np.concatenate([ends, ends[:, ::-1], later])
    relations = [Relation("user", "buys", "item"), Relation("item", "bought", "user")]
    fields: dict[str, Any] = {"node_types": [("user", users), ("item", items)], "relations": relations}
    fields |= {
        "edge_type_names": [relation.edge_type for relation in relations],
        "edge_types": np.repeat([0, 1, 0], [count, count, len(later)]),
        "edge_time": np.concatenate([times, times, np.full(len(later), time)]),
        "features": rng.normal(size=(users + items, 4)),
    }
    graph = Graph.from_edges(edges[:, 0], edges[:, 1], users + items, **fields)
    return graph.split_by_time(borders=[80, time] if len(later) else [60, 80])


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_recall_4", exhaustive("val_popularity_full_mrr"), "val_mrr"])
def test_lists_are_measured_in_training_if_they_select_the_model(
    monitor: str, train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = list[tuple[str, ...]](), EventRanking.measure

    def noted(ranking: EventRanking, worker: Any, score: Any, splits: Sequence[str]) -> dict[str, float]:
        measured.append(tuple(splits))
        return measure(ranking, worker, score, splits)

    monkeypatch.setattr(EventRanking, "measure", noted)
    options: dict[str, Any] = {"task": {"top_k": 4, "relation": "user-buys-item"}, "trainer": {"monitor": monitor}}
    run = train(purchases(), model={"name": "rgcn", "hidden": 8}, **options)
    assert measured == [("val",)] * (0 if monitor == "val_mrr" else 2) + [("val", "test")]
    assert run["best_value"] == pytest.approx(run[monitor], rel=1e-5)
    assert run["best_figure"] == monitor


@pytest.mark.slow
@few("rule", ["strict", exhaustive("inclusive"), "window"], default=["window"])
def test_recommendations_have_the_scores_of_events_after_the_newest_edge(
    rule: str, train: Callable[..., Result], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    window = {"window": 50} if rule == "window" else {}
    options: dict[str, Any] = {
        "task": {"relation": "user-buys-item", "top_k": 4},
        "sampler": {"fanouts": [-1, -1]} | window,
    }
    run = train(purchases(), rule, model={"name": "rgcn", "hidden": 8}, **options)
    other = train(
        purchases(), rule, model={"name": "rgcn", "hidden": 8}, workers=3, output=str(tmp_path / "other"), **options
    )
    names = ["val_ndcg_4", "test_recall_4", "test_full_mrr", "test_popularity_full_mrr", "test_ranked_events"]
    assert [other[name] for name in names] == pytest.approx([run[name] for name in names], abs=1e-12)
    assert run["test_ranked_events"] > 1
    lists = []
    for workers in (1, 3):
        keys: dict[str, Any] = {"workers": workers, "comm": "threads", "launcher": "threads"}
        folder = tmp_path / str(workers)
        gnnkit.predict(run.folder, purchases(), folder=folder, **keys)
        lists.append(pyarrow.parquet.read_table(folder / "topk.parquet").to_pandas())
    assert f"sampler.time={rule}: recommendations are as of the newest edge" in capfd.readouterr().out
    assert lists[0].iloc[:, :3].equals(lists[1].iloc[:, :3])
    pairs, newest = lists[0][["user", "item"]].to_numpy(int).copy(), int(np.asarray(purchases().edge_time).max())
    pairs[:, 1] += 12 * (pairs[:, 1].max() < 12)
    known = {tuple(pair) for pair in np.stack([purchases().csc.indices, _destinations(purchases())], 1).tolist()}
    assert 40 < len(pairs) <= 4 * 12, "some users have bought nearly all items"
    assert not known & {tuple(pair) for pair in pairs.tolist()}
    after = purchases(pairs, newest + 1)
    tested = gnnkit.predict(
        run.folder, after, job="test", folder=tmp_path / "test", write=["predictions"], workers=1, comm="threads"
    )
    expected = {(int(s), int(d)): score for s, d, score in scores(tested)}
    np.testing.assert_allclose(lists[0]["score"], [expected[tuple(pair)] for pair in pairs.tolist()], atol=1e-5)


def test_recommendations_read_the_edges_after_a_split_by_time() -> None:
    with warnings.catch_warnings(action="error"):
        graph, links = LinkPrediction(relation="user-buys-item").prepare_known(purchases())
    assert graph.num_edges == purchases().num_edges
    assert links is not None
    assert links.evaluation.excluded is not None
    bought = purchases().edge_types == 0
    assert len(links.evaluation.excluded) == len(
        np.unique(purchases().csc.indices[bought] + 100 * _destinations(purchases())[bought])
    )


def _destinations(graph: Graph) -> Array:
    return np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))


def test_inclusive_shows_other_relations_at_the_time_of_an_event() -> None:
    src, dst, types = [0, 1, 2, 3, 0, 2], [1, 0, 1, 1, 1, 3], [0, 1, 2, 0, 0, 0]
    names = ["knows", "rev_knows", "likes"]
    graph = Graph.from_edges(src, dst, 4, edge_types=types, edge_time=[5, 5, 5, 4, 9, 9], edge_type_names=names)
    graph = graph.split_by_time(borders=[8, 20])
    _, links = LinkPrediction(relation="knows").prepare(graph)
    links = replace(links, relation=replace(links.relation, hidden=(0, 1)))  # type: ignore[type-var]
    for rule, expected in (("strict", {0: [], 1: [3]}), ("inclusive", {0: [], 1: [2, 3]})):
        ordered, timed = links.arrange(graph, rule)
        csc = replace(ordered.csc, time=ordered.edge_time)
        batch = NeighborSampler([-1], time=rule).sample(csc, np.array([0, 1]), key=0, times=np.array([5, 5]))
        (block,) = batch.blocks
        assert batch.nodes is not None
        sources = np.split(batch.nodes[block.indices], block.indptr[1:-1])
        assert {node: sorted(ends.tolist()) for node, ends in enumerate(sources)} == expected
        assert timed.timeline.train_time is not None
        assert sorted(timed.timeline.train_time) == [4, 5, 5, 5, 9, 9]


def test_static_and_held_out_edges_are_not_predicted_in_training() -> None:
    graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4, edge_time=[ALWAYS, 3, 4, 9]).split_by_time(borders=[5, 20])
    _, links = LinkPrediction().prepare(graph)
    _, links = links.arrange(graph, "strict")
    assert links.timeline.train_time is not None
    assert sorted(links.timeline.train_time[links.trains()]) == [3, 4]
    assert links.trains(np.flatnonzero(links.timeline.train_time == 9)).tolist() == [False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task": {"val_share": 0.1}},
            r"sampler.time=strict: the edges that the task predicts are not split by time: set",
        ),
        ({"write": ["logits"]}, r"sampler.time=strict: write=\['logits'\] needs outputs of nodes"),
    ],
)
def test_what_has_no_time_is_refused(options: dict[str, Any], message: str, train: Callable[..., Result]) -> None:
    graph = conversations() if "write" in options else replace(conversations(), time_borders=None)
    with pytest.raises(gnnkit.UserError, match=message):
        train(graph, **options)
