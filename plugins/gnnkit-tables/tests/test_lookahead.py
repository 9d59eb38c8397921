"""Questions whose labels depend on rows that are later than they say."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from gnnkit_tables import Tables, question

from tests.shops import QUERY, day, tables, with_question

BOUND = "o.at <= t.timestamp + INTERVAL '{timedelta}'"
BEYOND = {
    "an unbounded label": QUERY.replace(f"AND {BOUND}", ""),
    "a longer bound": QUERY.replace(BOUND, "o.at <= t.timestamp + INTERVAL '5 days'"),
    "a mean of all rows": QUERY.replace("COUNT(o.order_id)", "COUNT(o.order_id) + (SELECT COUNT(*) FROM orders)"),
    "entities of the future": QUERY.replace("CROSS JOIN users u", "JOIN (SELECT DISTINCT user_id AS id FROM orders WHERE user_id < 90) u ON true"),
}  # fmt: skip
WITHIN = {
    "as published": QUERY,
    "the past": QUERY.replace("COUNT(o.order_id)", "COUNT(o.order_id) + (SELECT COUNT(*) FROM orders p WHERE p.at <= t.timestamp)").replace("GROUP BY ALL", "GROUP BY t.timestamp, u.id"),
    "entities of the past": QUERY.replace("CROSS JOIN users u", "JOIN users u ON EXISTS (SELECT 1 FROM orders p WHERE p.user_id = u.id AND p.at <= t.timestamp)"),
    "a shorter bound": QUERY.replace(BOUND, "o.at < t.timestamp + INTERVAL '1 day'"),
    "neighbouring dates": QUERY.replace("COUNT(o.order_id)", "COUNT(o.order_id) + COALESCE(LEAD(COUNT(o.order_id)) OVER (PARTITION BY u.id ORDER BY t.timestamp), 0)").replace("GROUP BY ALL", "GROUP BY t.timestamp, u.id"),
}  # fmt: skip


def lines_of(folder: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Tables(str(folder)).load()
    return [str(warning.message) for warning in caught if "tasks.busy.query" in str(warning.message)]


@pytest.mark.parametrize("name", BEYOND)
def test_a_query_that_looks_beyond_its_horizon_is_named(tmp_path: Path, name: str) -> None:
    (line,) = lines_of(with_question(tmp_path / "data", query=BEYOND[name]))
    assert line.startswith("tasks.busy.query: at 2024-01-")
    assert "entities or labels depend on rows of orders after 2024-01-" in line
    assert "although the horizon is 2 days" in line


@pytest.mark.parametrize("name", WITHIN)
def test_a_query_within_its_horizon_has_no_warning(tmp_path: Path, name: str) -> None:
    assert not lines_of(with_question(tmp_path / "data", query=WITHIN[name]))


def test_cells_that_are_known_after_the_horizon_are_later_rows(tmp_path: Path) -> None:
    orders = tables()["orders"]
    known = [at if at is None else at + (day(9) - day(0)).item() for at in orders["at"].to_pylist()]
    orders = orders.append_column("known", pa.array([*known[:-1], day(20).item()], pa.timestamp("us")))
    query = QUERY.replace("COUNT(o.order_id)", "COUNT(o.order_id) + COALESCE(SUM(o.amount), 0)")
    lines = []
    for number, later in enumerate(({}, {"known": ["amount"]})):
        specs, dates = {"orders": {"later": later}}, {"val": "2024-01-04", "test": "2024-01-06"}
        folder = with_question(tmp_path / str(number), specs=specs, orders=orders, query=query, **dates)
        lines.append(lines_of(folder))
    assert not lines[0]
    assert "depend on rows of orders after" in lines[1][0]


@pytest.mark.parametrize("decides", [True, False])
def test_a_table_that_decides_labels_and_ends_early_is_named(tmp_path: Path, decides: bool) -> None:
    joined = tables()["users"].append_column("joined", pa.array([day(0), day(0), day(40)], pa.timestamp("us")))
    query = QUERY.replace("CROSS JOIN users u", "JOIN users u ON u.joined <= t.timestamp")
    query = query if decides else query.replace("COUNT(o.order_id)", "u.id % 2")
    lines = lines_of(with_question(tmp_path / "data", specs={"users": {"time": "joined"}}, query=query, users=joined))
    expected = "labels depend on rows of orders, which end at 2024-01-14, and the last date is 2024-02-"
    assert [expected in line for line in lines] == [True] * decides


@pytest.mark.parametrize("decides", [True, False])
def test_a_table_that_decides_labels_and_begins_late_is_named(tmp_path: Path, decides: bool) -> None:
    joined = tables()["users"].append_column("joined", pa.array([day(-20), day(-20), day(0)], pa.timestamp("us")))
    query = QUERY.replace("CROSS JOIN users u", "JOIN users u ON u.joined <= t.timestamp")
    query = query if decides else query.replace("COUNT(o.order_id)", "u.id % 2")
    lines = lines_of(with_question(tmp_path / "data", specs={"users": {"time": "joined"}}, query=query, users=joined))
    expected = "labels depend on rows of orders, which begin at 2024-01-0"
    assert [expected in line for line in lines] == [True] * decides


def test_a_query_spills_into_a_folder_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = question._run("here", "SELECT current_setting('temp_directory') AS folder", {})
    folder = Path(rows["folder"][0].as_py())
    assert not folder.exists()
    assert not folder.is_relative_to(tmp_path)
