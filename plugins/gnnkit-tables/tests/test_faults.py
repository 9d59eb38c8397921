"""Databases with faults that are common: each is read with a line, or refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_tables import Tables
from gnnkit_tables.encode import scaled

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.graph.times import ALWAYS, NEVER
from tests.shops import MANIFEST, day, days, tables, task, write

USERS, ITEMS, ORDERS = tables()["users"], tables()["items"], tables()["orders"]


def load(folder: Path, **keys: Any) -> Graph:
    return Tables(str(folder), **keys).load()


def rows_of(graph: Graph, node_type: str, count: int) -> dict[str, list[float]]:
    """Returns the first rows of a type by column."""
    rows, names = np.asarray(graph.features)[graph.schema.nodes(node_type)][:count], graph.feature_names
    prefix = f"{node_type}."
    return {name: rows[:, place].tolist() for place, name in enumerate(names) if name.startswith(prefix)}


@pytest.mark.parametrize("keys", [{}, {"until": "2024-01-20"}])
def test_rows_without_a_time_that_are_added_later_change_nothing(tmp_path: Path, keys: dict[str, Any]) -> None:
    plain = load(write(tmp_path / "plain"), **keys)
    users = {"id": [13, 14], "age": [900.0, -5.0], "city": ["Paris", "Paris"]}
    items = {"item_id": ["c", "d"], "price": [1e6, 0.0]}
    more = {
        "users": pa.concat_tables([USERS, pa.table(users)]),
        "items": pa.concat_tables([ITEMS, pa.table(items)]),
    }
    grown = load(write(tmp_path / "grown", **more), **keys)
    assert grown.feature_names == plain.feature_names
    for node_type, count in (("users", 3), ("items", 2), ("returns", 6)):
        assert rows_of(grown, node_type, count) == rows_of(plain, node_type, count)


@pytest.mark.parametrize("value", np.log1p([7.0, 2_592_000.0, 2_592_000_000.0]))
def test_a_column_of_equal_numbers_is_zero_after_scaling(value: float) -> None:
    rng = np.random.default_rng(0)
    for size in range(1000, 3000, 37):
        numbers = np.stack([rng.random(size), np.where(rng.random(size) < 0.3, np.nan, value)], 1)
        encoded = scaled(numbers, ["a", "b"], ["a", "b"], rng.random(size) < 0.6)
        assert encoded.names == ("a", "b", "b is empty")
        assert not encoded.rows[:, 1].any()


def test_only_the_files_of_the_same_table_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "tables/items.csv").write_text("item_id,price\na,1\n")
    with pytest.raises(UserError, match=r"has several files of the table items: items\.csv, items\.parquet; keep one"):
        load(folder)


DATES = {
    "slashes": ["31/01/2024", "01/02/2024", "15/02/2024"],
    "points": ["31.01.2024", "1.2.2024", "15.2.2024"],
    "year first": ["2024/01/31", "2024/02/01", "2024/02/15"],
    "names": ["Jan 31, 2024", "February 1, 2024", "Feb 15, 2024"],
    "day and name": ["31 Jan 2024", "1 February 2024", "15 Feb 2024"],
    "oracle": ["31-Jan-2024", "01-Feb-2024", "15-Feb-2024"],
}
UNREAD = {
    "day or month": ["03/01/2024", "01/02/2024", "12/02/2024"],
    "mixed": ["31/01/2024", "01.02.2024", "15/02/2024"],
    "short year": ["01-31-24", "02-01-24", "02-15-24"],
}


@pytest.mark.parametrize("form", DATES)
@pytest.mark.parametrize("guessed", [True, False])
def test_dates_in_common_forms_are_times(tmp_path: Path, form: str, guessed: bool) -> None:
    users, orders = USERS.append_column("joined", pa.array(DATES[form])), ORDERS.drop_columns("at")
    specs = {"users": {"key": "id", "time": "joined"}, "items": {"key": "item_id"}, "orders": {"key": "order_id"}}
    manifest = None if guessed else {**MANIFEST, "tables": specs}
    graph = load(write(tmp_path / "data", manifest, users=users, orders=orders))
    times = graph.node_time[graph.schema.nodes("users")].view(f"M8[{graph.time_unit}]")
    assert times.astype("M8[D]").astype(str).tolist() == ["2024-01-31", "2024-02-01", "2024-02-15"]


@pytest.mark.parametrize("form", UNREAD)
@pytest.mark.parametrize("manifest", [MANIFEST, None])
def test_dates_in_another_form_are_named_with_the_remedy(tmp_path: Path, form: str, manifest: Any, capsys: Any) -> None:
    users = USERS.append_column("joined", pa.array(UNREAD[form]))
    load(write(tmp_path / "data", manifest, users=users))
    expected = (
        f"users.joined holds {UNREAD[form][0]}: if these are times, write dates as 2026-01-31 or name the column as"
    )
    assert expected in capsys.readouterr().out


def test_whole_numbers_in_a_column_named_time_are_mentioned(tmp_path: Path, capsys: Any) -> None:
    load(write(tmp_path / "data", users=USERS.append_column("created_time", pa.array([1, 2, 3]))))
    assert "users.created_time" not in capsys.readouterr().out  # only the whole word means a time
    load(write(tmp_path / "again", users=USERS.append_column("timestamp", pa.array([1, 2, 3]))))
    assert "users.timestamp holds 1: if these are times" in capsys.readouterr().out


@pytest.mark.parametrize("cells", [["1.2.3", "1.3.0", "2.0.1"], ["0171-55-1", "030/22/7", "1/2/3"], ["a", "b", "c"]])
def test_versions_and_telephone_numbers_are_no_dates(tmp_path: Path, cells: list[str], capsys: Any) -> None:
    load(write(tmp_path / "data", users=USERS.append_column("other", pa.array(cells))))
    assert "users.other" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("good", "bad"), [("7.5", "n.v."), ("7", "about 8"), ("2024-01-05", "unclear"), ("2024-01-05 10:00", "31.12.2023")]
)
@pytest.mark.parametrize("place", [1, 450])  # among the rows that decide, and later
def test_few_cells_of_another_kind_are_empty_and_counted(
    tmp_path: Path, good: str, bad: str, place: int, capsys: Any
) -> None:
    count = 500
    cells = [good] * count
    cells[place] = bad
    orders = pa.table(
        {
            "order_id": np.arange(count),
            "user_id": [10] * count,
            "item_id": ["a"] * count,
            "amount": cells,
            "at": [day(0) + np.timedelta64(minute * 30, "m") for minute in range(count)],
        }
    )
    graph = load(write(tmp_path / "data", orders=orders))
    columns = rows_of(graph, "orders", count)
    assert {"orders.amount"} <= columns.keys() <= {"orders.amount", "orders.amount is empty"}
    line = f"orders.amount: 1 of 500 cells are unlike the others, such as '{bad}' in row {place}, and are read as empty"
    assert line in capsys.readouterr().out


def test_many_cells_of_another_kind_make_a_column_text(tmp_path: Path, capsys: Any) -> None:
    amounts = ["1", "2", "3", "x", "y", "6", "7"]
    graph = load(write(tmp_path / "data", orders=ORDERS.set_column(3, "amount", pa.array(amounts))))
    assert "orders.amount" not in graph.feature_names
    assert "unlike the others" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["items", "orders"])
@pytest.mark.parametrize("manifest", [MANIFEST, None])
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_table_without_rows_has_no_nodes(tmp_path: Path, name: str, manifest: Any, form: str) -> None:
    graph = load(write(tmp_path / "data", manifest, form, **{name: tables()[name].slice(0, 0)}))
    assert dict(graph.node_types)[name] == 0
    assert dict(graph.node_types)["returns"] == 6
    assert graph.time_unit is not None


def test_numbers_without_a_time_among_numbers_stay_numbers(tmp_path: Path) -> None:
    orders = tables()["orders"].set_column(4, "at", pa.nulls(7))
    graph = load(write(tmp_path / "data", form="csv", orders=orders, returns=task(time=[4, 5, 5, 6, 8, 12])))
    assert graph.time_unit is None
    assert (graph.node_time[graph.schema.nodes("orders")] == NEVER).all()


def test_a_file_without_bytes_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", form="csv")
    (folder / "tables/orders.csv").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"^orders\.csv: Empty CSV file; write names of columns in a first line, or remove"
    ):
        load(folder)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^dataset\.root=.*none: no such folder$"):
        load(tmp_path / "none")
    with pytest.raises(UserError, match=r"no \.parquet or \.csv file, nor in a folder db or tables"):
        load(tmp_path)


@pytest.mark.parametrize("manifest", [MANIFEST, None])
def test_a_task_without_rows_is_refused(tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(UserError, match=r"returns.parquet has no rows, but is the task returns"):
        load(write(tmp_path / "data", manifest, returns=task().slice(0, 0)))


@pytest.mark.parametrize("parent", ["users", "orders"])
@pytest.mark.parametrize("later", [False, True])
def test_a_link_may_be_named_row(tmp_path: Path, parent: str, later: bool) -> None:
    manifest, plain = copy.deepcopy(MANIFEST), copy.deepcopy(MANIFEST)
    graphs = []
    for name, spec in (("row", manifest), ("other", plain)):
        orders = ORDERS.rename_columns(["order_id", name, "item_id", "amount", "at"])
        entry: Any = spec["tables"]["orders"]
        entry["links"] = {name: parent, "item_id": "items"}
        if later:
            entry["later"], orders = {"known": ["amount"]}, orders.append_column("known", days(3, 7, 7, 11, 4, 5, 9))
        graphs.append(load(write(tmp_path / name, spec, orders=orders)))
    np.testing.assert_array_equal(*(np.asarray(graph.features) for graph in graphs))
    assert [graph.num_edges for graph in graphs].count(graphs[0].num_edges) == 2


@pytest.mark.parametrize(("old", "new"), [("returns", "users"), ("returns", "orders.known")])
def test_two_types_with_one_name_are_refused(tmp_path: Path, old: str, new: str) -> None:
    manifest: Any = copy.deepcopy(MANIFEST)
    manifest["tasks"][new] = manifest["tasks"].pop(old)
    manifest["tables"]["orders"]["later"] = {"known": ["amount"]}
    orders = ORDERS.append_column("known", days(3, 7, 7, 11, 4, 5, 9))
    folder = write(tmp_path / "data", manifest, orders=orders)
    (folder / f"tasks/{old}.parquet").rename(folder / f"tasks/{new}.parquet")
    with pytest.raises(UserError, match=f"manifest.yaml: '{new}' names a table and also a task"):
        load(folder)


def test_a_key_that_stands_twice_in_the_manifest_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    path = folder / "manifest.yaml"
    path.write_text(path.read_text().replace("    time: at\n", "    time: at\n    time: amount\n"))
    with pytest.raises(UserError, match=r"manifest.yaml cannot be read: 'time' stands twice in a mapping; remove one"):
        load(folder)


def test_composite_keys_with_commas_have_distinct_ids(tmp_path: Path) -> None:
    users = pa.table({"a": ["x,y", "x", "x\\", "x\\,y"], "b": ["z", "y,z", ",z", "z"]})
    manifest: Any = {
        "tables": {"users": {"key": ["a", "b"]}},
        "tasks": {"returns": {"table": "users", "entity": ["a", "b"], "time": "time", "label": "label"}},
    }
    returns = pa.table(
        {
            **{name: users[name] for name in ("a", "b")},
            "time": days(1, 2, 3, 4),
            "label": [0, 1, 0, 1],
            "split": ["train", "train", "val", "test"],
        }
    )
    graph = load(write(tmp_path / "data", manifest, users=users, returns=returns))
    assert len(set(graph.node_ids.tolist())) == graph.num_nodes == 8


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.5, 1.5, float("inf"), 1.0, -1e39, 2.0], r"row 2: inf is not finite"),
        ([0.5, 1.5, 1e39, 1.0, -1e39, 2.0], r"row 2: 1e\+39 is too large for a label; 2 such rows"),
        ([0, 1, None, 1, 1, 0], r"row 2: None is no label, but the row has a split; 1 such"),
        ([0.5, 1.5, 2.5, None, 1.0, 2.0], r"row 3: None is no label, but the row has a split; 1 such"),
    ],
)
@pytest.mark.parametrize("method", ["load", "advise"])
def test_labels_that_teach_nothing_are_named(tmp_path: Path, label: list[Any], message: str, method: str) -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["tasks"]["returns"]["horizon"] = "1 day"
    folder = write(tmp_path / "data", manifest, returns=task(label=label))
    call = {"load": Tables.load, "advise": lambda data: data.advise(1.0, 0)}[method]
    with pytest.raises(UserError, match=f"returns.parquet, column 'label', {message}"):
        call(Tables(str(folder)))


SECONDS = [1_704_067_200 + 86_400 * number for number in (1, 5, 5, 9, 2, 3)]


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("manifest", [MANIFEST, None])
def test_seconds_since_1970_join_dates(tmp_path: Path, scale: int, manifest: Any, capsys: Any) -> None:
    names = {"at": "timestamp"}
    renamed = ORDERS.rename_columns([names.get(name, name) for name in ORDERS.column_names])
    numbers = renamed.set_column(4, "timestamp", pa.array([*(second * scale for second in SECONDS), None]))
    changed = copy.deepcopy(manifest)
    if changed is not None:
        changed["tables"]["orders"]["time"] = "timestamp"
    expected = load(write(tmp_path / "dates", changed, orders=renamed))
    capsys.readouterr()
    graph = load(write(tmp_path / "numbers", changed, orders=numbers))
    for field in ("node_time", "edge_time"):
        left, right = (getattr(part, field).view(f"M8[{part.time_unit}]") for part in (graph, expected))
        has_time = ~np.isin(getattr(expected, field), (ALWAYS, NEVER))
        np.testing.assert_array_equal(left[has_time], right[has_time])
    unit = {1: "s", 10**3: "ms", 10**6: "us", 10**9: "ns"}[scale]
    line = f"orders.timestamp holds whole numbers, which are read as {unit} since 1970, from 2024-01-02"
    assert line in capsys.readouterr().out


def test_numbers_without_dates_are_dates_if_the_horizon_is_a_span(tmp_path: Path) -> None:
    orders = ORDERS.set_column(4, "at", pa.array([*SECONDS, None]))
    returns = task(time=[SECONDS[0] + 86_400 * number for number in (3, 4, 4, 5, 7, 11)])
    manifest = copy.deepcopy(MANIFEST)
    assert load(write(tmp_path / "numbers", manifest, orders=orders, returns=returns)).time_unit is None
    manifest["tasks"]["returns"]["horizon"] = "2 days"
    graph = load(write(tmp_path / "dates", manifest, orders=orders, returns=returns))
    assert graph.time_unit == "s"
    assert graph.node_ids[-1] == "returns:10@2024-01-13"


@pytest.mark.parametrize("number", [7, 20240131, 2024013123, 202401312359])
@pytest.mark.parametrize("place", ["orders", "returns"])
def test_other_numbers_beside_dates_are_refused(tmp_path: Path, number: int, place: str) -> None:
    numbers = pa.array([number + row for row in range(7)])
    parts: dict[str, Any] = (
        {"orders": ORDERS.set_column(4, "at", numbers), "users": USERS.append_column("since", days(0, 0, 0))}
        if place == "orders"
        else {"returns": task(time=numbers[:6])}
    )
    manifest = copy.deepcopy(MANIFEST)
    manifest["tables"]["users"]["time"] = "since" if place == "orders" else None
    example = 20240132 if number == 20240131 else number  # the first one that is no day
    with pytest.raises(UserError, match=f"holds numbers such as {example}, but other times of the database are dates"):
        load(write(tmp_path / "data", manifest, **parts))


def padded(folder: Path, manifest: Any, *, task_too: bool) -> Path:
    users = USERS.set_column(0, "id", pa.array(["00010", "00011", "00012"]))
    ids = [f"{number:05d}" if task_too else number for number in (10, 11, 12, 10, 11, 10)]
    return write(
        folder, manifest, "csv", users=users.rename_columns(["user_id", "age", "city"]), returns=task(user_id=ids)
    )


def test_a_guess_compares_keys_as_they_are_read(tmp_path: Path) -> None:
    data = Tables(str(padded(tmp_path / "data", None, task_too=True)))
    _, proposal = data._open()
    text = proposal.text()
    assert [link.name for link in proposal.tables["orders"].links] == ["item_id"]
    assert "# user_id: no link: named like the key of users, but 0 % of the values are keys: 10 is" in text
    assert "unlike 00010" in text
    assert data.load().node_ids[-1] == "returns:00010@2024-01-13"


def test_unknown_keys_are_shown_beside_a_key(tmp_path: Path, capsys: Any) -> None:
    manifest: Any = copy.deepcopy(MANIFEST)
    manifest["tables"]["users"]["key"] = "user_id"
    load(padded(tmp_path / "data", manifest, task_too=True))
    line = "orders.user_id has 1 empty and 6 unknown keys (such as 10, unlike 00010), which refer to no row of users"
    assert line in capsys.readouterr().out
    load(write(tmp_path / "plain"))
    assert "1 empty and 1 unknown keys (such as 99, unlike 10), which" in capsys.readouterr().out


@pytest.mark.parametrize("timed", [True, False])
def test_a_task_without_a_split_gets_one_by_job_init(tmp_path: Path, timed: bool) -> None:
    manifest: Any = copy.deepcopy(MANIFEST)
    returns = task().drop_columns(["split"])
    if not timed:
        manifest["tasks"]["returns"]["time"] = None
        returns = pa.table({"user_id": [10, 11, 12], "label": [0, 1, 0]})
    folder = write(tmp_path / "data", manifest, returns=returns)
    advice = Tables(str(folder)).advise(0, 0)
    split, _ = advice.keys["dataset.split"]
    shares = split["shares"] if timed else split
    assert shares == pytest.approx([0.7, 0.15, 0.15])
    graph = load(folder, split=split)
    np.testing.assert_array_equal(graph.split, advice.graph.split)
    assert (graph.split[-3:] != Split.NONE).all()
