"""Folders of tables with keys as typed graphs with times."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_tables import Tables

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.testing import check_dataset
from tests.shops import MANIFEST, day, days, tables, task, write


def load(folder: Path, **keys: Any) -> Graph:
    return Tables(str(folder), **keys).load()


def edges_of(graph: Graph, relation: str) -> list[tuple[str, str, int]]:
    """Lists source, destination and time of a relation's edges, in days."""
    mask = graph.edge_types == graph.edge_type_names.index(relation)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    ends = (graph.node_ids[nodes[mask]].tolist() for nodes in (graph.csc.indices, dst))
    return sorted(zip(*ends, in_days(graph.edge_time[mask]), strict=True))


def in_days(times: Any) -> list[int]:
    fixed = (times == ALWAYS) | (times == NEVER)
    numbers = (np.where(fixed, 0, times) - day(0).astype(np.int64)) // (86_400 * 10**6)
    return np.where(fixed, np.where(times == ALWAYS, -1, 99), numbers).tolist()


def column(graph: Graph, name: str, node_type: str = "returns") -> list[float]:
    place = graph.feature_names.index(f"{node_type}.{name}")
    return np.asarray(graph.features)[graph.schema.nodes(node_type), place].tolist()


def with_changes(path: str, value: Any) -> Any:
    """Returns the manifest with another value at a path such as `tables.users.key`."""
    manifest = copy.deepcopy(MANIFEST)
    *parents, last = path.split(".")
    entry: Any = manifest
    for name in parents:
        entry = entry[name]
    entry[last] = value
    return manifest


def test_rows_are_nodes_keys_are_relations_and_targets_a_type(tmp_path: Path, capsys: Any) -> None:
    graph = load(write(tmp_path / "data"))
    assert graph.node_types == (("users", 3), ("items", 2), ("orders", 7), ("returns", 6))
    by_user = [
        ("orders:1", "users:10", 1),
        ("orders:2", "users:10", 5),
        ("orders:3", "users:11", 5),
        ("orders:4", "users:11", 9),
    ]
    assert edges_of(graph, "orders-user_id-users") == by_user
    assert edges_of(graph, "users-rev_user_id-orders") == sorted((user, order, at) for order, user, at in by_user)
    assert len(edges_of(graph, "orders-item_id-items")) == 6  # order 7 has no time
    entity = edges_of(graph, "users-entity-returns")
    assert entity[0] == ("users:10", "returns:10@2024-01-05", -1)
    assert len(entity) == 6
    orders, targets = graph.schema.nodes("orders"), graph.schema.nodes("returns")
    assert in_days(graph.node_time[orders]) == [1, 5, 5, 9, 2, 3, 99]
    assert in_days(graph.node_time[targets]) == [4, 5, 5, 6, 8, 12]
    assert graph.labels.tolist() == [-1] * 12 + [0, 1, 0, 1, 1, 0]
    assert graph.split.tolist() == [0] * 12 + [1, 1, 1, 1, 2, 3]
    lines = capsys.readouterr().out
    assert "rows of users, items have no time and are always visible" in lines
    assert "1 rows of orders have an empty time and are never visible" in lines
    assert (
        "orders.user_id has 1 empty and 1 unknown keys (such as 99, unlike 10), which refer to no row of users" in lines
    )


def test_targets_summarise_the_rows_before_their_time(tmp_path: Path) -> None:
    graph = load(write(tmp_path / "data"))
    amounts = np.asarray(graph.features)[graph.schema.nodes("orders"), graph.feature_names.index("orders.amount")]
    expected = [amounts[0], 0, 0, amounts[:2].mean(), amounts[2], amounts[:2].mean()]  # strictly before
    np.testing.assert_allclose(column(graph, "orders.user_id.amount: mean of all"), expected, rtol=1e-6)
    last = [amounts[0], 0, 0, amounts[1], amounts[2], amounts[1]]
    np.testing.assert_allclose(column(graph, "orders.user_id.amount: last"), last, rtol=1e-6)


