"""A split by time trains on the edges before its first held-out time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.graph import Graph, Relation, Split
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.prepare import inputs
from gnnkit.prepare.inputs import degrees_before_split, rows_to_fit, with_inputs
from gnnkit.prepare.steps import describe_times, describe_visible, visible_graphs
from gnnkit.prepare.trained import with_degree
from gnnkit.sampler.targets import NODES
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.utils.documents import read_object
from tests.cases import few

pytestmark = pytest.mark.filterwarnings("ignore:.*reverse edge")
N, M, VAL, TEST = 60, 600, 700, 850


def dated(later: int = 0, latest: int = 0) -> Graph:
    """Returns nodes and edges with times.

    Args:
        later: Seed of the edges in the validation period.
        latest: Seed of the edges in the test period.
    """
    rng = np.random.default_rng(0)
    times, labels = np.sort(np.append(rng.integers(0, 1000, N - 2), [VAL, TEST])), np.arange(N) % 2
    src, dst, edge_time = rng.integers(0, N, M), rng.integers(0, N, M), np.sort(rng.integers(0, 1000, M))
    for first, last, seed in ((VAL, TEST, later), (TEST, 1000, latest)):
        period = np.flatnonzero((edge_time >= first) & (edge_time < last))
        other = np.random.default_rng(seed + 1)
        src[period], dst[period] = other.integers(0, N, (2, len(period)))
    fields: dict[str, Any] = {"features": rng.normal(size=(N, 3)), "labels": labels}
    graph = Graph.from_edges(src, dst, N, edge_time=edge_time, node_time=times, **fields)
    return graph.split_by_time(borders=[VAL, TEST])


def test_each_split_reads_the_edges_up_to_its_end() -> None:
    graph = dated()
    graphs = visible_graphs(graph)
    first = {part: graph.node_time[graph.split == part].min() for part in Split if part}  # type: ignore[index]
    ends = {"train": first[Split.VAL], "val": first[Split.TEST], "test": 10**9}
    for split, end in ends.items():
        expected = graph.edge_time[graph.edge_time < end]  # type: ignore[index]
        np.testing.assert_array_equal(graphs[split].edge_time, expected)
    assert graphs["train"].num_edges < graphs["val"].num_edges < M
    (line,) = describe_visible(graphs, None)
    assert line.startswith(
        f"time: {M - graphs['train'].num_edges} edges from {ends['train']} on pass no messages in training"
    )


def test_runs_that_sample_are_told_how_to_sample_by_time() -> None:
    names = ["strategy=individual_sample", "sampler=neighbor"], ["strategy=individual_sample", "sampler=labor"]
    runs = [describe_visible(visible_graphs(dated()), None, settle(compose(overrides))) for overrides in names]
    assert [len(lines) for lines in runs] == [2, 1]
    assert runs[0][1].startswith("time: sampler.time=strict trains and evaluates each node on the edges before its own")
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2], 3, edge_time=[1, 2, 3, 4]).split_by_time(borders=[3, 4])
    trained, links = LinkPrediction().prepare(graph)
    for overrides, count in zip(names, (1, 0), strict=True):
        lines = describe_times(graph, trained, links, settle(compose(overrides)))
        assert (
            sum(line.startswith("time: sampler.time=strict trains and evaluates each edge") for line in lines) == count
        )


def test_a_split_that_is_none_by_time_trains_on_all_edges() -> None:
    graph = dated()
    fields: dict[str, Any] = {"node_time": graph.node_time, "labels": graph.labels, "features": graph.features}
    src, dst = graph.csc.indices, np.repeat(np.arange(N), np.diff(graph.csc.indptr))
    mixed = Graph.from_edges(src, dst, N, edge_time=graph.edge_time, split=graph.split[::-1].copy(), **fields)
    untimed = Graph.from_edges(src, dst, N, split=graph.split, **fields)
    assert visible_graphs(mixed) == visible_graphs(untimed) == {}


def test_degrees_and_statistics_are_those_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = dated()
    degrees = np.diff(visible_graphs(graph)["train"].csc.indptr)
    for count in (7, M, 1 << 22):
        monkeypatch.setattr(inputs, "_EDGES", count)
        np.testing.assert_array_equal(degrees_before_split(graph), degrees)
    np.testing.assert_allclose(np.asarray(with_degree(graph).features)[:, -1], np.log1p(degrees), rtol=1e-6)
    scrambled = dated(later=5, latest=6)
    np.testing.assert_array_equal(with_inputs(graph, "degree").features, with_inputs(scrambled, "degree").features)
    links = Graph.from_edges([0, 1, 2], [1, 2, 0], edge_time=[1, 2, 3], node_time=[1, 2, 3]).split_by_time(
        borders=[2, 3]
    )
    assert rows_to_fit(links).tolist() == [Split.TRAIN, Split.NONE, Split.NONE]


def test_links_hold_out_events_and_the_shares_are_printed() -> None:
    src, dst = [0] * 9 + [1, 2, 3, 0], [5] * 9 + [6, 7, 5, 5]
    graph = Graph.from_edges(src, dst, 8, edge_time=range(13)).split_by_time(borders=[11, 12])
    trained, links = LinkPrediction(val_share=None).prepare(graph)
    assert trained.num_edges == 11
    assert trained.edge_time.max() == 10  # type: ignore[union-attr]
    assert links.val.pairs.tolist() == [[3, 5]]
    assert links.test.pairs.tolist() == [[0, 5]]
    assert describe_times(graph, trained, links) == [
        "time: 13 edges, 0 to 12",
        "split by time: train before 11 (84.6 %), val from 11 (7.7 %), test from 12 (7.7 %) of 13 edges",
        "time: 2 edges from 11 on pass no messages, also in evaluation",
        "held-out edges: 1 of 2 (50 %) join nodes that also an edge in training joins",
    ]


def test_later_events_change_nothing_that_trains_on_links() -> None:
    prepared = [LinkPrediction().prepare(graph) for graph in (dated(), dated(later=5, latest=6))]
    (trained, links), (again, other_links) = prepared
    np.testing.assert_array_equal(trained.csc.indices, again.csc.indices)
    np.testing.assert_array_equal(links.training.excluded, other_links.training.excluded)
    assert links.val.pairs.tolist() != other_links.val.pairs.tolist()


def test_rows_without_a_time_are_counted_and_leave() -> None:
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2], edge_time=[1.0, np.nan, 3.0, 2.0]).split_by_time(
        borders=[2, 3]
    )
    trained, links = LinkPrediction().prepare(graph)
    assert trained.num_edges == len(links.val) == len(links.test) == 1
    line, *_ = describe_times(graph, trained, links)
    assert line == "time: 3 edges, 1 to 3; 1 without a time leave in a split by time"


def test_a_share_of_a_split_by_time_is_refused() -> None:
    graph = dated()
    with pytest.raises(
        gnnkit.UserError, match=r"task.val_share=0.1 has no effect, because the dataset provides .* by time"
    ):
        LinkPrediction(val_share=0.1).prepare(graph)


@pytest.mark.slow
@few(
    "strategy,workers",
    [("vertex_centric", 2), ("individual_sample", 1), ("individual_sample", 2), ("joint_sample", 2)],
    default=[("individual_sample", 1)],
)
def test_later_edges_change_no_bit_of_what_comes_before(strategy: str, workers: int, tmp_path: Path) -> None:
    def figures(graph: Graph) -> dict[str, Any]:
        result = gnnkit.train(
            graph,
            strategy=strategy,
            model={"name": "sage", "hidden": 8},
            workers=workers,
            comm="threads",
            launcher="threads",
            trainer={"max_epochs": 3},
            report=False,
            output=str(tmp_path / "run"),
            on_exists="replace",
        )
        names = ("train_loss", "val_loss", "test_loss", "val_accuracy")
        return {name: result[name] for name in names}

    base = figures(dated())
    latest, later = figures(dated(latest=3)), figures(dated(later=4))
    assert {**latest, "test_loss": 0} == {**base, "test_loss": 0}
    assert later["train_loss"] == base["train_loss"]
    assert len({base["test_loss"], latest["test_loss"], later["test_loss"]}) == 3
    assert base["val_loss"] != later["val_loss"]


@pytest.mark.slow
def test_a_split_by_time_is_that_of_the_run_in_later_jobs(tmp_path: Path) -> None:
    graph = dated()
    src, dst = graph.csc.indices, np.repeat(np.arange(N), np.diff(graph.csc.indptr))
    fields: dict[str, Any] = {"features": graph.features, "labels": graph.labels, "node_time": graph.node_time}
    Graph.from_edges(src, dst, N, edge_time=graph.edge_time, **fields).save(tmp_path / "graph")
    split = {"by": "time", "borders": [VAL, TEST]}
    keys: dict[str, Any] = {"comm": "threads", "report": False, "logger": "none"}
    run = gnnkit.train(
        dataset={"name": "saved", "root": str(tmp_path / "graph"), "split": split},
        strategy="vertex_centric",
        model="sage",
        workers=1,
        trainer={"max_epochs": 2},
        output=str(tmp_path / "run"),
        **keys,
    )
    overrides = [f"checkpoint={tmp_path / 'run'}", f"output={tmp_path / 'test'}", "comm=threads", "report=false"]
    assert main(["job=test", *overrides]) == 0
    again = read_object(tmp_path / "test" / "result.json")
    assert {name: again[name] for name in ("val_loss", "test_loss")} == {
        name: run[name] for name in ("val_loss", "test_loss")
    }
    verified = [
        "strategy=vertex_centric",
        "model=sage",
        "workers=2",
        "dataset=saved",
        f"dataset.root={tmp_path / 'graph'}",
    ]
    by_time = f"dataset.split={{by: time, borders: [{VAL},{TEST}]}}"
    assert (
        main(["job=verify", *verified, by_time, f"output={tmp_path / 'verified'}", "comm=threads", "report=false"]) == 0
    )


def test_no_relation_passes_messages_from_the_held_out_period() -> None:
    fields: dict[str, Any] = {
        "edge_types": [0, 0, 0, 1, 1, 1, 0],
        "edge_type_names": ["user-buys-item", "user-views-item"],
        "node_types": (("user", 2), ("item", 3)),
        "relations": (Relation("user", "buys", "item"), Relation("user", "views", "item")),
    }
    graph = Graph.from_edges([0, 1, 0, 0, 1, 0, 0], [2, 3, 4, 2, 3, 4, 2], edge_time=[1, 2, 8, 3, 7, 9, 9], **fields)
    task = LinkPrediction(relation="user-buys-item", top_k=None)
    trained, links = task.prepare(graph.split_by_time(borders=[7, 9]))
    assert sorted(trained.edge_time.tolist()) == [1, 2, 3]  # type: ignore[union-attr]
    assert links.val.pairs.tolist() == [[0, 4]]
    assert links.test.pairs.tolist() == [[0, 2]], "an event whose pair has an earlier one"
    assert trained.time_borders == (7, 9)


def test_nodes_without_a_time_see_the_window_before_the_newest_edge() -> None:
    times: list[Any] = [ALWAYS, NEVER, 4]
    graph = Graph.from_edges([1, 2], [0, 0], 3, edge_time=[9, 5], node_time=times)
    assert np.asarray(NODES.arrange(graph, "window")[0].node_time).tolist() == [6, 6, 4]
    static = Graph.from_edges([1, 2], [0, 0], 3, edge_time=[9, 5])
    assert np.asarray(NODES.arrange(static, "window")[0].node_time).tolist() == [10, 10, 10]
    assert NODES.arrange(static, "strict")[0].node_time is None
