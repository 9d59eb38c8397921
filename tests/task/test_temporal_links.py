"""Links that are split by time are compared with rules that learn nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.sampler.links import Links, links_of, load_rows
from gnnkit.task.event_ranking import RULES
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.link_split import held_out_candidates
from tests.runs import BARE


def conversations(num_nodes: int = 30, num_events: int = 400) -> Graph:
    """Each message is answered in the next step, half of them at equal times."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_nodes, (num_events // 2, 2))
    ends[:, 1] += ends[:, 0] == ends[:, 1]
    events = np.stack([ends % num_nodes, ends[:, ::-1] % num_nodes], 1).reshape(-1, 2)
    time = 10 * (np.arange(num_events) - np.arange(num_events) % 2 * rng.integers(0, 2, num_events))
    graph = Graph.from_edges(*events.T, num_nodes, features=rng.normal(size=(num_nodes, 4)), edge_time=time)
    return graph.split_by_time([0.7, 0.15, 0.15])


def train(folder: Path, **keys: Any) -> Any:
    trainer = {"max_epochs": 2, "precision": 64}
    task = {"name": "link_prediction", "eval_negatives": 10}
    return gnnkit.train(
        conversations(),
        folder=folder,
        strategy="vertex_centric",
        model="sage",
        task=task,
        trainer=trainer,
        **BARE,
        **keys,
    )


@pytest.mark.slow
def test_rules_have_the_same_figures_on_any_number_of_ranks(tmp_path: Path) -> None:
    runs = [train(tmp_path / str(workers), workers=workers, comm="threads") for workers in (1, 3)]
    names = [f"{split}_{rule}_mrr" for split in ("val", "test") for rule in RULES]
    for name in names:
        assert runs[0][name] == pytest.approx(runs[1][name], rel=1e-12)
        assert 0 < runs[0][name] <= 1
    assert runs[0]["test_reply_mrr"] > runs[0]["test_edgebank_mrr"], "answers follow, but not at equal times"


@pytest.mark.slow
def test_a_model_below_a_rule_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", workers=1, comm="threads", threads=1)
    keys = {"trainer": {"max_epochs": 60, "lr": 1e-6}, "task": {"name": "link_prediction", "eval_negatives": 10}}
    gnnkit.train(
        conversations(), folder=tmp_path / "long", strategy="vertex_centric", model="sage", workers=1, **BARE, **keys
    )
    told = capfd.readouterr().err
    assert "where the best rule without a model gives" in told


def test_times_of_events_are_checked_and_stored(tmp_path: Path) -> None:
    _, links = LinkPrediction().prepare(conversations())
    assert links.timeline.events is not None
    assert links.timeline.events.shape == (400, 3)
    assert links.val.time is not None
    assert (links.val.time >= conversations().time_borders[0]).all()  # type: ignore[index]
    links.save(tmp_path / "links")
    np.testing.assert_array_equal(links_of(load_rows(tmp_path / "links")).timeline.events, links.timeline.events)
    for number, (wrong, message) in enumerate(
        [
            (replace(links, timeline=replace(links.timeline, events=links.timeline.events[:, :2])), "three columns"),
            (replace(links, val=replace(links.val, time=links.val.time[1:])), "val_time is not a list"),
            (replace(links, timeline=replace(links.timeline, events=links.timeline.events + 1000)), "events"),
            (replace(links, val=replace(links.val, negatives=links.val.pairs + 1000)), "val_negatives"),
            (replace(links, test=replace(links.test, negatives=links.test.pairs[1:])), "test_negatives is not a table"),
        ]
    ):
        wrong.save(tmp_path / str(number))
        with pytest.raises(UserError, match=message):
            load_rows(tmp_path / str(number))
    assert LinkPrediction().prepare(replace(conversations(), time_borders=None))[1].timeline.events is None