@pytest.mark.parametrize("mode", ["last", "mean of the last 5", "mean of all"])
def test_summaries_equal_a_loop_over_all_rows(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    users, times = rng.integers(0, 6, 80), rng.integers(0, 30, 80)
    orders = pa.table(
        {
            "order_id": np.arange(80),
            "user_id": users,
            "item_id": ["a"] * 80,
            "amount": rng.normal(size=80),
            "at": days(*times),
        }
    )
    pairs = sorted(
        {(int(user), int(at)) for user, at in zip(rng.integers(0, 6, 60), rng.integers(0, 32, 60), strict=True)}
    )
    returns = task(
        user_id=[user for user, _ in pairs],
        time=days(*(at for _, at in pairs)),
        label=[n % 2 for n in range(len(pairs))],
        split=["train"] * len(pairs),
    )
    users_table = pa.table({"id": np.arange(6), "age": np.arange(6.0), "city": ["Rome"] * 6})
    graph = load(write(tmp_path / "data", users=users_table, orders=orders, returns=returns))
    amounts = np.asarray(graph.features)[graph.schema.nodes("orders"), graph.feature_names.index("orders.amount")]
    size = {"last": 1, "mean of the last 5": 5, "mean of all": 80}[mode]
    order = np.argsort(times, kind="stable")
    earlier = [[row for row in order if users[row] == user and times[row] < at][-size:] for user, at in pairs]
    expected = [amounts[rows].mean() if rows else 0 for rows in earlier]
    np.testing.assert_allclose(column(graph, f"orders.user_id.amount: {mode}"), expected, atol=1e-6)


def test_changes_after_a_cut_leave_earlier_targets_as_they_are(tmp_path: Path) -> None:
    plain = load(write(tmp_path / "plain"))
    orders = tables()["orders"].to_pydict()
    late = [n for n, at in enumerate(orders["at"]) if at is None or at > task()["time"][3].as_py()]
    for row in late:
        orders["amount"][row], orders["item_id"][row], orders["user_id"][row] = 1e6, "b", 10
    orders["order_id"].append(8)
    for name, value in {"user_id": 10, "item_id": "a", "amount": -1e6, "at": day(20).astype(object)}.items():
        orders[name].append(value)
    changed = load(write(tmp_path / "changed", orders=pa.table(orders)))
    assert changed.feature_names == plain.feature_names
    rows = [np.asarray(graph.features)[graph.schema.nodes("returns")][:4] for graph in (plain, changed)]
    np.testing.assert_array_equal(*rows)
    early = [n for n in range(7) if n not in late]
    rows = [np.asarray(graph.features)[graph.schema.nodes("orders")][early] for graph in (plain, changed)]
    np.testing.assert_array_equal(*rows)


def test_frozen_targets_see_nothing_after_the_first_test_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", returns=task(time=days(2, 3, 3, 3, 4, 6), user_id=[10, 11, 12, 10, 10, 11]))
    fresh, frozen = load(folder), load(folder, freeze="test")
    assert [len(edges_of(graph, "orders-user_id-users")) for graph in (fresh, frozen)] == [4, 3]
    assert [column(graph, "orders.user_id: number of rows")[:5] for graph in (fresh, frozen)].count([]) == 0


def test_columns_known_later_are_rows_of_their_own(tmp_path: Path) -> None:
    orders = tables()["orders"].append_column("known", days(3, 7, 7, 11, 4, 5, 9))
    later = with_changes("tables.orders.later", {"known": ["amount"]})
    graph = load(write(tmp_path / "data", later, orders=orders))
    outcomes = graph.schema.nodes("orders.known")
    assert in_days(graph.node_time[outcomes]) == [3, 7, 7, 11, 4, 5, 99]  # with the row's time at least
    assert edges_of(graph, "orders.known-row-orders")[0] == ("orders.known:0", "orders:1", 3)
    assert len(edges_of(graph, "orders.known-user_id-users")) == 4
    assert "orders.amount" not in graph.feature_names
    assert "orders.known.amount" in graph.feature_names


def test_an_event_as_late_as_its_target_is_seen_without_what_is_known_later(tmp_path: Path) -> None:
    orders = tables()["orders"].slice(0, 4).append_column("known", days(3, 7, 7, 11))
    manifest = with_changes("tables.orders.later", {"known": ["amount"]})
    manifest["tasks"]["returns"] = {"table": "orders", "entity": "order_id", "time": "time", "label": "label"}
    returns = pa.table(
        {
            "order_id": [1, 2, 3, 4],
            "time": days(1, 5, 5, 9),
            "label": [0, 1, 0, 1],
            "split": ["train", "train", "val", "test"],
        }
    )
    graph = load(
        write(
            tmp_path / "data",
            manifest,
            orders=orders.append_column("size", pa.array([1.0, 2.0, 3.0, 5.0])),
            returns=returns,
        )
    )
    assert column(graph, "size")[0] == column(graph, "size", "orders")[0] != 0  # its own row, although not earlier
    assert len(edges_of(graph, "users-user_id-returns")) == len(edges_of(graph, "items-item_id-returns")) == 4
    amounts = np.asarray(graph.features)[
        graph.schema.nodes("orders.known"), graph.feature_names.index("orders.known.amount")
    ]
    earlier = column(graph, "user_id of orders.known.user_id.amount: last")
    np.testing.assert_allclose(earlier, [0, amounts[0], 0, amounts[2]], rtol=1e-6)


@pytest.mark.parametrize(("entity", "fanouts"), [("users", [1, 20, 5]), ("orders", [1, 20])])
def test_advice_has_a_layer_for_each_hop_and_the_batches_of_the_trials(
    tmp_path: Path, entity: str, fanouts: list[int]
) -> None:
    manifest, rows = copy.deepcopy(MANIFEST), task()
    if entity == "orders":  # each as late as its target
        manifest["tasks"]["returns"] = {"table": "orders", "entity": "order_id", "time": "time", "label": "label"}
        split = ["train", "train", "val", "test"]
        rows = pa.table({"order_id": [1, 2, 3, 4], "time": days(1, 5, 5, 9), "label": [0, 1, 0, 1], "split": split})
    advice = Tables(str(write(tmp_path / "data", manifest, returns=rows))).advise(0, 0)
    values = {key: value for key, (value, _) in advice.keys.items()}
    assert values["sampler.fanouts"] == fanouts
    assert values["model.num_layers"] == len(fanouts)
    assert values["workers"] == 1


def test_keys_of_several_columns_to_one_table_and_to_itself_are_relations(tmp_path: Path) -> None:
    users = pa.table({"region": ["n", "n", "s"], "id": [1, 2, 1], "boss_region": ["n", None, "x"], "boss": [2, 1, 1]})
    orders = tables()["orders"].slice(0, 3)
    for name, values in {
        "buyer_region": ["n", "s", "s"],
        "buyer": [1, 1, 2],
        "seller_region": ["n"] * 3,
        "seller": [2, 2, 1],
    }.items():
        orders = orders.append_column(name, pa.array(values))
    links = [
        {"columns": ["buyer_region", "buyer"], "table": "users"},
        {"columns": ["seller_region", "seller"], "table": "users"},
    ]
    manifest = with_changes("tables.orders.links", links)
    manifest["tables"]["users"] = {
        "key": ["region", "id"],
        "links": [{"columns": ["boss_region", "boss"], "table": "users"}],
    }
    manifest["tasks"]["returns"]["entity"] = ["region", "id"]
    returns = pa.table(
        {"region": ["n", "s"], "id": [2, 1], "time": days(4, 8), "label": [0, 1], "split": ["train", "test"]}
    )
    graph = load(write(tmp_path / "data", manifest, users=users, orders=orders, returns=returns))
    assert edges_of(graph, "orders-buyer_region+buyer-users") == [
        ("orders:1", "users:n,1", 1),
        ("orders:2", "users:s,1", 5),
    ]
    assert [dst for _, dst, _ in edges_of(graph, "orders-seller_region+seller-users")] == [
        "users:n,2",
        "users:n,2",
        "users:n,1",
    ]
    assert edges_of(graph, "users-boss_region+boss-users") == [("users:n,1", "users:n,2", -1)]
    assert [src for src, _, _ in edges_of(graph, "users-entity-returns")] == ["users:n,2", "users:s,1"]


def test_a_task_without_times_is_static(tmp_path: Path, capsys: Any) -> None:
    manifest = with_changes("tasks.returns", {"table": "users", "entity": "user_id", "label": "label"})
    returns = pa.table({"user_id": [10, 11, 12], "label": [0, 1, 0]})
    graph = load(write(tmp_path / "data", manifest, returns=returns), split=[1, 0, 0])
    assert graph.node_time is graph.edge_time is None
    assert graph.split[-3:].tolist() == [1, 1, 1]
    assert np.ptp(column(graph, "orders.user_id: number of rows")) > 0
    assert "returns has no time in manifest.yaml, so its rows see all rows" in capsys.readouterr().out


def test_targets_are_split_by_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", returns=task().drop_columns("split"))
    graph = load(folder, split={"by": "time", "borders": ["2024-01-06", "2024-01-09"]})
    assert graph.split[-6:].tolist() == [1, 2, 2, 2, 3, 3]


def test_every_entity_is_predicted_as_of_a_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    graph, trained = load(folder, until="2024-01-08"), load(folder)
    added = [f"returns:{user}@2024-01-08" for user in (10, 11, 12)]
    assert graph.node_ids[-3:].tolist() == added
    for time in ("2024-01-08", datetime.date(2024, 1, 8)):
        predicted = Tables(str(folder), until=time).predicted_nodes(graph.schema, graph.node_ids)
        assert graph.node_ids[predicted].tolist() == added
    assert graph.labels[-3:].tolist() == [-1] * 3
    assert graph.split[-3:].tolist() == [0] * 3
    assert graph.feature_names == trained.feature_names
    rows = [np.asarray(each.features)[each.schema.nodes("returns")] for each in (graph, trained)]
    name = graph.feature_names.index("returns.orders.user_id.amount: mean of all")
    assert rows[0][6, name] == rows[1][3, name]  # user 10, two days later, without a new order


@pytest.mark.parametrize("links", [True, False])
def test_tables_of_predictions_list_the_targets(tmp_path: Path, links: bool) -> None:
    dataset = Tables(str(write(tmp_path / "data")), links=links)
    graph = dataset.load()
    ids = graph.node_ids[dataset.predicted_nodes(graph.schema, graph.node_ids)].tolist()
    assert len(ids) == 6
    assert all(name.startswith("returns:") for name in ids)


def test_targets_alone_are_a_table_for_baselines(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    graph, columns = load(folder), load(folder, links=False)
    assert (columns.num_nodes, columns.num_edges) == (6, 0)
    names = [name for name in graph.feature_names if name.startswith("returns.")]
    assert [f"returns.{name}" for name in columns.feature_names] == names
    rows = np.asarray(graph.features)[graph.schema.nodes("returns")][
        :, [graph.feature_names.index(name) for name in names]
    ]
    np.testing.assert_array_equal(columns.features, rows)
    assert columns.node_ids.tolist() == graph.node_ids[-6:].tolist()


@pytest.mark.parametrize("form", ["csv", "side by side", "divided"])
def test_all_forms_of_a_folder_are_equal(tmp_path: Path, form: str) -> None:
    expected, folder = (
        load(write(tmp_path / "plain")),
        write(tmp_path / "data", form="csv" if form == "csv" else "parquet"),
    )
    if form == "side by side":
        for path in (folder / "tables").iterdir():
            path.rename(folder / path.name)
        (folder / "tables").rmdir()
    if form == "divided":  # as RelBench stores it
        (folder / "tables").rename(folder / "db")
        (folder / "tasks/returns").mkdir()
        rows = pyarrow.parquet.read_table(folder / "tasks/returns.parquet")
        (folder / "tasks/returns.parquet").unlink()
        for part in ("train", "val", "test"):
            chosen = rows.filter(pa.compute.equal(rows["split"], part)).drop_columns("split")
            pyarrow.parquet.write_table(chosen, folder / f"tasks/returns/{part}.parquet")
    graph = load(folder)
    np.testing.assert_array_equal(np.asarray(graph.features), np.asarray(expected.features))
    np.testing.assert_array_equal(graph.csc.indices, expected.csc.indices)
    unit = {"us": 1, "ns": 1000}[graph.time_unit]
    np.testing.assert_array_equal(graph.node_time[-6:], expected.node_time[-6:] * unit)
    assert graph.split.tolist() == expected.split.tolist()


USERS, ORDERS = tables()["users"], tables()["orders"]
REFUSALS = [
    ({"users": USERS.set_column(0, "id", pa.array([10, 11, 11]))}, MANIFEST, "users.parquet, column 'id': 1 rows repeat a primary key: 11 in rows 1 and 2"),
    ({"users": USERS.set_column(0, "id", pa.array([10, None, 11]))}, MANIFEST, "1 empty cells in a primary key, such as in rows [1]"),
    ({"orders": ORDERS.set_column(1, "user_id", pa.array(list("xyzxyzx")))}, MANIFEST, "7 keys are large_string, such as ['x', 'y', 'z'], but users.parquet, column 'id' is int64"),
    ({"orders": ORDERS.set_column(1, "user_id", pa.array([1.5] * 7))}, MANIFEST, "column 'user_id', row 0: 1.5 is no key"),
    ({"returns": task(user_id=[10, 11, 77, 10, 78, 10])}, MANIFEST, "2 of 6 rows name no row of users, such as [77, 78]"),
    ({"returns": task(time=days(4, 5, 5, 4, 8, 12))}, MANIFEST, "1 entities have several rows at one time, such as row 0 (2 times), at 2024-01-05"),
    ({"returns": task(time=pa.array([None, *(day(n) for n in (5, 5, 6, 8, 12))], pa.timestamp("us")))}, MANIFEST, "1 rows have no time, the first is row 0"),
    ({"orders": ORDERS.set_column(4, "at", pa.array(np.arange(7) * 86_400 * 10**3).cast(pa.timestamp("us")))}, MANIFEST, "most dates are in January 1970"),
    ({}, with_changes("tables.users.kee", "id"), "manifest.yaml, tables.users: no key 'kee', only key, time, links, later, ignore"),
    ({}, with_changes("tables.orders.links", {"user_id": "user"}), "manifest.yaml, tables.orders.links.user_id: no table 'user', only users, items, orders"),
    ({}, with_changes("tables.orders.links", [{"columns": ["user_id", "item_id"], "table": "users"}]), "2 columns refer to the key ['id'] of users"),
    ({}, with_changes("tables.users.key", []), "tables.orders.links.user_id: users has no primary key; write tables.users.key"),
    ({}, with_changes("tables.orders.time", "when"), "orders.parquet has no column 'when'"),
    ({}, with_changes("tables.more", {"key": "id"}), "tables.more has no file in"),
    ({}, with_changes("tasks.returns.label", "score"), "returns.parquet has no column 'score'"),
    ({}, with_changes("tasks.returns.horizon", "soon"), "tasks.returns.horizon=soon: expected a span such as '30 days'"),
    ({}, with_changes("tasks.returns.horizon", 30), "tasks.returns.horizon=30: expected a span such as '30 days', as times are dates"),
    ({}, with_changes("tables.orders.later", {"at": ["user_id"]}), "tables.orders.later: 'user_id' is a key or a link"),
    ({"returns": task().drop_columns("split")}, MANIFEST, "returns: no row has the split train; fill the column split, or set dataset.split"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "manifest", "message"), REFUSALS)
def test_what_is_wrong_is_named_with_table_column_and_values(
    tmp_path: Path, changes: dict[str, Any], manifest: Any, message: str
) -> None:
    with pytest.raises(UserError) as error:
        load(write(tmp_path / "data", manifest, **changes))
    assert message in str(error.value)


@pytest.mark.parametrize("label", [[5, 6] * 6, ["a", "b"] * 6, [n / 8 + 0.3 for n in range(12)]])
def test_a_label_that_is_a_column_of_its_entity_is_refused_by_name(tmp_path: Path, label: list[Any]) -> None:
    copies = label if isinstance(label[0], float) else [f"is {value}" for value in label]
    users = pa.table({"id": np.arange(12), "city": ["Rome"] * 12, "back": copies})
    returns = pa.table({"user_id": np.arange(12), "time": days(*[4] * 12), "label": label, "split": ["train"] * 12})
    with pytest.raises(UserError) as error:
        load(write(tmp_path / "data", users=users, returns=returns))
    assert "the label equals back of users in at least 99.9 % of 12 training rows" in str(error.value)
    with pytest.raises(UserError, match="the label equals back of users"):
        load(
            write(tmp_path / "divided later", users=users, returns=returns.drop_columns("split")),
            split={"by": "time", "shares": [0.7, 0.15, 0.15]},
        )
    later = with_changes("tables.users.ignore", ["back"])
    assert "users.back" not in load(write(tmp_path / "ignored", later, users=users, returns=returns)).feature_names


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"table": "more"}, "task.table=more: the tasks are returns"),
        ({"freeze": "val"}, "task.freeze=val"),
        ({"split": [0.6, 0.2, 0.2]}, "dataset.split: the task table already has a split"),
        ({"until": "soon"}, "dataset.until=soon: expected a date"),
        ({"until": "1999-01-01"}, "dataset.until=1999-01-01: all rows are later, from 202"),
        ({"manifest": "none.yaml"}, "none.yaml"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    folder = write(tmp_path / "data")
    with pytest.raises(UserError) as error:
        load(folder, **keys)
    assert message in str(error.value)


@pytest.mark.parametrize(("until", "is_later"), [("2034-01-01", True), ("2024-01-08", False)])
def test_a_time_after_the_newest_row_is_told(
    tmp_path: Path, until: str, is_later: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    load(write(tmp_path / "data"), until=until)
    told = capsys.readouterr()
    assert (f"dataset.until={until}: the newest row is of 202" in told.out + told.err) == is_later


def test_the_data_set_keeps_the_contract(tmp_path: Path) -> None:
    check_dataset(Tables(str(write(tmp_path / "data"))))


def test_keys_of_a_csv_with_an_empty_cell_are_whole_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", form="csv")
    path = folder / "tables/orders.csv"
    path.write_text(path.read_text().replace(",10,", ",10.0,").replace(",11,", ",11.0,"))
    assert "10.0" in path.read_text()
    assert len(edges_of(load(folder), "orders-user_id-users")) == 4


def test_rows_without_a_time_are_no_earlier_than_the_rows_to_which_they_refer(tmp_path: Path) -> None:
    lines = pa.table({"order": [1, 2, 3, 4], "user": [10, 10, 11, 11]})
    spec = {"key": [], "links": {"order": "orders", "user": "users"}}
    folder = write(tmp_path / "data", with_changes("tables.lines", spec))
    pyarrow.parquet.write_table(lines, folder / "tables/lines.parquet")
    graph = load(folder)
    assert in_days(graph.node_time[graph.schema.nodes("lines")]) == [1, 5, 5, 9]
    assert [time for *_, time in edges_of(graph, "lines-user-users")] == [1, 5, 5, 9]


def test_times_reach_rows_through_tables_without_times(tmp_path: Path) -> None:
    chain = {
        "notes": {"key": [], "links": {"option": "options", "user": "users"}},
        "options": {"key": "option", "links": {"line": "lines"}},
        "lines": {"key": "line", "links": {"order": "orders"}},
    }
    folder = write(tmp_path / "data", {**MANIFEST, "tables": {**chain, **MANIFEST["tables"]}})
    rows = {
        "notes": {"option": [1, 2, 3, None], "user": [10, 10, 11, 11]},
        "options": {"option": [1, 2, 3], "line": [3, 2, 1]},
        "lines": {"line": [1, 2, 3], "order": [1, 2, 4]},
    }
    for name, cells in rows.items():
        pyarrow.parquet.write_table(pa.table(cells), folder / f"tables/{name}.parquet")
    graph = load(folder)
    assert in_days(graph.node_time[graph.schema.nodes("options")]) == [9, 5, 1]
    assert [time for *_, time in edges_of(graph, "notes-user-users")] == [9, 5, 1, -1]


def test_frozen_targets_see_no_label_of_the_test_period(tmp_path: Path) -> None:
    manifest = with_changes("tasks.returns.horizon", "1 day")
    rows = {"user_id": [10] * 6, "time": days(4, 5, 6, 8, 9, 12)}
    parts = ["train", "train", "train", "val", "test", "test"]
    found = []
    for number, last in enumerate((0, 1)):
        returns = task(**rows, split=parts, label=[0, 1, 0, 1, last, 0])
        folder = write(tmp_path / str(number), manifest, returns=returns)
        found.append([load(folder, freeze=freeze, links=False).features for freeze in ("test", "none")])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert not np.array_equal(found[0][1], found[1][1]), "without freezing, the last target sees the label"


@pytest.mark.parametrize("keys", [{"until": 5}, {"freeze": "test"}])
def test_a_task_without_times_has_no_date_to_predict_at(tmp_path: Path, keys: dict[str, Any]) -> None:
    manifest = with_changes("tasks.returns", {"table": "users", "entity": "user_id", "label": "label"})
    returns = pa.table({"user_id": [10, 11, 12], "label": [0, 1, 0], "split": ["train", "val", "test"]})
    with pytest.raises(UserError, match=r"need times: name tasks\.returns\.time in manifest\.yaml"):
        load(write(tmp_path / "data", manifest, returns=returns), **keys)


def test_a_later_cell_that_is_no_number_is_empty(tmp_path: Path) -> None:
    amounts = pa.array(["1", "2", "3", "4", "5", "6", "n.v."])
    orders = tables()["orders"].set_column(3, "amount", amounts)
    graph = load(write(tmp_path / "data", orders=orders))
    assert "orders.amount" in graph.feature_names
    assert "returns.orders.user_id.amount: mean of all" in graph.feature_names


def test_whole_numbers_are_codes_by_the_words_of_their_name(tmp_path: Path) -> None:
    users = USERS.append_column("paid", pa.array([1, 5, 9])).append_column("shopId", pa.array([1, 2, 2]))
    names = load(write(tmp_path / "data", users=users)).feature_names
    assert "users.paid" in names
    assert "users.shopId=1" in names


def test_distinct_numbers_are_no_copy_of_a_label_and_a_copy_with_a_gap_is(tmp_path: Path) -> None:
    count = 300
    users = pa.table({"id": np.arange(count), "lat": np.random.default_rng(0).normal(size=count)})
    rows = {"user_id": np.arange(count), "time": days(*[4] * count), "split": ["train"] * count}
    returns = pa.table({**rows, "label": np.random.default_rng(1).normal(size=count)})
    load(write(tmp_path / "apart", users=users, returns=returns))
    classes = np.arange(2000) % 2
    users = pa.table({"id": np.arange(2000), "copy": pa.array([None, *classes[1:].tolist()])})
    rows = {"user_id": np.arange(2000), "time": days(*[4] * 2000), "split": ["train"] * 2000}
    with pytest.raises(UserError, match="the label equals copy of users"):
        load(write(tmp_path / "copied", users=users, returns=pa.table({**rows, "label": classes})))
