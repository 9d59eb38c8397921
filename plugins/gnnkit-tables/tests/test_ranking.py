"""Lists of rows of another table."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from gnnkit_tables import Tables
from gnnkit_tables.baselines import rank_by_rules
from gnnkit_tables.lists import rank_figures, rank_within
from gnnkit_tables.manifest import Manifest
from gnnkit_tables.pair_events import BEST
from gnnkit_tables.scores import boosted_scores
from gnnkit_tables.select import Trial

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from tests.shops import day, days

USERS, DATES, LAST = 12, (20, 30, 40, 50, 60), 70
QUERY = """
SELECT t.timestamp AS date, o.user_id, {label} AS item_id
FROM timestamps t JOIN orders o ON o.at > t.timestamp AND o.at <= t.timestamp + INTERVAL '{timedelta}'
{group}
"""
LISTS = QUERY.replace("{label}", "LIST(DISTINCT o.item_id)").replace("{group}", "GROUP BY ALL")
ROWS = QUERY.replace("{label}", "o.item_id").replace("{group}", "")
TASK = {
    "table": "users",
    "entity": "user_id",
    "time": "date",
    "label": "item_id",
    "target": "items",
    "horizon": "10 days",
    "eval_k": 3,
}
DATED = {"val": "2024-02-20", "test": "2024-03-01", "train_dates": 3}  # days 50 and 60
Rows = list[tuple[int, int, int]]  # user, item and day of each order


def draw(count: int, num_items: int, first: int = 0, last: int = LAST, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    user, item, at = (rng.integers(*ends, count) for ends in ((0, USERS), (0, num_items), (first, last + 1)))
    return list(zip(user.tolist(), item.tolist(), at.tolist(), strict=True))


def folder_of(
    folder: Path, orders: Rows, num_items: int = 8, task: Any = None, created: Any = None, **entries: Any
) -> Path:
    """Writes users, items, orders and the task, by default a question."""
    (folder / "tables").mkdir(parents=True)
    items: dict[str, Any] = {"id": np.arange(num_items), "price": np.arange(num_items) / 2}
    if created is not None:
        items["created"] = days(*created)
    user, item, at = zip(*orders, strict=True)
    tables = {
        "users": pa.table({"id": np.arange(USERS), "age": np.arange(USERS) % 5}),
        "items": pa.table(items),
        "orders": pa.table({"user_id": user, "item_id": item, "at": days(*at)}),
    }
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, folder / f"tables/{name}.parquet")
    if task is not None:
        (folder / "tasks").mkdir()
        pyarrow.parquet.write_table(task, folder / "tasks/buys.parquet")
    specs: dict[str, Any] = {
        "users": {"key": "id"},
        "items": {"key": "id", **({} if created is None else {"time": "created"})},
        "orders": {"time": "at", "links": {"user_id": "users", "item_id": "items"}},
    }
    question = {} if task is not None else {"query": LISTS, **DATED}
    spec = {key: value for key, value in {**TASK, **question, **entries}.items() if value is not None}
    (folder / "manifest.yaml").write_text(yaml.safe_dump({"tables": specs, "tasks": {"buys": spec}}), encoding="utf-8")
    return folder


def task_of(orders: Rows, **changes: Any) -> pa.Table:
    """Returns the lists of all dates and users as a table."""
    lists = lists_of(orders)
    parts = ["test" if date == DATES[-1] else "val" if date == DATES[-2] else "train" for _, date in lists]
    columns = {
        "user_id": [user for user, _ in lists],
        "date": days(*(date for _, date in lists)),
        "item_id": [sorted(items) for items in lists.values()],
        "split": parts,
    }
    return pa.table({**columns, **changes})


def lists_of(orders: Rows) -> dict[tuple[int, int], set[int]]:
    """Returns the items of each user and date, by a loop."""
    found = {
        (user, date): {item for buyer, item, at in orders if buyer == user and date < at <= date + 10}
        for date in DATES
        for user in range(USERS)
    }
    return {key: items for key, items in found.items() if items}


def pairs_of(graph: Graph) -> dict[tuple[int, int, int], tuple[str, float]]:
    """Returns part and label by user, date and item."""
    found, rows = {}, graph.schema.nodes("buys")
    for name, part, label in zip(graph.node_ids[rows], graph.split[rows], graph.labels[rows, 0], strict=True):
        target, _, item = str(name).partition(" > items:")
        user, _, date = target.removeprefix("buys:").partition("@")
        at = int((np.datetime64(date, "us") - day(0)) / np.timedelta64(1, "D"))
        found[int(user), at, int(item)] = Split(part).name.lower(), float(label)
    return found


def features_of(graph: Graph) -> tuple[Any, dict[str, int]]:
    """Returns the targets' columns, and the number of each by name."""
    return np.asarray(graph.features), {name: place for place, name in enumerate(graph.feature_names or ())}


