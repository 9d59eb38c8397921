"""Tasks whose rows a question in SQL computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from gnnkit_tables import Tables, question
from gnnkit_tables.manifest import Manifest

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from tests.cases import few, in_turn
from tests.shops import LAST, QUERY, TASK, day, tables
from tests.shops import with_question as shops


def targets_of(graph: Graph) -> list[tuple[str, float, str]]:
    rows = graph.schema.nodes("busy")
    parts = [Split(part).name for part in graph.split[rows]]
    return list(zip(graph.node_ids[rows].tolist(), graph.labels[rows].tolist(), parts, strict=True))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_question_gives_the_rows_of_a_loop_over_dates_and_entities(tmp_path: Path, form: str, capsys: Any) -> None:
    graph = Tables(str(shops(tmp_path / "data", form))).load()
    orders = [(10, 1), (10, 5), (11, 5), (11, 9), (99, 3), (12, LAST)]
    expected = [
        (
            f"busy:{user}@2024-01-{date + 1:02}",
            sum(buyer == user and date < at <= date + 2 for buyer, at in orders),
            part,
        )
        for date, part in ((1, "TRAIN"), (3, "TRAIN"), (5, "VAL"), (7, "TEST"), (9, "TEST"), (11, "TEST"))
        for user in (10, 11, 12)
    ]
    assert targets_of(graph) == expected
    lines = capsys.readouterr().out
    assert (
        "busy has dates 2 days apart: 2 train (2024-01-02 to 2024-01-04), 1 val (2024-01-06 to 2024-01-06), 3 test"
        in lines
    )
    assert "busy has 6 train, 3 val, 9 test rows, and labels are 2 classes" in lines


@pytest.mark.parametrize(
    ("entries", "dates"),
    [({"train_dates": 1}, [3, 5, 7, 9, 11]), ({"eval_dates": 2}, [1, 3, 5, 7, 9]), ({"horizon": "4 days"}, [1, 5, 9])],
)
def test_the_numbers_of_dates_have_limits(tmp_path: Path, entries: dict[str, Any], dates: list[int]) -> None:
    if "horizon" in entries:
        entries = {**entries, "test": "2024-01-10"}
    graph = Tables(str(shops(tmp_path / "data", **entries))).load()
    assert [name[-10:] for name, _, _ in targets_of(graph)[::3]] == [f"2024-01-{date + 1:02}" for date in dates]


def test_counts_are_numbers_if_the_manifest_says_regression(tmp_path: Path) -> None:
    graph = Tables(str(shops(tmp_path / "data", type="regression"))).load()
    assert graph.labels.dtype == np.float64


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("COUNT(o.order_id) > 0", ("false", "true")),
        ("SUM(o.order_id)::HUGEINT % 2 + 0", None),
        ("'c' || COUNT(o.amount)", ("c0", "c1")),
    ],
)
def test_labels_of_all_types_are_classes(tmp_path: Path, label: str, names: tuple[str, ...] | None) -> None:
    query = QUERY.replace("COUNT(o.order_id)", label)
    graph = Tables(str(shops(tmp_path / "data", query=query))).load()
    assert graph.class_names == names
    assert graph.labels.dtype.kind == "i"


def test_times_that_are_numbers_have_dates_that_are_numbers(tmp_path: Path) -> None:
    rows = {"order_id": np.arange(40), "user_id": [10, 11] * 20, "item_id": ["a"] * 40, "amount": [1.0] * 40}
    orders = pa.table({**rows, "at": np.arange(40)})
    query = QUERY.replace("INTERVAL '{timedelta}'", "{timedelta}")
    spec = {"horizon": 5, "val": 20, "test": 30, "query": query}
    graph = Tables(str(shops(tmp_path / "data", orders=orders, **spec))).load()
    ids = [name.partition("@")[2] for name, _, _ in targets_of(graph)[::3]]
    assert ids == ["0", "5", "10", "15", "20", "25", "30"]


def test_dates_that_the_manifest_does_not_name_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = shops(tmp_path / "data", val=None, test=None)
    monkeypatch.chdir(tmp_path)
    expected, lines = targets_of(Tables(str(folder)).load()), capsys.readouterr().out
    assert "sets neither val nor test, so each has 15 % of the dates; add val: 2024-01-10" in lines
    assert "are guesses" not in lines
    arguments = ["job=init", "dataset=tables", f"dataset.root={folder}", "output=new", "init.minutes=0"]
    assert main(arguments) == 0
    written = Manifest.read(tmp_path / "new/manifest.yaml")
    assert (written.tasks["busy"].val, written.tasks["busy"].test) == ("2024-01-10", "2024-01-12")
    capsys.readouterr()
    assert targets_of(Tables(str(folder), manifest="new/manifest.yaml").load()) == expected
    lines = capsys.readouterr().out
    assert "neither val nor test" not in lines
    assert "the rows of busy are in new/busy.rows.parquet; remove this file to run the query again" in lines


def test_init_asks_a_question_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    answer = question.Question.answer

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return answer(*arguments)

    monkeypatch.setattr(question.Question, "answer", count)
    arguments = ["job=init", "dataset=tables", f"dataset.root={shops(tmp_path / 'data')}", "init.minutes=0"]
    assert main([*arguments, f"output={tmp_path}/new"]) == 0
    assert len(calls) == 1
    again = [f"dataset.manifest={tmp_path}/new/manifest.yaml", f"output={tmp_path}/new", "on_exists=replace"]
    before = (tmp_path / "new/manifest.yaml").read_bytes()
    assert main([*arguments, *again]) == 0
    assert len(calls) == 1, "the rows are in the folder"
    assert (tmp_path / "new/manifest.yaml").read_bytes() == before
    assert len(targets_of(Tables(str(tmp_path / "data"), manifest=str(tmp_path / "new/manifest.yaml")).load())) == 18


@few(
    ("old", "new"),
    [("COUNT(o.", "MAX(o."), ("2 days", "1 day"), ("2024-01-06", "2024-01-05")],
    default=[("2 days", "1 day")],
)
def test_rows_of_another_question_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    folder = shops(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert main(["job=init", "dataset=tables", f"dataset.root={folder}", "output=new", "init.minutes=0"]) == 0
    manifest = tmp_path / "new/manifest.yaml"
    Tables(str(folder), manifest=str(manifest)).load()
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"busy.rows.parquet has the rows of another question than tasks.busy in"):
        Tables(str(folder), manifest=str(manifest)).load()
    (tmp_path / "new/busy.rows.parquet").unlink()
    Tables(str(folder), manifest=str(manifest)).load()


def test_a_manifest_with_a_question_alone_has_guessed_tables(tmp_path: Path, capsys: Any) -> None:
    folder = shops(tmp_path / "data")
    expected = targets_of(Tables(str(folder)).load())
    (folder / "manifest.yaml").write_text(yaml.safe_dump({"tasks": {"busy": TASK}}), encoding="utf-8")
    assert targets_of(Tables(str(folder)).load()) == expected
    assert "no tables in manifest.yaml, so keys, links and times are guesses" in capsys.readouterr().out


def test_rows_without_entity_or_label_are_dropped_and_counted(tmp_path: Path, capsys: Any) -> None:
    query = """SELECT t.timestamp AS date, o.user_id AS user_id, MAX(o.amount) AS num_orders FROM timestamps t
        LEFT JOIN orders o ON o.at > t.timestamp AND o.at <= t.timestamp + INTERVAL '2 days' AND o.user_id != 99 GROUP BY ALL"""
    graph = Tables(str(shops(tmp_path / "data", query=query))).load()
    assert [name for name, _, _ in targets_of(graph)][:2] == ["busy:10@2024-01-04", "busy:11@2024-01-04"]
    assert "3 of 7 rows of tasks.busy.query have an empty cell: dropped" in capsys.readouterr().out


def test_dates_are_counted_if_most_of_a_part_have_no_rows_after_them(tmp_path: Path, capsys: Any) -> None:
    lines = []
    for last in (7, 900):
        at = pa.array([*map(day, (1, 2, 3, 4, 5, 6, last))], pa.timestamp("us"))
        orders = tables()["orders"].set_column(4, "at", at)
        Tables(str(shops(tmp_path / str(last), orders=orders, horizon="1 day", val=None, test=None))).load()
        lines.append([line for line in capsys.readouterr().out.splitlines() if "no table has a row" in line])
    assert not lines[0]
    assert len(lines[1]) == 3  # one for each part
    assert "in the 1 day after 134 dates of test, such as 2026-06-17: correct rows with a wrong time" in lines[1][2]


REFUSALS = [
    ({"query": f"{QUERY}; {QUERY}"}, "tasks.busy.query: expected one SELECT"),
    ({"query": "CREATE TABLE x AS SELECT 1"}, "tasks.busy.query: expected one SELECT"),
    ({"query": "SET threads = 4"}, "tasks.busy.query: expected one SELECT"),
    ({"query": "-- nothing"}, "tasks.busy.query: expected one SELECT"),
    ({"query": "SELECT FROM"}, "tasks.busy.query: Parser Error"),
    ({"query": "SELECT * FROM returns"}, "Table with name returns does not exist"),
    ({"query": "SELECT * FROM read_text('manifest.yaml')"}, "file system operations are disabled"),
    ({"query": "SELECT * FROM 'orders.csv'"}, "file system operations are disabled"),
    ({"query": "SELECT * FROM tables"}, "Table with name tables does not exist"),  # variables of Python
    ({"query": QUERY.replace("COUNT(o", "random() + COUNT(o")}, "tasks.busy.query: random differs between runs; use the timestamps"),
    ({"query": QUERY.replace("o.at >", "o.at < CURRENT_DATE AND o.at >")}, "tasks.busy.query: CURRENT_DATE differs between runs"),
    ({"query": QUERY.replace("o.at >", "o.at < get_current_timestamp()::TIMESTAMP AND o.at >")}, "get_current_timestamp differs between runs"),
    ({"query": QUERY.replace("o.at >", "age(o.at) > INTERVAL 1 DAY AND o.at >")}, "tasks.busy.query: age differs between runs"),
    ({"query": QUERY.replace("orders o", "orders o TABLESAMPLE 50%")}, "tasks.busy.query: TABLESAMPLE differs between runs"),
    ({"query": f"{QUERY} USING  SAMPLE 3 ROWS"}, "tasks.busy.query: USING  SAMPLE differs between runs"),
    ({"query": "SELECT 1 AS user_id"}, "the result of tasks.busy.query has no column 'date', only 'user_id'; change"),
    ({"query": QUERY.replace("t.timestamp AS", "t.timestamp + INTERVAL '1 hour' AS")}, "rows have a time that is no timestamp of the question, such as 2024-01-02 01:00:00"),
    ({"query": QUERY.replace("t.timestamp AS", "42 AS")}, "column 'date': int32, expected a timestamp"),
    ({"query": QUERY.replace("COUNT(o", "LIST(o")}, "name the table of these keys as tasks.busy.target"),
    ({"query": QUERY.replace("u.id AS", "u.id + 100 AS")}, "18 of 18 rows name no row of users, such as [110, 111, 112]"),
    ({"query": QUERY.replace("GROUP", "WHERE false GROUP")}, "tasks.busy.query: no row has an entity, a time and a label"),
    ({"query": QUERY.replace("COUNT(o.order_id)", "NULL")}, "tasks.busy.query: no row has an entity, a time and a label"),
    ({"query": QUERY.replace("COUNT(o.order_id)", "'inf'::DOUBLE")}, "column 'num_orders', row 0: inf is not finite"),
    ({"horizon": None}, "tasks.busy.query needs a time, a horizon above 0"),
    ({"time": None}, "tasks.busy.query needs a time, a horizon above 0"),
    ({"val": None}, "tasks.busy: name both val and test"),
    ({"val": "soon"}, "tasks.busy.val=soon: expected a date"),
    ({"test": "2025-01-01"}, "tasks.busy: no date is left for test, with val 2024-01-06, test 2025-01-01"),
    ({"train_dates": 0}, "tasks.busy.train_dates=0"),
    ({"horizon": "1 second", "val": None, "test": None}, "tasks.busy.horizon=1 second: more than 100,000 dates"),
    ({"type": "rank"}, "tasks.busy.type=rank"),
]  # fmt: skip


def test_stored_rows_have_the_unit_of_the_answer(tmp_path: Path) -> None:
    orders = tables()["orders"].slice(0, 6)
    late = orders.slice(0, 1).set_column(4, "at", pa.array([day(LAST)], pa.timestamp("us")))
    orders = pa.concat_tables([orders, late])
    orders = orders.set_column(0, "order_id", pa.array(range(len(orders))))
    seconds = orders["at"].cast(pa.timestamp("s")).cast(pa.int64())
    folder = shops(tmp_path / "data", orders=orders.set_column(4, "at", seconds))
    expected, written = Tables(str(folder)).load(), Tables(str(folder)).advise(0, 0).files
    (tmp_path / "new").mkdir()
    for name, content in written.items():
        (tmp_path / "new" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    graph = Tables(str(folder), manifest=str(tmp_path / "new/manifest.yaml")).load()
    assert graph.time_unit == expected.time_unit == "s"
    assert graph.node_ids.tolist() == expected.node_ids.tolist()
    np.testing.assert_array_equal(np.asarray(graph.features), np.asarray(expected.features))


@pytest.mark.parametrize(("entries", "message"), REFUSALS)
def test_what_is_wrong_with_a_question_is_named(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Tables(str(shops(tmp_path / "data", **entries))).load()
    assert message in str(error.value)


def test_unstable_functions_may_stand_in_texts_names_and_comments(tmp_path: Path) -> None:
    query = (
        f"-- now()\n{QUERY} /* random()\n */ HAVING 'uuid()' != \"user_id\"::text AND age(date, date) < INTERVAL 1 DAY"
    )
    assert len(targets_of(Tables(str(shops(tmp_path / "data", query=query))).load())) == 18


@pytest.mark.parametrize("name", ["timestamps", "Timestamp_DF", "USERS"])
def test_names_that_sql_confuses_are_refused(tmp_path: Path, name: str) -> None:
    folder = shops(tmp_path / "data")
    pyarrow.parquet.write_table(tables()["items"], folder / f"tables/{name}.parquet")
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    manifest["tables"][name] = {"key": "item_id"}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    with pytest.raises(UserError, match=r"tasks.busy.query: SQL ignores case"):
        Tables(str(folder)).load()


@pytest.mark.parametrize(("unit", "zone"), in_turn(["s", "ms", "us", "ns"], ["UTC", "Europe/Oslo", None]))
def test_dates_of_all_units_and_zones_are_asked_in_utc(tmp_path: Path, unit: str, zone: str | None) -> None:
    expected = targets_of(Tables(str(shops(tmp_path / "plain"))).load())
    orders = pyarrow.parquet.read_table(tmp_path / "plain/tables/orders.parquet")
    at = orders["at"].cast(pa.timestamp(unit, zone))
    folder = shops(tmp_path / "data", orders=orders.set_column(4, "at", at))
    assert targets_of(Tables(str(folder)).load()) == expected


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [("_MAX_ROWS", 10, "more than 10 rows"), ("_MAX_SECONDS", 0.1, "stopped after 0.1 s")],
)
def test_a_query_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, message: str
) -> None:
    monkeypatch.setattr(question, limit, value)
    endless = (
        "SELECT SUM(a.range + b.range) AS num_orders, 1 AS user_id, 1 AS date FROM range(10000000) a, range(10000000) b"
    )
    query = {"query": endless} if limit == "_MAX_SECONDS" else {}
    with pytest.raises(UserError, match=message):
        Tables(str(shops(tmp_path / "data", **query))).load()


_F1 = """
SELECT t.timestamp AS date, dri.driverId AS driverId, {label}
FROM timestamp_df t
LEFT JOIN {table} x ON x.date <= t.timestamp + INTERVAL '{{timedelta}}' AND x.date > t.timestamp
LEFT JOIN drivers dri ON x.driverId = dri.driverId
WHERE dri.driverId IN (SELECT DISTINCT driverId FROM {table} WHERE date > t.timestamp - INTERVAL '1 year')
GROUP BY t.timestamp, dri.driverId
"""
PUBLISHED = {
    "driver-dnf": ("results", "30 days", "did_not_finish", "MAX(CASE WHEN x.statusId != 1 THEN 1 ELSE 0 END)"),
    "driver-top3": ("qualifying", "30 days", "qualifying", "CASE WHEN MIN(x.position) <= 3 THEN 1 ELSE 0 END"),
    "driver-position": ("results", "60 days", "position", "mean(x.positionOrder)"),
}


@pytest.mark.slow
@few("name", PUBLISHED, default=["driver-dnf"])
def test_questions_of_a_benchmark_give_its_published_rows(tmp_path: Path, name: str, data_folder: Path) -> None:
    table, horizon, label, expression = PUBLISHED[name]
    published = data_folder / "rel-f1"
    (tmp_path / "tables").symlink_to(published / "tables")
    spec = {
        "table": "drivers",
        "entity": "driverId",
        "time": "date",
        "label": label,
        "horizon": horizon,
        "val": "2005-01-01",
        "test": "2010-01-01",
        "eval_dates": 40,
        "query": _F1.format(table=table, label=f"{expression} AS {label}"),
    }
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump({"tasks": {name: spec}}), encoding="utf-8")
    databases = [Tables(str(root), table=name) for root in (tmp_path, published)]
    targets = [database._read(*database._open()).targets for database in databases]
    order = [np.lexsort((part.rows, part.times)) for part in targets]
    for field in ("times", "rows", "split", "labels"):
        left, right = (getattr(part, field)[rows] for part, rows in zip(targets, order, strict=True))
        np.testing.assert_allclose(left, right, rtol=1e-12)
