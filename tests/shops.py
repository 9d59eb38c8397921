"""A small database by hand, for tests: shops, items, orders and who returns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import yaml


def day(number: int) -> np.datetime64:
    return np.datetime64("2024-01-01", "us") + np.timedelta64(number, "D")


def days(*numbers: int) -> pa.Array:
    return pa.array([day(number) for number in numbers], pa.timestamp("us"))


def tables(**changes: Any) -> dict[str, pa.Table]:
    """Returns three tables. Orders 5 and 6 lead nowhere, and order 7 has no time."""
    plain = {
        "users": pa.table({"id": [10, 11, 12], "age": [30.0, 40.0, None], "city": ["Rome", "Oslo", "Rome"]}),
        "items": pa.table({"item_id": ["a", "b"], "price": [1.5, 2.5]}),
        "orders": pa.table(
            {
                "order_id": [1, 2, 3, 4, 5, 6, 7],
                "user_id": pa.array([10, 10, 11, 11, None, 99, 12], pa.int64()),
                "item_id": ["a", "b", "a", "b", "a", "a", "b"],
                "amount": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
                "at": pa.array([*(day(n) for n in (1, 5, 5, 9, 2, 3)), None], pa.timestamp("us")),
            }
        ),
    }
    return {**plain, **changes}


def task(**changes: Any) -> pa.Table:
    columns = {
        "user_id": [10, 11, 12, 10, 11, 10],
        "time": days(4, 5, 5, 6, 8, 12),
        "label": [0, 1, 0, 1, 1, 0],
        "split": ["train", "train", "train", "train", "val", "test"],
    }
    return pa.table({**columns, **changes})


MANIFEST = {
    "tables": {
        "users": {"key": "id"},
        "items": {"key": "item_id"},
        "orders": {"key": "order_id", "time": "at", "links": {"user_id": "users", "item_id": "items"}},
    },
    "tasks": {"returns": {"table": "users", "entity": "user_id", "time": "time", "label": "label"}},
}


def write(folder: Path, manifest: Any = MANIFEST, form: str = "parquet", **changes: Any) -> Path:
    """Writes the database.

    Args:
        folder: A new folder.
        manifest: The manifest's content, or None to leave it out.
        form: parquet or csv.
        changes: Tables, and `returns`, the task.
    """
    (folder / "tables").mkdir(parents=True)
    (folder / "tasks").mkdir()
    rows = changes.pop("returns", task())
    places = {f"tables/{name}": table for name, table in tables(**changes).items() if table is not None}
    for place, table in {**places, "tasks/returns": rows}.items():
        if form == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{place}.parquet")
        else:
            pyarrow.csv.write_csv(table, folder / f"{place}.csv")
    if manifest is not None:
        (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    return folder


QUERY = """
SELECT t.timestamp AS date, u.id AS user_id, COUNT(o.order_id) AS num_orders
FROM timestamps t CROSS JOIN users u
LEFT JOIN orders o ON o.user_id = u.id AND o.at > t.timestamp AND o.at <= t.timestamp + INTERVAL '{timedelta}'
GROUP BY ALL
"""
TASK = {
    "table": "users",
    "entity": "user_id",
    "time": "date",
    "label": "num_orders",
    "horizon": "2 days",
    "query": QUERY,
    "val": "2024-01-06",
    "test": "2024-01-08",
}
LAST = 13  # day of the last order


def with_question(
    folder: Path, form: str = "parquet", specs: Any = None, users: Any = None, orders: Any = None, **entries: Any
) -> Path:
    """Writes the database with a question. An order on the last day ends the dates.

    Args:
        folder: A new folder.
        form: parquet or csv.
        specs: Further entries of tables in the manifest.
        users: Replaces the table.
        orders: Replaces the table.
        entries: Those of the task.
    """
    spec = {key: value for key, value in {**TASK, **entries}.items() if value is not None}
    rows = tables()["orders"] if orders is None else orders
    late = {"order_id": [8], "user_id": [12], "item_id": ["a"], "amount": [1.0], "at": [day(LAST)]}
    if orders is None:
        rows = pa.concat_tables([rows, pa.table(late).cast(rows.schema)])
    manifest: Any = {**copy.deepcopy(MANIFEST), "tasks": {"busy": spec}}
    for name, entry in (specs or {}).items():
        manifest["tables"][name].update(entry)
    folder = write(folder, manifest, form, orders=rows, users=tables()["users"] if users is None else users)
    (folder / f"tasks/returns.{form}").unlink()
    return folder