@pytest.mark.parametrize("query", [LISTS, ROWS])
def test_lists_are_those_of_a_loop_over_dates_and_users(tmp_path: Path, query: str, capsys: Any) -> None:
    orders = draw(60, 8)
    pairs = pairs_of(Tables(str(folder_of(tmp_path / "data", orders, query=query))).load())
    lists = lists_of(orders)
    assert {(user, date) for user, date, _ in pairs} == {key for key in lists if key[1] < LAST}
    for (user, date, item), (part, label) in pairs.items():
        assert label == (item in lists[user, date])
        assert part == {50: "val", 60: "test"}.get(date, "train")
    held_out = [key for key in lists if key[1] >= 50]
    assert all((*key, item) in pairs for key in held_out for item in range(8))
    assert "lists of" in (lines := capsys.readouterr().out)
    assert "100.0 % of the" in lines


@pytest.mark.parametrize("form", ["one row for each item", "RelBench's names"])
def test_other_forms_of_a_task_give_the_same_graph(tmp_path: Path, form: str) -> None:
    orders = draw(60, 8)
    task = task_of(orders)
    expected = Tables(str(folder_of(tmp_path / "one", orders, task=task))).load()
    entries: dict[str, Any] = {}
    if form == "one row for each item":
        rows = [{**row, "item_id": item} for row in task.to_pylist() for item in reversed(row["item_id"])]
        task = pa.Table.from_pylist(rows[::-1])
    else:
        names = {"src_entity_table": "table", "src_entity_col": "entity", "dst_entity_table": "target"}
        names |= {"dst_entity_col": "label", "time_col": "time"}
        entries = {other: TASK[name] for other, name in names.items()} | dict.fromkeys(names.values())
    graph = Tables(str(folder_of(tmp_path / "other", orders, task=task, **entries))).load()
    assert graph.node_ids.tolist() == expected.node_ids.tolist()
    np.testing.assert_array_equal(graph.labels, expected.labels)
    np.testing.assert_array_equal(graph.features, expected.features)


@pytest.mark.parametrize("form", ["lists", "one row for each item"])
def test_a_ranking_is_guessed_from_keys_of_another_table(tmp_path: Path, form: str) -> None:
    orders = draw(60, 8)
    task = task_of(orders)
    if form != "lists":
        rows = [{**row, "item_id": item} for row in task.to_pylist() for item in row["item_id"]]
        task = pa.Table.from_pylist(rows)
    folder = folder_of(tmp_path / "data", orders, task=task)
    expected = pairs_of(Tables(str(folder)).load())
    (folder / "manifest.yaml").unlink()
    assert Tables(str(folder))._open()[1].tasks["buys"].target == "items"
    assert pairs_of(Tables(str(folder)).load()) == expected