def test_negatives_of_the_data_are_those_of_the_evaluation_in_the_order_of_the_edge_list(tmp_path: Path) -> None:
    """Each held-out message goes to node 2 or 3; its negatives name the row."""
    src, dst, time = np.array([[0, 1, 0], [1, 0, 1], [5, 3, 7], [4, 2, 6], [5, 2, 8], [4, 3, 9]]).T
    val, test = np.array([[10], [11]]), np.array([[12], [13]])
    graph = Graph.from_edges(src, dst, 14, edge_time=time, val_negatives=val, test_negatives=test)
    graph.save(tmp_path / "graph")
    for read in (graph, Graph.load(tmp_path / "graph")):
        _, links = LinkPrediction(eval_negatives=7).prepare(read.split_by_time(borders=[6, 8]))
        assert links.evaluation.count == 1
        assert (links.val.pairs.tolist(), links.test.pairs.tolist()) == ([[5, 3], [4, 2]], [[5, 2], [4, 3]])
        candidates = [np.concatenate([*held_out_candidates(alone(), links, split)]) for split in ("val", "test")]
        assert candidates[0].tolist() == [[[5, 3, 7], [5, 10, 7]], [[4, 2, 6], [4, 11, 6]]]
        assert candidates[1].tolist() == [[[5, 2, 8], [5, 12, 8]], [[4, 3, 9], [4, 13, 9]]]
    pairs = {"val_edges": [[0, 2]], "test_edges": [[1, 3], [2, 3]]}
    fixed = replace(graph, edge_time=None, **pairs, val_negatives=val[:1])
    _, links = LinkPrediction().prepare(fixed)
    assert np.concatenate([*held_out_candidates(alone(), links, "test")]).tolist() == [
        [[1, 3], [1, 12]],
        [[2, 3], [2, 13]],
    ]


def alone() -> Any:
    return SimpleNamespace(comm=SimpleNamespace(world_size=1, rank=0))


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        (np.array([[2]]), r"val_negatives has 1 rows, expected one for each of 2 held-out edges"),
        (np.array([[0], [3]]), r"val_negatives\[1, 0\] is the destination of the edge itself"),
        (np.empty((2, 0), int), "expected equally many columns, at least one"),
    ],
)
def test_negatives_that_do_not_fit_the_held_out_edges_are_refused(negatives: Any, message: str) -> None:
    graph = replace(Graph.from_edges([0, 1], [1, 0], 6, val_negatives=negatives), val_edges=np.array([[0, 2], [1, 3]]))
    with pytest.raises(UserError, match=message):
        LinkPrediction().prepare(graph)
    with pytest.raises(UserError, match=r"val_negatives\[0, 1\] = 6 is out of range for 6 nodes"):
        replace(graph, val_negatives=np.array([[0, 6]]))


@pytest.mark.slow
def test_all_strategies_draw_negatives_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with odd numbers exist after all events."""
    seen: list[Any] = []
    draw = Links.negative_pairs

    def recorded(links: Links, pairs: Any, *args: Any, **keys: Any) -> Any:
        drawn = draw(links, pairs, *args, **keys)
        assert pairs.shape[1] == 3, "the events' times are missing"
        seen.append(drawn.reshape(-1, 2))
        return drawn

    monkeypatch.setattr(Links, "negative_pairs", recorded)
    graph = conversations()
    node_time = np.where(np.arange(graph.num_nodes) % 2, 10**6, -1)
    for name, extra in STRATEGIES.items():
        seen.clear()
        keys = {"model": "sage", **extra, "strategy": {"name": name, **extra.get("strategy", {})}}
        task = {"name": "link_prediction", "eval_negatives": 5}
        gnnkit.train(
            replace(graph, node_time=node_time), folder=tmp_path / name, task=task, trainer={"max_epochs": 1},
            workers=2, comm="threads", **BARE, **keys,
        )  # fmt: skip
        assert len(seen) > 4
        assert not np.concatenate(seen)[:, 1].__mod__(2).any()


STRATEGIES: dict[str, dict[str, Any]] = {
    "vertex_centric": {"partition": "2d"},
    "individual_sample": {"sampler": {"name": "neighbor", "fanouts": [3, 3]}},
    "joint_sample": {"sampler": {"name": "neighbor", "fanouts": [3, 3]}},
    "preset_workload": {"strategy": {"halo": "one_hop"}},
}
