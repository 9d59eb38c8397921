"""Manifests that are guessed from names and values, and what job=init writes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from gnnkit_formats.table import Table
from gnnkit_tables import Tables, select
from gnnkit_tables.folder import Folder
from gnnkit_tables.guess import propose
from gnnkit_tables.manifest import Link, Manifest, TableSpec, TaskSpec, example_tasks

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from tests.cases import few
from tests.shops import MANIFEST, days, tables, task, write


def guess(folder: Path) -> tuple[Manifest, str]:
    proposal = Tables(str(folder))._read_manifest(Folder.find(folder))
    return proposal, proposal.text()


def read_text(text: str, folder: Path) -> Manifest:
    path = folder / "again.yaml"
    path.write_text(text, encoding="utf-8")
    return Manifest.read(path)


def test_keys_links_times_and_tasks_are_guessed_with_reasons(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", None)
    manifest, text = guess(folder)
    assert manifest == read_text(yaml.safe_dump(MANIFEST, sort_keys=False), tmp_path)
    assert read_text(text, tmp_path) == manifest
    assert "user_id: users  # named like its key; 75 % of the distinct values are keys; 1 empty, 1 unknown of 7" in text
    assert "time: at  # the only column of dates" in text


def test_a_guess_reads_the_same_graph_as_its_manifest(tmp_path: Path, capsys: Any) -> None:
    graphs = [Tables(str(write(tmp_path / name, manifest))).load() for name, manifest in (("a", None), ("b", MANIFEST))]
    assert capsys.readouterr().out.count("no manifest.yaml, so keys, links and times are guesses") == 1
    assert sorted(graphs[0].edge_type_names) == sorted(graphs[1].edge_type_names)
    by_name = [dict(zip(graph.feature_names, np.asarray(graph.features)[-6:].T, strict=True)) for graph in graphs]
    assert by_name[0].keys() == by_name[1].keys()
    for name, column in by_name[0].items():
        np.testing.assert_array_equal(column, by_name[1][name])


def test_text_is_a_link_by_its_values_and_numbers_are_not(tmp_path: Path) -> None:
    places = pa.table({"code": ["OSL", "FCO", "JFK", "LHR"], "height": [1.0, 2.0, 3.0, 4.0]})
    trips = pa.table(
        {
            "trip_id": [1, 2, 3, 4],
            "origin": ["OSL", "FCO", "JFK", "OSL"],
            "seats": [1, 2, 3, 4],
            "user_id": [10, 11, 12, 10],
        }
    )
    folder = write(tmp_path / "data", None)
    for name, table in {"places": places, "trips": trips}.items():
        pyarrow.parquet.write_table(table, folder / f"tables/{name}.parquet")
    links = guess(folder)[0].tables["trips"].links
    assert links == (Link(("origin",), "places"), Link(("user_id",), "users"))


@pytest.mark.parametrize(
    ("columns", "time", "reason"),
    [
        ({"birth_date": days(1, 2, 3)}, None, "birth_date is a date of another kind"),
        ({"born": days(1, 2, 3), "joined": days(0, 0, 0)}, "joined", "the only column of dates"),
        ({"seen": days(11, 12, 13)}, None, "seen is a date of another kind"),  # orders are earlier
        ({"first": days(0, 0, 0), "second": days(0, 0, 1)}, "second", "the latest of first, second"),
        ({"day": pa.array(["2023-01-01"] * 3)}, "day", "the only column of dates"),
        ({}, None, "no column of dates: rows are always visible"),
    ],
)
def test_a_date_is_the_time_of_a_row_unless_its_children_are_earlier(
    tmp_path: Path, columns: dict[str, Any], time: str | None, reason: str
) -> None:
    users = tables()["users"]
    for name, values in columns.items():
        users = users.append_column(name, values)
    manifest, text = guess(write(tmp_path / "data", None, users=users))
    assert manifest.tables["users"].time == time
    assert reason in text


def test_a_date_after_the_row_s_time_is_hidden_until_then(tmp_path: Path) -> None:
    users = tables()["users"].append_column("opened", days(0, 0, 0)).append_column("closed", days(11, 12, 13))
    manifest, text = guess(write(tmp_path / "data", None, users=users.append_column("birth", days(1, 2, 3))))
    assert (manifest.tables["users"].time, manifest.tables["users"].later) == ("opened", {"closed": ()})
    assert "opened  # the first of opened, closed, birth that can be the time of rows" in text
    assert "closed: []  # mostly later than opened, so it is hidden until then" in text


def test_rows_without_dates_have_the_time_of_the_rows_to_which_they_refer(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", None, items=tables()["items"])
    lines = pa.table({"order_id": tables()["orders"]["order_id"], "count": pa.array([1] * len(tables()["orders"]))})
    pyarrow.parquet.write_table(lines, folder / "tables/lines.parquet")
    manifest, text = guess(folder)
    assert manifest.tables["lines"].time is None
    assert "no column of dates: rows are visible with the rows to which they refer" in text.partition("lines:")[2]


def test_a_task_without_one_label_is_refused(tmp_path: Path) -> None:
    rows = task().append_column("other", pa.array([1.0] * 6))
    with pytest.raises(UserError, match=r"2 columns may be the label; write tasks\.returns in the manifest"):
        guess(write(tmp_path / "data", None, returns=rows))


def test_keys_of_a_task_in_another_form_are_refused(tmp_path: Path) -> None:
    rows = task().set_column(0, "user_id", pa.array([f"u{number}" for number in task()["user_id"].to_pylist()]))
    message = r"column 'user_id' is named like the key of .*users.*, but u\d+ is unlike \d+; write both alike, or"
    with pytest.raises(UserError, match=message):
        guess(write(tmp_path / "alone", None, returns=rows))
    rows = rows.set_column(2, "item_id", pa.array(["a"] * len(rows)))
    with pytest.raises(UserError, match=message):  # although item_id has keys
        guess(write(tmp_path / "beside", None, returns=rows, items=pa.table({"item_id": ["a", "b"]})))


def test_a_manifest_is_read_as_it_is_written(tmp_path: Path) -> None:
    users = TableSpec(("a", "b"), None, (Link(("c", "d"), "users"),), {}, ("x y",))
    orders = TableSpec((), "at", (Link(("a: b",), "more"),), {"known": ("delay", "no")}, ())
    more = TableSpec(("id",), None, (), {}, ())
    query = "SELECT 1 AS id,\n\n  'a: b' AS y -- # no comment\n\tFROM t"
    question = TaskSpec("more", ("id",), "y", "at", "2 days", "regression", query, "2024-01-05", 7, None, 3)
    manifest = Manifest(
        {"users": users, "on": orders, "more": more},
        {"t-1": TaskSpec("more", ("id",), "y", "at", 86_400), "q": question},
    )
    assert read_text(manifest.text(), tmp_path) == manifest


def random_targets(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    pairs = [(user, at) for at in range(4, 30, 2) for user in (10, 11, 12)]
    parts = np.repeat(["train", "val", "test"], [21, 9, 9])
    returns = task(
        user_id=[user for user, _ in pairs],
        time=days(*(at for _, at in pairs)),
        label=rng.integers(0, 2, 39),
        split=parts,
    )
    return write(folder, None, returns=returns)


def test_an_id_that_names_no_table_is_mentioned() -> None:
    teachers = pa.table({"id": [1, 2, 3], "mentor_id": [None, 1, 1], "room": [4, 5, 6]})
    proposal = propose({"teachers": Table("teachers", teachers)}, {})
    text = proposal.text()
    assert "    # mentor_id: no link: no table has this name; add it to links if its values are keys of a table" in text
    assert text.count("no link") == 1


HOSTILE = "x\nevil: 1\n\u2028tasks: {}\n\x85#"


def test_names_and_values_write_no_lines_into_a_manifest() -> None:
    parents = pa.table({"id": [HOSTILE, "b", "c"], f"born {HOSTILE}": days(1, 2, 3)})
    columns = {
        f"{HOSTILE}_id": [1, 1, 1],
        "people_id": [HOSTILE[1:]] * 3,
        HOSTILE: days(4, 5, 6),
        "on": ["b", "c", "b"],
    }
    rows = {"people": parents, "rows": pa.table(columns), "later": pa.table({f"{HOSTILE} time": ["01/02/2024"] * 3})}
    proposal = propose({name: Table(name, table) for name, table in rows.items()}, {})
    text = proposal.text()
    assert "people_id: no link" in text
    example = example_tasks(
        Manifest({**proposal.tables, HOSTILE: TableSpec(), "on": TableSpec((HOSTILE, "on: #"))}, {})
    )
    entries = yaml.safe_load(text.removesuffix("tasks: {}\n") + example)
    assert entries.keys() == {"tables", "tasks"}
    assert entries["tables"].keys() == set(rows)
    links = (Link(("a", "b"), f"on {HOSTILE}"),)
    example = example_tasks(
        Manifest({"rows": TableSpec((), "at", links), f"on {HOSTILE}": TableSpec((HOSTILE, "on: #"))}, {})
    )
    assert yaml.safe_load(example) == {"tasks": None}


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_without_a_task_has_a_manifest_with_an_example(
    tmp_path: Path, named: bool, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"tables": MANIFEST["tables"]} if named else None
    folder = write(tmp_path / "data", manifest)
    (folder / "tasks/returns.parquet").unlink()
    monkeypatch.chdir(tmp_path)
    init = ["job=init", "dataset=tables", f"dataset.root={folder}", "output=new", "init.minutes=0"]
    assert main(init) == 2
    assert "has no task: change the example in manifest.yaml, then repeat the command with" in capsys.readouterr().err
    path = tmp_path / "new/manifest.yaml"
    assert Manifest.read(path).tables == Manifest.read(Path(write(tmp_path / "other") / "manifest.yaml")).tables
    text = path.read_text().replace("#   ", "  ").replace("30 days", "2 days")
    path.write_text(text)
    assert main([*init, "dataset.manifest=new/manifest.yaml", "on_exists=replace"]) == 0
    graph = Tables(str(folder), manifest="new/manifest.yaml").load()
    labels = dict(zip(graph.node_ids.tolist(), graph.labels.tolist(), strict=True))
    assert labels["has_orders:11@2024-01-06"] == 0
    assert labels["has_orders:10@2024-01-04"] == 1


@pytest.mark.parametrize("names", [("users", "id", "at"), ("web users", "user id", "at time")])
def test_an_example_is_a_question_within_its_horizon(tmp_path: Path, names: tuple[str, str, str]) -> None:
    users, key, time = names
    specs = {users: TableSpec((key,), "joined"), "orders": TableSpec((), time, (Link(("user_id",), users),))}
    text = example_tasks(Manifest(specs, {})).replace("#   ", "  ").replace("30 days", "2 days")
    folder = write(tmp_path / "data", None)
    joined = tables()["users"].append_column("joined", days(0, 0, 11)).rename_columns([key, "age", "city", "joined"])
    orders = tables()["orders"].rename_columns(["order_id", "user_id", "item_id", "amount", time])
    (folder / "tables/users.parquet").unlink()
    for name, table in {users: joined, "orders": orders}.items():
        pyarrow.parquet.write_table(table, folder / f"tables/{name}.parquet")
    manifest = Manifest(specs, {}).text().removesuffix("tasks: {}\n") + text
    (folder / "manifest.yaml").write_text(manifest, encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        ids = Tables(str(folder), table="has_orders").load().node_ids.tolist()
    assert "has_orders:10@2024-01-04" in ids
    assert not any(name.startswith("has_orders:12") for name in ids), "has not joined"


def test_a_database_without_times_has_no_example() -> None:
    assert example_tasks(Manifest({"a": TableSpec(("id",))}, {})).startswith("tasks: {}  # a question needs")


@pytest.mark.slow
def test_two_commands_train_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = random_targets(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert main(["job=init", "dataset=tables", f"dataset.root={folder}", "output=new"]) == 0
    lines = capsys.readouterr().out
    assert "baseline: only " in lines
    assert "no further trials" not in lines
    assert "no trials" not in lines
    assert Manifest.read(tmp_path / "new/manifest.yaml") == read_text(
        yaml.safe_dump(MANIFEST, sort_keys=False), tmp_path
    )
    assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=2", "output=run", "report=false"]) == 0
    assert (tmp_path / "run/predictions.parquet").exists()


@pytest.mark.slow
@few("model", ["rgcn", "blend", "boosting"], default=["blend"])
def test_the_second_command_trains_the_selected_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    def rate(candidate: select.Candidate, fixed: Any, metric: str) -> select.Trial:
        name, _, keys = candidate
        return select.Trial(name, keys, float(keys["model"][0] == model), 0.5)

    monkeypatch.setattr(select, "train_candidate", rate)
    monkeypatch.chdir(tmp_path)
    folder = random_targets(tmp_path / "data")
    assert main(["job=init", "dataset=tables", f"dataset.root={folder}", "output=new"]) == 0
    assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=1", "output=run", "report=false"]) == 0
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]["name"] == model


@pytest.mark.slow
@few("name", ["rel-f1", "nycflights13"], default=["rel-f1"])
def test_the_keys_of_public_databases_are_guessed(name: str, data_folder: Path) -> None:
    folder = data_folder / name
    manifest, _ = guess(folder)
    links = {(table, link.name, link.table) for table, spec in manifest.tables.items() for link in spec.links}
    keys = {table: spec.key for table, spec in manifest.tables.items()}
    if name == "rel-f1":
        assert len(links) == 13
        assert all(key[0].lower().endswith("id") for key in keys.values())
        assert {table for table, spec in manifest.tables.items() if spec.time is None} == {
            "circuits",
            "constructors",
            "drivers",
        }
    else:
        expected = {("carrier", "airlines"), ("tailnum", "planes"), ("origin", "airports"), ("dest", "airports")}
        assert links == {*(("flights", *pair) for pair in expected), ("weather", "origin", "airports")}
        assert keys["airports"] == ("faa",)


def test_ids_by_role_are_links_if_keys_have_gaps(tmp_path: Path) -> None:
    keys = np.arange(100) * 3 + 1000
    players = pa.table({"player_id": keys, "coach_id": np.roll(keys, 1)})
    games = {
        "game_id": np.arange(100),
        "winner_id": keys,
        "loser_id": keys[::-1],
        "room_id": np.arange(100) % 30,
        "points": keys,
    }
    courts = pa.table({"code": np.arange(60), "seats": np.arange(60) % 7})
    tables = {"players": players, "games": pa.table(games), "courts": courts}
    specs = propose({name: Table(name, table) for name, table in tables.items()}, {}).tables
    links = {name: {link.name: link.table for link in spec.links} for name, spec in specs.items()}
    assert links["games"] == {"winner_id": "players", "loser_id": "players"}, "30 rooms are keys of any table"
    assert links["players"] == {"coach_id": "players"}


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([*range(19), 3], r"1 rows repeat a primary key: 3 in rows 3 and 19"),
        ([*range(19), None], r"1 empty cells in a"),
    ],
)
@pytest.mark.parametrize("form", [pa.int64(), pa.float64(), pa.string()])
def test_a_key_by_name_with_few_duplicates_is_refused(
    tmp_path: Path, cells: list[int | None], message: str, form: pa.DataType
) -> None:
    items = pa.table({"price": [*range(30, 50)], "item_id": pa.array(cells, pa.int64()).cast(form)})
    with pytest.raises(UserError, match=rf"items.parquet, column 'item_id': {message}"):
        guess(write(tmp_path / "data", None, items=items))


def test_a_column_like_a_key_with_many_duplicates_is_none(tmp_path: Path) -> None:
    items = pa.table({"item_id": [*range(10), *range(10)], "price": [1.5] * 20})
    assert guess(write(tmp_path / "data", None, items=items))[0].tables["items"].key == ()


def test_a_key_of_two_tables_refers_to_the_one_that_it_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", None, users=tables()["users"].rename_columns(["user_id", "age", "city"]))
    addresses = pa.table({"user_id": [10, 11, 12], "street": ["a", "b", "a"]})
    pyarrow.parquet.write_table(addresses, folder / "tables/addresses.parquet")
    manifest = guess(folder)[0]
    links = {name: table.links for name, table in manifest.tables.items()}
    assert links["orders"] == (Link(("user_id",), "users"), Link(("item_id",), "items"))
    assert (links["addresses"], links["users"]) == ((Link(("user_id",), "users"),), ())
    assert manifest.tasks["returns"].table == "users"


def bookings(folder: Path, times: pa.Array) -> Path:
    """Writes orders with several dates, and a task about orders at some times."""
    late = pa.array([None if at is None else at + np.timedelta64(3, "D") for at in tables()["orders"]["at"].to_numpy()])
    orders = tables()["orders"].append_column("paid", days(2, 3, 4, 5, 6, 7, 8)).append_column("due_by", late)
    orders = orders.set_column(4, "at", days(1, 1, 2, 3, 4, 5, 6)).append_column("sent", days(3, 4, 5, 6, 7, 8, 9))
    rows = {"order_id": [1, 2, 3, 4, 5, 6], "time": times, "label": [0, 1, 0, 1, 0, 1]}
    parts = ["train", "train", "train", "train", "val", "test"]
    return write(folder, None, orders=orders, returns=pa.table({**rows, "split": parts}))


def test_an_event_has_the_time_of_its_task(tmp_path: Path) -> None:
    manifest, text = guess(bookings(tmp_path / "same", days(1, 1, 2, 3, 4, 5)))
    assert (manifest.tables["orders"].time, manifest.tables["orders"].later) == ("at", {"paid": (), "sent": ()})
    assert "time: at  # time of 100 % of returns's rows" in text
    assert manifest.tasks["returns"].table == "orders"
    manifest, text = guess(bookings(tmp_path / "other", days(11, 12, 13, 14, 15, 16)))
    assert (manifest.tables["orders"].time, manifest.tables["orders"].later) == ("sent", {})


def test_reasons_of_another_time_are_forgotten(tmp_path: Path) -> None:
    payments = pa.table(
        {"payment_id": [1, 2, 3, 4, 5, 6], "order_id": [1, 2, 3, 4, 5, 6], "on": days(2, 3, 4, 5, 6, 7)}
    )
    folder = bookings(tmp_path / "data", days(3, 4, 5, 6, 7, 8))
    pyarrow.parquet.write_table(payments, folder / "tables/payments.parquet")
    manifest, text = guess(folder)
    assert (manifest.tables["orders"].time, manifest.tables["orders"].later) == ("sent", {})
    assert "hidden until then" not in text


def test_a_task_that_the_manifest_lacks_is_guessed(tmp_path: Path) -> None:
    tables_alone = {"tables": {**MANIFEST["tables"]}}
    folder = write(tmp_path / "data", tables_alone)
    manifest, _ = guess(folder)
    assert manifest == guess(write(tmp_path / "whole"))[0]
    pyarrow.parquet.write_table(task(), folder / "tasks/more.parquet")
    assert guess(folder)[0].tasks == {}, "task.table selects one of several"
    assert Tables(str(folder), table="more")._read_manifest(Folder.find(folder)).tasks.keys() == {"more"}


def test_a_file_beside_a_manifest_of_tasks_alone_is_guessed(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", {"tasks": {"other": MANIFEST["tasks"]["returns"] | {"query": "SELECT 1"}}})
    proposal = Tables(str(folder), table="returns")._read_manifest(Folder.find(folder))
    assert proposal.tables == Manifest.read(write(tmp_path / "whole") / "manifest.yaml").tables
    assert proposal.tasks.keys() == {"other", "returns"}


def test_keys_above_the_largest_integer_are_linked() -> None:
    numbers = pa.array([2**64 - 1 - number for number in range(12)], pa.uint64())
    orders = pa.table({"order_id": range(24), "user_id": numbers.take(pa.array([*range(12)] * 2))})
    proposal = propose({"users": Table("users", pa.table({"id": numbers})), "orders": Table("orders", orders)}, {})
    assert proposal.tables["users"].key == ("id",)
    assert proposal.tables["orders"].links == (Link(("user_id",), "users"),)


@pytest.mark.parametrize("manifest", [None, {"tables": {"users": {"key": "id", "time": "joined"}}}])
def test_text_keys_of_a_guessed_task_keep_their_zeros(tmp_path: Path, manifest: Any) -> None:
    users = pa.table({"id": ["010", "011", "012"], "joined": ["2020-01-01", "2020-01-02", "2020-01-03"]})
    returns = task(user_id=["010", "011", "012", "010", "011", "010"])
    folder = write(tmp_path / "data", manifest, "csv", users=users, returns=returns, orders=None, items=None)
    assert "user_id]  # 100 % are keys of users" in guess(folder)[1]


def test_a_guessed_manifest_is_written_if_the_database_is_refused(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = pa.table({"id": np.arange(12), "back": [f"is {number % 2}" for number in range(12)]})
    returns = pa.table({"user_id": np.arange(12), "time": days(*range(4, 16)), "label": np.arange(12) % 2})
    folder = write(tmp_path / "data", None, users=users, returns=returns, orders=None, items=None)
    monkeypatch.chdir(tmp_path)
    init = ["job=init", "dataset=tables", f"dataset.root={folder}", "output=new", "init.minutes=0"]
    assert main(init) == 2
    error = capsys.readouterr().err
    assert "the label equals back of users in at least" in error
    cure = "once it is corrected, repeat the command with on_exists=replace, and with dataset.manifest=PATH if"
    assert f"{cure} the correction is in manifest.yaml (written: " in error
    path = tmp_path / "new/manifest.yaml"
    path.write_text(path.read_text().replace("    key: [id]", "    ignore: [back]\n    key: [id]"))
    assert main([*init, "dataset.manifest=new/manifest.yaml", "on_exists=replace"]) == 0
    assert main(["job=init", "dataset=tables", f"dataset.root={folder}", "dataset.manifest=none.yaml", "output=b"]) == 2
    assert not (tmp_path / "b").exists()


def test_whole_numbers_that_are_days_are_dates(tmp_path: Path, capsys: Any) -> None:
    """Columns of years, numbers with an impossible day, and keys stay numbers."""
    (tmp_path / "orders.csv").write_text(
        "order_id,bought,code,near\n20240131,20240131,2024,20240131\n20240201,,2025,20240230\n20240302,20240229,2026,20240301\n",
        encoding="utf-8",
    )
    folder = Folder.find(tmp_path)
    table = folder.read(folder.tables["orders"], ["order_id"], ())
    kinds = {name: pa.types.is_timestamp(kind) for name, kind in table.kinds.items()}
    assert kinds == {"order_id": False, "bought": True, "code": False, "near": False}
    assert table.plain("bought").cast(pa.string()).to_pylist() == ["2024-01-31 00:00:00", None, "2024-02-29 00:00:00"]
    folder.read(folder.tables["orders"], ["order_id"], ())
    said = "orders.csv, column 'bought' holds whole numbers such as 20260131, which are read as dates"
    assert capsys.readouterr().out.count(said) == 1


def test_days_that_are_keys_stay_numbers(tmp_path: Path) -> None:
    """A table of days is found by its key, and its links."""
    (tmp_path / "dates.csv").write_text("date_id,weekday\n20240131,2\n20240201,3\n20240202,4\n", encoding="utf-8")
    (tmp_path / "sales.csv").write_text("sale_id,date_id\n1,20240131\n2,20240201\n3,20240131\n", encoding="utf-8")
    folder = Folder.find(tmp_path)
    proposal = propose({name: folder.read(path, (), ()) for name, path in folder.tables.items()}, {})
    assert proposal.tables["dates"].key == ("date_id",)
    assert proposal.tables["sales"].links == (Link(("date_id",), "dates"),)


def test_days_in_parts_of_a_task_are_dates_even_if_a_part_is_empty(tmp_path: Path) -> None:
    (tmp_path / "tasks/late").mkdir(parents=True)
    (tmp_path / "users.csv").write_text("user_id\n1\n2\n", encoding="utf-8")
    rows = pa.table({"user_id": [1, 2], "day": [20240131, 20240201], "label": [0, 1]})
    for part, table in (("train", rows), ("val", rows), ("test", rows[:0])):
        pyarrow.parquet.write_table(table, tmp_path / f"tasks/late/{part}.parquet")
    task = Folder.find(tmp_path).read_task("late", ["user_id"], ())
    assert pa.types.is_timestamp(task.kinds["day"])
    assert task.num_rows == 4