def test_keys_of_lists_in_text_keep_their_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "tasks").mkdir(parents=True)
    orders = draw(60, 8)
    rows = [(user, date, item) for (user, date), items in lists_of(orders).items() for item in sorted(items)]
    split = {50: "val", 60: "test"}
    files = {
        "users.csv": ["id,age", *(f"{user},{user % 5}" for user in range(USERS))],
        "items.csv": ["code,price", *(f"{item:03d},{item / 2}" for item in range(8))],
        "orders.csv": ["user_id,code,at", *(f"{user},{item:03d},{str(day(at))[:10]}" for user, item, at in orders)],
        "tasks/buys.csv": [
            "user_id,date,code,split",
            *(f"{user},{str(day(date))[:10]},{item:03d},{split.get(date, 'train')}" for user, date, item in rows),
        ],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = Tables(str(folder))
    assert data._open()[1].tasks["buys"].target == "items"
    assert {key for key, (_, label) in pairs_of(data.load()).items() if label} == set(rows)


def test_labels_that_are_named_like_keys_in_another_form_are_refused(tmp_path: Path) -> None:
    orders = draw(60, 8)
    task = task_of(orders)
    items = [[f"i{item}" for item in row] for row in task["item_id"].to_pylist()]
    folder = folder_of(tmp_path / "data", orders, task=task.set_column(2, "item_id", pa.array(items)))
    (folder / "manifest.yaml").unlink()
    with pytest.raises(UserError, match=r"column 'item_id' is named like the key of .*items.*, but i\d is unlike \d"):
        Tables(str(folder)).load()


def test_unknown_keys_duplicates_and_empty_lists_are_dropped_and_counted(tmp_path: Path, capsys: Any) -> None:
    orders = draw(60, 8)
    task = task_of(orders)
    items = task["item_id"].to_pylist()
    items[0], items[1], items[2] = [], [*items[1], items[1][0]], [*items[2], 99, None]
    changed = task.set_column(2, "item_id", pa.array(items, pa.list_(pa.int64())))
    graph = Tables(str(folder_of(tmp_path / "data", orders, task=changed))).load()
    expected = pairs_of(Tables(str(folder_of(tmp_path / "clean", orders, task=task.slice(1)))).load())
    assert pairs_of(graph) == expected
    lines = capsys.readouterr().out
    assert f"1 of {len(items)} rows of" in lines
    assert "have an empty list: dropped" in lines
    assert "1 empty and 1 unknown keys (such as 99)" in lines
    assert "repeat an item of a list: dropped" in lines


def test_rows_that_are_later_than_the_target_are_not_listed(tmp_path: Path, capsys: Any) -> None:
    created = [0, 0, 0, 0, 0, 0, 45, 65]
    orders = [(user, item, max(at, created[item] + 1)) for user, item, at in draw(80, 8, last=64)]
    pairs = pairs_of(Tables(str(folder_of(tmp_path / "data", [*orders, (0, 0, LAST)], created=created))).load())
    assert all(created[item] <= date for _, date, item in pairs)
    assert {item for _, date, item in pairs if date == 50} == {0, 1, 2, 3, 4, 5, 6}
    assert "are later than their target: no list can have them" in capsys.readouterr().out


def test_columns_of_pairs_count_the_rows_before_the_target(tmp_path: Path) -> None:
    orders = draw(200, 2 * BEST + 30)
    graph = Tables(str(folder_of(tmp_path / "data", orders, 2 * BEST + 30, task=task_of(orders))), links=False)
    _, targets, _ = graph._encode(graph._read(*graph._open()), None)
    assert targets.pairs is not None
    pairs = targets.pairs
    rules = {rule.name: rule.scores for rule in pairs.rules if rule.events == "orders.user_id with item_id"}
    for place in range(0, len(pairs.items), 97):
        user, item, time = targets.rows[place], pairs.items[place], targets.times[place]
        before = [row for row in orders if day(row[2]).astype(np.int64) < time]
        late = [row for row in before if day(row[2] + 10).astype(np.int64) >= time]
        assert rules["popularity"][place] == sum(row[1] == item for row in before)
        assert rules["popularity in the last horizon"][place] == sum(row[1] == item for row in late)
        assert rules["rows of the entity's past, by number"][place] == sum(row[:2] == (user, item) for row in before)
    # Candidates have all rows of the past
    listed = set(zip(targets.rows.tolist(), targets.times.tolist(), pairs.items.tolist(), strict=True))
    held_out = np.flatnonzero(targets.split == Split.TEST)
    for user, time in {(int(targets.rows[place]), int(targets.times[place])) for place in held_out}:
        assert all(
            (user, time, item) in listed
            for buyer, item, at in orders
            if buyer == user and day(at).astype(np.int64) < time
        )


def test_items_of_order_lines_are_a_past_like_items_of_orders(tmp_path: Path) -> None:
    orders = draw(150, 8)
    task, found = task_of(orders), []
    for name in ("orders", "lines"):
        folder = folder_of(tmp_path / name, orders, task=task)
        if name == "lines":
            with_lines(folder, orders)
        data = Tables(str(folder), links=False)
        _, targets, _ = data._encode(data._read(*data._open()), None)
        assert targets.pairs is not None
        found.append({(rule.name, rule.events): rule.scores for rule in targets.pairs.rules})
    for name, events in found[0]:
        if events == "orders.user_id with item_id":
            np.testing.assert_array_equal(
                found[1][name, "lines.user_id of order_id with item_id"], found[0][name, events]
            )
    assert ("popularity", "lines.user_id of order_id with item_id") in found[1]


def with_lines(folder: Path, orders: Rows) -> None:
    """Moves the items of orders to a table of its own, without times."""
    user, item, at = zip(*orders, strict=True)
    ids = np.arange(len(orders))
    table = pa.table({"id": ids, "user_id": user, "at": days(*at)})
    pyarrow.parquet.write_table(table, folder / "tables/orders.parquet")
    pyarrow.parquet.write_table(pa.table({"order_id": ids, "item_id": item}), folder / "tables/lines.parquet")
    content = yaml.safe_load((folder / "manifest.yaml").read_text(encoding="utf-8"))
    content["tables"]["orders"] = {"key": "id", "time": "at", "links": {"user_id": "users"}}
    content["tables"]["lines"] = {"links": {"order_id": "orders", "item_id": "items"}}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def test_lists_without_any_past_are_refused(tmp_path: Path) -> None:
    orders = draw(60, 8)
    folder = folder_of(tmp_path / "data", orders, task=task_of(orders), horizon=None)
    content = yaml.safe_load((folder / "manifest.yaml").read_text(encoding="utf-8"))
    del content["tables"]["orders"]["links"]["item_id"]
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"no table with times has rows of users with items, .*add tasks\.buys\.horizon"
    ):
        Tables(str(folder)).load()


