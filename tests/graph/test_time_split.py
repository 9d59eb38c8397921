"""Splits by time keep equal times together; other splits of dates are warned of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.npz import Npz
from torch_geometric.data import TemporalData

from gnnkit.dataset.saved import Saved
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.graph.split import TimeSplit, parts_of, read_split
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.task.link_prediction import LinkPrediction

SHARES = [0.7, 0.15, 0.15]


@pytest.mark.parametrize("seed", range(40))
def test_equal_times_are_never_separated_and_shares_are_the_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = rng.integers(0, rng.choice([4, 10, 1000]), rng.integers(30, 300)) * 2**50
    val, test = TimeSplit("split", SHARES, None).find_borders(times, None)
    values = np.unique(times)
    assert {val, test} <= {*values.tolist()}
    assert values[0] < val < test
    parts = parts_of(times, (val, test))
    assert (parts == Split.TRAIN).any()
    assert (parts == Split.VAL).any()
    assert (parts == Split.TEST).any()
    candidates = [np.mean(times < value) for value in values[1:-1]]
    assert abs(np.mean(times < val) - 0.7) == min(abs(share - 0.7) for share in candidates)


@pytest.mark.parametrize(
    ("shares", "borders"), [([0.5, 0.5, 0.0], (2, NEVER)), ([0.5, 0.0, 0.5], (2, 2)), ([1.0, 0.0, 0.0], (NEVER, NEVER))]
)
def test_a_part_may_be_empty(shares: list[float], borders: tuple[int, int]) -> None:
    assert TimeSplit("split", shares, None).find_borders(np.array([0, 1, 2, 3, NEVER, ALWAYS]), None) == borders


def test_nodes_without_a_label_or_a_time_are_in_no_part() -> None:
    nodes = pd.DataFrame(
        {
            "id": range(6),
            "label": [0, 1, 0, None, 1, 0],
            "time": pd.to_datetime(["2020", "2021", "2022", "2020", "NaT", "2023"]),
        }
    )
    graph = Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)
    split = graph.split_by_time(borders=["2022-01-01", "2023-01-01"]).split
    assert split.tolist() == [Split.TRAIN, Split.TRAIN, Split.VAL, Split.NONE, Split.NONE, Split.TEST]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "date"}, r"dataset.split={'by': 'date'}: expected {by: time, shares: "),
        ({"by": "time", "share": SHARES}, "expected {by: time"),
        ({"by": "time"}, "dataset.split: expected either shares or borders"),
        ({"by": "time", "shares": SHARES, "borders": [1, 2]}, "expected either shares or borders"),
        ({"by": "time", "shares": [0.5, 0.2, 0.2]}, r"dataset.split=\[0.5, 0.2, 0.2\]: shares .* must add up to 1"),
        ({"by": "time", "borders": [1]}, r"dataset.split.borders=\[1\]: expected two times"),
        (
            {"by": "time", "borders": [3, 2]},
            "dataset.split: no row is before the first validation time 3, or it is after",
        ),
        ({"by": "time", "borders": [0, 2]}, "no row is before the first validation time 0, .*, the first is 1"),
        (
            {"by": "time", "borders": ["2020-01-01", "2021-01-01"]},
            r"dataset.split.borders .times are numbers here.=2020-01-01",
        ),
        ({"by": "time", "shares": SHARES}, "dataset.split: the rows have 2 distinct times, and 3 are needed"),
    ],
)
def test_splits_that_cannot_be_are_refused(split: dict[str, Any], message: str, tmp_path: Path) -> None:
    Graph.from_edges([0, 1], [1, 0], edge_time=[1, 2]).save(tmp_path / "graph")
    with pytest.raises(UserError, match=message):
        Saved(str(tmp_path / "graph"), split=split).load()


def test_dates_are_expected_where_times_are_dates_and_times_where_rows_have_some() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], edge_time=np.array(["2020-01-01", "2021-01-01"], "M8[D]"))
    for border in (2021, "last year", "2021-01-01T00:00:00.5"):
        with pytest.raises(UserError, match=r"split_by_time.borders=.*: expected a date such as 2026-01-31"):
            graph.split_by_time(borders=[border, border])
    assert graph.split_by_time(borders=["2021-01-01", "2021-01-01 00:00"]).time_borders == (1609459200,) * 2
    with pytest.raises(UserError, match=r"neither labelled nodes nor edges have times: dataset.time=COLUMN"):
        Graph.from_edges([0, 1], [1, 0]).split_by_time(SHARES)


def test_the_key_of_every_data_set_splits_nodes_and_edges(tmp_path: Path) -> None:
    rows = {"label": [0, 1] * 5, "time": range(10)}
    edges = {"src": range(10), "dst": [*range(1, 10), 0], "timestamp": [*range(9, -1, -1)]}
    pd.DataFrame(edges).to_csv(tmp_path / "edges.csv", index=False)
    pd.DataFrame({"id": range(10), **rows}).to_csv(tmp_path / "nodes.csv", index=False)
    split = {"by": "time", "shares": [0.5, 0.2, 0.3]}
    graphs = [EdgeFolder(str(tmp_path), symmetrize=False, split=split).load()]
    plain = EdgeFolder(str(tmp_path), symmetrize=False).load()
    plain.save(tmp_path / "graph")
    graphs.append(Saved(str(tmp_path / "graph"), split=split).load())
    times = {"edge_time": plain.edge_time, "node_time": plain.node_time, "y": plain.labels}
    arrays: dict[str, Any] = {"indptr": plain.csc.indptr, "indices": plain.csc.indices, "x": np.zeros((10, 1)), **times}
    np.savez(tmp_path / "g.npz", **arrays)
    graphs.append(Npz(str(tmp_path / "g.npz"), split=split).load())
    for graph in graphs:
        assert graph.split.tolist() == [1] * 5 + [2] * 2 + [3] * 3
        assert graph.time_borders == (5, 7)
        graph.save(tmp_path / "again")
        with pytest.raises(UserError, match=r"dataset\.split=by time: the data already has a split; remove the key"):
            Saved(str(tmp_path / "again"), split=split).load()


EDGES: dict[str, Any] = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]}
DAYS = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"])
NODES: dict[str, Any] = {"id": [0, 1, 2, 3], "label": [0, 1, 0, 1]}


@pytest.mark.parametrize("name", ["created_at", "date", "Timestamp", "tourney_date", "joined"])
@pytest.mark.parametrize("table", ["edges", "nodes"])
@pytest.mark.parametrize("form", [DAYS, DAYS.strftime("%Y-%m-%d")])
@pytest.mark.filterwarnings("ignore:.* is the time of each row", "ignore:.* reads", "ignore:.*reverse edge")
def test_a_random_split_of_rows_with_dates_of_any_name_is_warned_of(name: str, table: str, form: Any) -> None:
    edges, nodes = (
        pd.DataFrame({**rows, name: form} if table == of else rows) for of, rows in (("edges", EDGES), ("nodes", NODES))
    )
    graph = Graph.from_tables(edges, nodes)
    split_links = LinkPrediction(val_share=0.3).prepare
    for kind, draw in (("nodes", lambda: graph.draw_split([0.5, 0.25, 0.25])), ("edges", lambda: split_links(graph))):
        remedy = r"dataset\.split='{by: time" if kind == table else f"needs times of {kind}: dataset.time=COLUMN"
        with pytest.warns(UserWarning, match=f"the split is drawn at random, and .* holds times: .*{remedy}"):
            draw()


def test_a_random_split_of_events_is_warned_of_and_of_rows_without_times_is_not() -> None:
    events = TemporalData(src=torch.arange(4), dst=torch.arange(4).flip(0), t=torch.arange(4))
    with pytest.warns(UserWarning, match=r"at random, and Graph\.edge_time holds times"):
        LinkPrediction(val_share=0.3).prepare(Graph.of(events))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Graph.from_tables(
            pa.table({**EDGES, "amount": [1, 2, 3, 4]}), pa.table({**NODES, "size": [1, 2, 3, 4]})
        )
        graph.draw_split([0.5, 0.25, 0.25])
        LinkPrediction(val_share=0.3).prepare(graph)


def test_a_split_is_shares_or_a_mapping() -> None:
    assert read_split("split", None) is None
    assert read_split("split", [0.6, 0.2, 0.2]) == (0.6, 0.2, 0.2)
    assert read_split("split", {"by": "time", "shares": SHARES}) == TimeSplit("split", SHARES, None)
