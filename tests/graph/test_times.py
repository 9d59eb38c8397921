"""Times are read exactly, by every reader, and survive what graphs pass through."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from gnnkit_formats.duplicates import JOIN, without_duplicates
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.npz import Npz
from torch_geometric.data import Data, HeteroData, TemporalData

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.graph.times import ALWAYS, NEVER, parse_time, show_time
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import cut_all
from gnnkit.partition.store.join import join_shards
from gnnkit.prepare.kept import content, fingerprint
from tests.graph.test_from_dgl import Stand

BIG = 2**53 + 1  # float64 would round it
SRC, DST = [3, 0, 2, 1, 0], [0, 1, 0, 2, 1]
EDGE_TIME, NODE_TIME = [BIG, 5, -7, BIG + 2, 1], [BIG + 4, 3, 2, 1]
pytestmark = pytest.mark.filterwarnings("ignore:.* is the time of each row", "ignore:.*in a reverse edge")


def tables(folder: Path, kind: str) -> Graph:
    edges = pa.table({"src": SRC, "dst": DST, "timestamp": EDGE_TIME})
    nodes = pa.table({"id": range(4), "time": NODE_TIME})
    if kind == "frame":
        return Graph.from_tables(edges.to_pandas(), nodes.to_pandas())
    for name, table in (("edges", edges), ("nodes", nodes)):
        if kind == "csv":
            pyarrow.csv.write_csv(table, folder / f"{name}.csv")
        else:
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return EdgeFolder(str(folder)).load()


def data(folder: Path, kind: str) -> Graph:
    ends = torch.tensor([SRC, DST])
    if kind == "data":
        return Graph.of(Data(edge_index=ends, num_nodes=4, time=torch.tensor(NODE_TIME), edge_time=EDGE_TIME))
    if kind == "hetero":
        typed = HeteroData()
        typed["a"].time, typed["a"].num_nodes, typed["b"].num_nodes = torch.tensor(NODE_TIME), 4, 1
        typed["a", "to", "a"].edge_index, typed["a", "to", "a"].time = ends, torch.tensor(EDGE_TIME)
        typed["a", "is", "b"].edge_index = torch.tensor([[0], [0]])
        graph = Graph.of(typed)
        assert graph.node_time is not None
        assert graph.edge_time is not None
        assert graph.node_time.tolist() == [*NODE_TIME, ALWAYS]
        assert graph.edge_time.tolist()[-1] == ALWAYS
        del typed["b"], typed["a", "is", "b"]
        return Graph.of(typed)
    stand = Stand(SRC, DST, 4)
    stand.ndata["timestamp"], stand.edata["t"] = torch.tensor(NODE_TIME), torch.tensor(EDGE_TIME)
    return Graph.of(stand)


def network(folder: Path, kind: str) -> Graph:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from((v, {"time": time}) for v, time in enumerate(NODE_TIME))
    graph.add_edges_from((u, v, {"t": t}) for u, v, t in zip(SRC, DST, EDGE_TIME, strict=True))
    return Graph.from_networkx(graph)


def arrays(folder: Path, kind: str) -> Graph:
    graph = Graph.from_edges(SRC, DST, 4, edge_time=EDGE_TIME, node_time=NODE_TIME)
    if kind == "saved":
        graph.save(folder / "graph")
        return Graph.load(folder / "graph")
    if kind == "npz":
        times = {"edge_time": graph.edge_time, "node_time": graph.node_time}
        features = np.zeros((4, 1), np.float32)
        np.savez(folder / "g.npz", indptr=graph.csc.indptr, indices=graph.csc.indices, x=features, **times)  # type: ignore[arg-type]
        return Npz(str(folder / "g.npz")).load()
    return graph


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        (tables, "frame"),
        (tables, "csv"),
        (tables, "parquet"),
        (data, "data"),
        (data, "hetero"),
        (data, "dgl"),
        (network, "networkx"),
        (arrays, "edges"),
        (arrays, "saved"),
        (arrays, "npz"),
    ],
)
def test_every_reader_keeps_integer_times_exactly(reader: Any, kind: str, tmp_path: Path) -> None:
    graph = reader(tmp_path, kind)
    order = np.lexsort((SRC, DST))
    if kind == "networkx":  # which lists edges by source
        assert sorted(graph.edge_time) == sorted(EDGE_TIME)
    else:
        np.testing.assert_array_equal(graph.edge_time, np.array(EDGE_TIME)[order])
    np.testing.assert_array_equal(graph.node_time, NODE_TIME)
    assert graph.time_unit is None
    assert not graph.features.any()
    assert graph.edge_features is None


def test_events_of_pyg_become_a_graph() -> None:
    events = TemporalData(
        src=torch.tensor(SRC), dst=torch.tensor(DST), t=torch.tensor(EDGE_TIME), msg=torch.arange(5.0)[:, None]
    )
    graph = Graph.of(events)
    by_message = np.argsort(graph.edge_features[:, 0])  # type: ignore[index]
    np.testing.assert_array_equal(graph.edge_time[by_message], EDGE_TIME)  # type: ignore[index]


DATES = [datetime.datetime(2020, 1, 1), datetime.datetime(2021, 6, 5, 4, 3, 2, 1), None]


@pytest.mark.parametrize(
    ("cells", "unit", "expected"),
    [
        (pa.array([1, None, 3]), None, [1, NEVER, 3]),
        (pa.array([1.0, None, 2.0**52]), None, [1, NEVER, 2**52]),
        (pa.array(["1", "", " 3"]), None, [1, NEVER, 3]),
        (pa.array(DATES, pa.timestamp("us")), "us", [1577836800000000, 1622865782000001, NEVER]),
        (pa.array([d and d.date() for d in DATES]), "s", [1577836800, 1622851200, NEVER]),
        (
            pa.array(["2020-01-01", "NA", "2021-06-05 04:03:02.000001"]),
            "us",
            [1577836800000000, NEVER, 1622865782000001],
        ),
        (
            pa.array(["2020-01-01T01:00:00+01:00", None, "2020-01-01T00:00:01Z"]),
            "us",
            [1577836800000000, NEVER, 1577836801000000],
        ),
        (pa.array(DATES[:1] * 3, pa.timestamp("ns", "Europe/Berlin")), "ns", [1577836800 * 10**9] * 3),
    ],
)
def test_integers_and_dates_keep_their_unit_and_missing_times_are_never_visible(
    cells: pa.Array, unit: str | None, expected: list[int]
) -> None:
    edges = pa.table({"src": [0, 1, 2], "dst": [0, 1, 2], "when": cells})
    graph = Graph.from_tables(edges, pa.table({"id": [0, 1, 2], "when": cells}), time="when")
    for times in (graph.edge_time, graph.node_time):
        assert times is not None
        assert times.dtype == np.int64
        assert times.tolist() == expected
    assert graph.time_unit == unit
    assert graph.edge_feature_names is graph.feature_names is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (pa.array([1.0, 2.5]), r"column 'when', row 1: 2.5 is no whole number below 2\^53"),
        (pa.array([1.0, 2.0**53]), r"row 1: 9007199254740992.0 is no whole number below 2\^53"),
        (pa.array([1.0, 2.0**24], pa.float32()), r"row 1: 16777216.0 is no whole number below 2\^24"),
        (pa.array([1.0, np.inf]), "row 1: inf is no whole number"),
        (pa.array([0, ALWAYS]), "row 1: -9223372036854775808 is how NaT is written"),
        (pa.array([0, 2**64 - 1], pa.uint64()), "row 1: '18446744073709551615' is no whole number of 64 bits"),
        (pa.array(["2020-01-01", "4/15/04"]), "row 1: '4/15/04' differs from 2020-01-01: all cells must be"),
        (pa.array(["2020-01-01", "2020-01-01T00:00:00Z"]), "row 1: .* differs from 2020-01-01: .* time zone"),
        (pa.array(["2020-01-01", "2020-02-30"]), "row 1: '2020-02-30' is no date$"),
        (pa.array([True, False]), "holds bool, expected whole numbers or dates"),
        (pa.array([1, 2], pa.time32("s")), r"holds time32\[s\], expected whole numbers or dates"),
    ],
)
def test_other_times_are_refused_with_the_first_row(cells: pa.Array, message: str) -> None:
    edges = pa.table({"src": [0, 1], "dst": [1, 0], "when": cells})
    with pytest.raises(UserError, match=message):
        Graph.from_tables(edges, time="when")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (np.array([1, 2.5]), r"edge_time\[1\] = 2.5 is no whole number below 2\^53"),
        (np.array([1, 1.7e9], np.float32), r"edge_time\[1\] = .* is no whole number below 2\^24, .* float32"),
        (np.array(["a", "b"]), "edge_time has dtype <U1, expected integers"),
        (np.array([1, 2, 3]), "edge_time has 3 entries, expected 2"),
        (np.array([True, False]), "edge_time has dtype bool, expected integers"),
    ],
)
def test_arrays_of_other_times_are_refused(times: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Graph.from_edges([0, 1], [1, 0], edge_time=times)


def test_dates_of_edges_and_nodes_get_one_unit_or_are_refused() -> None:
    days, seconds = np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-01T00:00:00.5", "NaT"], "M8[ms]")
    graph = Graph.from_edges([0, 1], [1, 0], edge_time=days, node_time=seconds)
    assert graph.time_unit == "ms"
    assert graph.edge_time.tolist() == [NEVER, 1577836800000]  # type: ignore[union-attr]
    assert graph.node_time.tolist() == [1577836800500, NEVER]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="node_time holds numbers and edge_time holds dates"):
        Graph.from_edges([0, 1], [1, 0], edge_time=days, node_time=[1, 2])
    with pytest.raises(UserError, match=r"edge_time.*exceeds 64 bits in ns"):
        Graph.from_edges([0], [1], 2, edge_time=np.array(["5000-01-01"], "M8[s]"), node_time=days.astype("M8[ns]"))


def test_a_column_named_like_times_is_recognised_said_and_no_feature() -> None:
    edges = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "timestamp": [5, 6], "amount": [1.5, 2.5]})
    with pytest.warns(
        UserWarning, match=r"edges: 'timestamp' is the time of each row, and no feature: time=\[\] makes"
    ):
        graph = Graph.from_tables(edges)
    assert graph.edge_feature_names == ("amount",)
    graph = Graph.from_tables(edges, time=[])
    assert graph.edge_time is None
    assert graph.edge_feature_names == ("timestamp", "amount")
    graph = Graph.from_tables(edges, edge_features=["timestamp"])
    assert graph.edge_feature_names == ("timestamp",), "which names it as a feature too"
    with pytest.warns(UserWarning, match=r"'time', 'timestamp' are features, of which one may be .*: use time=time"):
        assert Graph.from_tables(edges.assign(time=[1, 2])[["src", "dst", "time", "timestamp"]]).edge_time is None
    with pytest.raises(UserError, match=r"time=\['when'\]: no column 'when' in edges"):
        Graph.from_tables(edges, time="when")
    with pytest.raises(UserError, match=r"time=\[.*\]: edges has 2 of them, expected one"):
        Graph.from_tables(edges, time=["timestamp", "amount"])


def timed() -> Graph:
    return Graph.from_edges(SRC, DST, 4, edge_time=EDGE_TIME, node_time=NODE_TIME, weight=np.ones(5))


def test_times_survive_shards_and_their_union() -> None:
    graph = timed()
    again = join_shards(cut_all(graph, Partition(np.array([0, 1, 1, 0]), None, Grid(2, 1, 1))), None, None)
    np.testing.assert_array_equal(again.edge_time, graph.edge_time)
    np.testing.assert_array_equal(again.node_time, graph.node_time)


def test_reverse_edges_copy_times_and_renumbered_nodes_keep_theirs() -> None:
    graph = timed()
    for whole in (graph.symmetrize(), with_inverse_edges(graph)):
        ends = np.repeat(np.arange(4), np.diff(whole.csc.indptr))
        pairs = {(int(u), int(v)): int(t) for u, v, t in zip(whole.csc.indices, ends, whole.edge_time, strict=True)}  # type: ignore[arg-type]
        assert pairs[0, 3] == pairs[3, 0] == BIG
    order = np.array([2, 0, 3, 1])
    assert graph.renumber(order).node_time.tolist() == [NODE_TIME[v] for v in order]  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["first", "sum", "mean"])
def test_merged_edges_have_the_first_time_or_the_latest_of_what_they_sum(how: str) -> None:
    merged = without_duplicates(Graph.from_edges([0, 0, 1], [1, 1, 0], edge_time=[BIG, BIG + 1, 3]), how, JOIN)
    assert merged.edge_time.tolist() == [3, BIG if how == "first" else BIG + 1]  # type: ignore[union-attr]


def test_graphs_that_differ_in_times_only_are_not_taken_for_each_other() -> None:
    graphs = [Graph.from_edges(SRC, DST, 4, edge_time=times) for times in (None, EDGE_TIME, EDGE_TIME[::-1])]
    assert len({fingerprint(graph) for graph in graphs}) == 3
    assert len({content(graph) for graph in graphs}) == 3


def test_a_time_is_shown_as_a_date_if_it_has_a_unit() -> None:
    assert show_time(1577836800, "s") == "2020-01-01"
    assert show_time(1577836800 * 10**6 + 1500000, "us") == "2020-01-01 00:00:01.5"
    assert show_time(-5, None) == "-5"


@pytest.mark.parametrize("value", ["2020-01-01T02:00:00+02:00", "2020-01-01T00:00:00Z", "2020-01-01"])
def test_a_configured_time_with_a_zone_is_read_in_utc_without_a_warning(value: str) -> None:
    with warnings.catch_warnings(action="error"):
        assert parse_time("dataset.until", value, "s") == 1577836800