@pytest.mark.parametrize("num_items", [8, 2 * BEST + 30])
def test_rows_of_the_future_change_no_bit(tmp_path: Path, num_items: int) -> None:
    past = draw(150, num_items, last=60)
    task, graphs = task_of([*past, *draw(40, num_items, 61)]), []
    for seed in (1, 2):
        future = draw(40 * seed, num_items, 61, 90, seed)
        rows = [*past, *future]
        graphs.append(Tables(str(folder_of(tmp_path / str(seed), rows, num_items, task=task)), links=False).load())
    assert graphs[0].node_ids.tolist() == graphs[1].node_ids.tolist()
    np.testing.assert_array_equal(graphs[0].features, graphs[1].features)
    np.testing.assert_array_equal(graphs[0].labels, graphs[1].labels)


def test_later_targets_change_no_bit_of_earlier_ones(tmp_path: Path) -> None:
    orders = draw(150, 8)
    task, found = task_of(orders), []
    for place, rows in enumerate((task, task.filter(pa.array([part != "test" for part in task["split"].to_pylist()])))):
        graph = Tables(str(folder_of(tmp_path / str(place), orders, task=rows)), links=False).load()
        found.append(dict(zip(graph.node_ids.tolist(), np.asarray(graph.features), strict=True)))
    assert len(found[1]) < len(found[0])
    assert all((found[0][name] == row).all() for name, row in found[1].items())


@pytest.mark.parametrize(("explained_by", "low", "high"), [("future", 0.0, 0.55), ("past", 0.95, 1.0)])
def test_lists_that_only_the_future_explains_are_at_chance(
    tmp_path: Path, explained_by: str, low: float, high: float
) -> None:
    rng, rows, orders = np.random.default_rng(0), [], []
    for number, date in enumerate(DATES):
        for user in range(USERS):
            item = int(rng.integers(8))
            rows.append((user, date, [item], ["train", "train", "train", "val", "test"][number]))
            orders += [(user, item, date + (1 if explained_by == "future" else -1))] * 3
            orders.append((user, int(rng.integers(8)), date - 5))
    user, date, items, split = zip(*rows, strict=True)
    task = pa.table({"user_id": user, "date": days(*date), "item_id": items, "split": split})
    data = Tables(str(folder_of(tmp_path / "data", orders, task=task, horizon=None)))
    _, targets, encoded = data._encode(data._read(*data._open()), None)
    scores = boosted_scores(encoded["buys"], targets).rows[:, 0]
    mask = targets.split == Split.TEST
    wanted, lists, sizes = targets.labels[mask].T
    figures = rank_figures(lists, rank_within(lists, scores[mask], -wanted), wanted, sizes, 8)
    assert low <= figures["map"] <= high


def test_lists_without_a_split_are_split_by_time(tmp_path: Path) -> None:
    orders = draw(150, 8)
    folder = folder_of(tmp_path / "data", orders, task=task_of(orders).drop(["split"]))
    split = {"by": "time", "borders": ["2024-02-20", "2024-03-01"]}
    expected = Tables(str(folder_of(tmp_path / "other", orders, task=task_of(orders)))).load()
    assert pairs_of(Tables(str(folder), split=split).load()) == pairs_of(expected)
    with pytest.raises(UserError, match=r"no row has the split train"):
        Tables(str(folder)).load()


@pytest.mark.parametrize("freeze", ["none", "test"])
def test_a_frozen_test_reads_no_row_after_the_first_test_time(tmp_path: Path, freeze: str) -> None:
    past, found = draw(150, 8, last=60), []
    task = task_of([*past, *draw(40, 8, 61)])
    late = pa.concat_tables([task, task_of(past).slice(0, 3).set_column(1, "date", days(65, 65, 65))])
    late = late.set_column(3, "split", pa.array([*task["split"].to_pylist(), "test", "test", "test"]))
    for seed in (1, 2):
        rows = [*past, *draw(60, 8, 61, 64, seed)]
        folder = folder_of(tmp_path / str(seed), rows, task=late)
        found.append(np.asarray(Tables(str(folder), links=False, freeze=freeze).load().features))
    assert np.array_equal(*found) == (freeze == "test")


def test_figures_are_those_of_relbench() -> None:
    rng = np.random.default_rng(0)
    lists, wanted = np.repeat(np.arange(5), 20), rng.random(100) < 0.3
    scores, missed = rng.random(100), rng.integers(0, 3, 5)
    sizes = np.bincount(lists, wanted) + missed
    found = rank_figures(lists, rank_within(lists, scores), wanted, sizes[lists], 10)
    expected = []
    for number in range(5):
        hits = wanted[lists == number][np.argsort(-scores[lists == number])][:10].astype(float)
        precision = np.cumsum(hits) / np.arange(1, 11)
        expected.append([(precision * hits).sum() / min(sizes[number], 10), hits.mean(), hits.sum() / sizes[number]])
    np.testing.assert_allclose([*found.values()], np.mean(expected, 0))


def faults() -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "no target": ({"target": None, "type": "ranking"}, r"type: ranking needs target"),
        "other type": ({"type": "regression"}, r"type must be ranking"),
        "no time": ({"time": None}, r"ranking needs time"),
        "no such table": ({"target": "shops"}, r"tasks\.buys\.target: no table 'shops'"),
        "no key": ({"target": "orders"}, r"tasks\.buys\.target: orders has no primary key"),
        "length": ({"eval_k": 0}, r"eval_k=0"),
        "length without target": ({"target": None, "eval_k": 5}, r"eval_k is the length of lists"),
        "two names": ({"src_entity_col": "user_id"}, r"src_entity_col is RelBench's name of entity"),
    }


@pytest.mark.parametrize("fault", faults())
def test_manifests_of_rankings_are_checked(tmp_path: Path, fault: str) -> None:
    entries, message = faults()[fault]
    folder = folder_of(tmp_path / "data", draw(20, 8), **entries)
    with pytest.raises(UserError, match=message):
        Manifest.read(folder / "manifest.yaml")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown entity", r"name no row of users, such as \[99\]; remove them"),
        ("unknown entity of a query", r"name no row of users, such as \[99\]; join users in the query"),
        ("no known key", r"no key is one of items"),
        ("splits of a list", r"rows of one list have different splits"),
        ("no target", r"name the table of these keys as tasks\.buys\.target"),
        ("struct", r"expected keys or lists of keys"),
    ],
)
def test_tables_of_rankings_are_checked(tmp_path: Path, fault: str, message: str) -> None:
    orders = draw(60, 8)
    task, entries = task_of(orders), {}
    if fault == "unknown entity":
        task = task.set_column(0, "user_id", pa.array([99] * len(task)))
    elif fault == "unknown entity of a query":
        orders, task, entries = [*orders, (99, 1, 45), (99, 2, 46)], None, {"query": ROWS, **DATED}
    elif fault == "no known key":
        task = task.set_column(2, "item_id", pa.array([[99]] * len(task)))
    elif fault == "struct":
        task = task.set_column(2, "item_id", pa.array([{"id": 1}] * len(task)))
    elif fault == "splits of a list":
        task = pa.concat_tables([task, task.set_column(3, "split", pa.array(["test"] * len(task)))])
    else:
        entries = {"target": None, "eval_k": None}
    with pytest.raises(UserError, match=message):
        Tables(str(folder_of(tmp_path / "data", orders, task=task, **entries))).load()


def test_a_link_to_the_listed_row_is_refused(tmp_path: Path) -> None:
    orders = draw(60, 8)
    lists = {user: [user % 8] for user, _ in lists_of(orders)}
    task = pa.table({"user_id": [*lists], "date": days(*[30] * len(lists)), "item_id": [*lists.values()]})
    task = task.append_column("split", pa.array(["train"] * (len(task) - 1) + ["test"]))
    folder = folder_of(tmp_path / "data", orders, task=task)
    users = pa.table({"id": np.arange(USERS), "next_item": np.arange(USERS) % 8})
    pyarrow.parquet.write_table(users, folder / "tables/users.parquet")
    content = yaml.safe_load((folder / "manifest.yaml").read_text(encoding="utf-8"))
    content["tables"]["users"]["links"] = {"next_item": "items"}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"next_item of users names a row of at least 99.9 %"):
        Tables(str(folder)).load()


@pytest.mark.slow
def test_a_rule_is_a_model_of_its_column_with_the_figures_of_the_baseline(tmp_path: Path) -> None:
    data = Tables(str(folder_of(tmp_path / "data", draw(300, 8))))
    _, targets, encoded = data._encode(data._read(*data._open()), None)
    baseline = max(rank_by_rules(targets), key=lambda rule: rule.val)
    column = encoded["buys"].names.index(baseline.column)
    model = {"name": "column", "column": column}
    keys: dict[str, Any] = {"model": model, "comm": "threads", "trainer": {"max_epochs": 1}, "write": []}
    for workers in (1, 2):
        graph = Tables(str(tmp_path / "data"), links=False).load()
        options = {"strategy": "vertex_centric", "report": False, "logger": [], "task": {"name": "ranking", "k": 3}}
        run = gnnkit.train(graph, workers=workers, folder=tmp_path / f"run{workers}", **{**options, **keys})
        assert run["val_map"] == pytest.approx(baseline.val, abs=1e-12)
        assert run["test_map"] == pytest.approx(baseline.test, abs=1e-12)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_lists_as_of_a_date_have_the_best_rows_of_each_entity(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", draw(300, 8))
    keys: dict[str, Any] = {
        "dataset": {"name": "tables", "root": str(folder)},
        "task": {"name": "ranking", "k": 3},
        "model": {"name": "rgcn", "project": True, "hidden": 8, "num_layers": 2, "inverse": False, "skip": True},
        "sampler": {"name": "neighbor", "fanouts": [1, 5], "time": "strict", "pick": "last"},
        "report": False,
        "logger": [],
    }
    strategy = {"name": "individual_sample", "batch_size": 64}
    run = gnnkit.train(strategy=strategy, output=str(tmp_path / "run"), workers=1, trainer={"max_epochs": 1}, **keys)
    tested = gnnkit.predict(run.folder, job="test", workers=2, comm="threads", output=str(tmp_path / "test"))
    for name in ("map", "precision", "recall"):
        assert tested[f"test_{name}"] == pytest.approx(run[f"test_{name}"], abs=1e-12)
    data = {"name": "tables", "root": str(folder), "until": "2024-04-01"}
    predicted = gnnkit.predict(run.folder, dataset=data, output=str(tmp_path / "new"), write_format="parquet")
    table = pyarrow.parquet.read_table(predicted.folder / "predictions.parquet").to_pylist()
    assert [row["rank"] for row in table] == [1, 2, 3] * USERS
    assert [row["id"] for row in table[::3]] == [f"buys:{user}@2024-04-01" for user in range(USERS)]
    assert all(row["row"].startswith("items:") for row in table)
    for first in range(0, len(table), 3):
        scores = [row["score"] for row in table[first : first + 3]]
        assert scores == sorted(scores, reverse=True)
    with pytest.raises(UserError, match=r"ranked lists, which are not served; use job=predict"):
        gnnkit.serve(str(run.folder), Tables(str(folder), until="2024-04-01").load())


def test_lists_at_a_date_of_the_task_are_predicted_for_every_entity(tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path / "data", draw(60, 8)))
    pairs = pairs_of(Tables(folder, until="2024-03-01").load())
    assert len({user for user, date, _ in pairs if date == 60}) == USERS
    assert all(part == "none" and np.isnan(label) for (_, date, _), (part, label) in pairs.items() if date == 60)
    with pytest.raises(UserError, match=r"dataset\.until=2024-02-10: \d+ training lists of buys have this time"):
        Tables(folder, until="2024-02-10").load()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_commands_rank_and_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "data", draw(300, 8))
    assert main(["job=init", "dataset=tables", "dataset.root=data", "init.minutes=0.2", "output=new"]) == 0
    lines = capsys.readouterr().out
    assert "baseline: popularity in the last horizon" in lines
    trials = re.findall(r"trial: (.*): val_map 0\.\d{4}, test_map 0\.\d{4}", lines)
    assert trials[:2] == ["a model of the graph", "its mean with gradient boosting"]
    assert len(trials) >= 3  # a rule, too
    assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=1", "report=false", "output=run"]) == 0
    run = json.loads((tmp_path / "run/result.json").read_text(encoding="utf-8"))
    assert run["task"] == "ranking"
    assert 0 < run["test_map"] <= 1
    explain = ["job=explain", "checkpoint=run", "dataset=tables", "dataset.root=data", "output=explained"]
    node = "buys:3@2024-02-20 > items:2"
    assert main([*explain, f"nodes=['{node}']", "write_format=parquet"]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "explained/explained_nodes.parquet").to_pydict()
    assert any(column == [node] for column in table.values())


def test_a_task_without_lists_is_refused(tmp_path: Path) -> None:
    graph = Graph.from_edges([0], [1], 2, labels=[0, 1])
    with pytest.raises(UserError, match=r"task=ranking needs dataset=tables"):
        gnnkit.train(graph, task="ranking", strategy="vertex_centric", workers=1, folder=tmp_path)


def test_labels_of_test_lists_change_no_score(tmp_path: Path) -> None:
    task, rows = task_of(draw(150, 8)), []
    for number in range(2):
        lists = [
            [number] if part == "test" else items
            for items, part in zip(*(task[name].to_pylist() for name in ("item_id", "split")), strict=True)
        ]
        changed = task.set_column(2, "item_id", pa.array(lists))
        data = Tables(str(folder_of(tmp_path / str(number), draw(150, 8), task=changed)), boosting=True)
        rows.append(np.asarray(data.load().features))
    np.testing.assert_array_equal(*rows)


def test_a_task_without_validation_has_no_trials(tmp_path: Path, capsys: Any) -> None:
    orders = draw(60, 8)
    task = task_of(orders).filter(pa.array([part != "val" for part in task_of(orders)["split"].to_pylist()]))
    keys = Tables(str(folder_of(tmp_path / "data", orders, task=task))).advise(1, 0).keys
    assert "no trials, because buys needs rows of train, val and test" in capsys.readouterr().out
    assert keys["model"][0] == "rgcn"


@pytest.mark.parametrize("best", [0.0, 1.0])
def test_the_benchmark_compares_models_of_lists_with_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: float
) -> None:
    monkeypatch.syspath_prepend(Path(gnnkit.__file__).resolve().parents[1] / "benchmarks")
    databases, model = importlib.import_module("databases"), "a model of the graph"
    rates = {model: Trial(model, {}, best, 0.5)}
    monkeypatch.setattr(
        databases, "train_candidate", lambda candidate, *_: rates.get(candidate[0], Trial(candidate[0], {}, 0.0, 0.25))
    )
    lines = list(databases.measure(str(folder_of(tmp_path / "data", draw(200, 8))), None, "none", 2))
    rules = dict(re.findall(r"baseline: (.*): val_map (\S+),", "\n".join(lines)))
    assert "rows of entities with the same rows (orders.user_id with item_id)" in rules
    selected = model if best else max(rules, key=lambda name: float(rules[name]))
    assert any(line.startswith(f"seed 1: selected: {selected}: test") for line in lines)
    assert f"map: {model}: val {best:.4f}, test 0.5000" in lines
    assert (lines[-1] == "map: selected: test 0.5000") == (best == 1)
