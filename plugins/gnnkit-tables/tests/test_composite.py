"""Keys of several columns that are guessed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from gnnkit_formats.table import Table
from gnnkit_tables import Tables, composite
from gnnkit_tables.folder import Folder
from gnnkit_tables.guess import propose
from gnnkit_tables.manifest import Link, Manifest

HOURS = np.datetime64("2013-01-01T05", "us") + np.arange(200) * np.timedelta64(1, "h")
PORTS = ("EWR", "JFK", "LGA")


def guess(**tables: Mapping[str, Any]) -> Manifest:
    return propose({name: Table(name, pa.table(dict(columns))) for name, columns in tables.items()}, {})


def parts_of_time(hours: Any) -> dict[str, Any]:
    """Returns year, month, day and hour of the form of nycflights13."""
    years, months, days = (hours.astype(f"M8[{unit}]") for unit in "YMD")
    return {
        "year": years.astype(int) + 1970,
        "month": (months - years).astype(int) + 1,
        "day": (days - months).astype(int) + 1,
        "hour": (hours.astype("M8[h]") - days).astype(int),
    }


def flights(*, with_hours: bool) -> dict[str, dict[str, Any]]:
    """Returns hourly weather of three airports, and 2,000 flights, some without it."""
    rng = np.random.default_rng(0)
    hours, ports = np.tile(HOURS, 3), np.repeat(PORTS, len(HOURS))
    rows = rng.integers(0, len(hours), 2000)
    times = hours[rows].copy()
    times[:20] += np.timedelta64(400, "D")
    tables = {
        "weather": {"origin": ports, **parts_of_time(hours), "temp": rng.normal(size=len(hours))},
        "flights": {**parts_of_time(times), "carrier": rng.choice(["AA", "UA"], 2000), "origin": ports[rows]},
    }
    if with_hours:
        tables["weather"]["time_hour"], tables["flights"]["time_hour"] = hours, times
    return tables


@pytest.mark.parametrize(
    ("with_hours", "key"), [(True, ("origin", "time_hour")), (False, ("origin", "year", "month", "day", "hour"))]
)
def test_weather_of_a_flight_is_found_by_place_and_time(with_hours: bool, key: tuple[str, ...]) -> None:
    proposal = guess(**flights(with_hours=with_hours))
    assert (proposal.tables["weather"].key, proposal.tables["flights"].key) == (key, ())
    assert proposal.tables["flights"].links == (Link(key, "weather"),)
    assert proposal.tables["weather"].links == ()
    text = proposal.text()
    assert "no column is distinct in all rows, but these together; 600 values; flights has them" in text
    assert "columns of the key; 97 % of the distinct combinations are keys; 0 empty, 20 unknown of 2,000" in text


def test_a_composite_link_is_written_and_read_with_other_links(tmp_path: Path) -> None:
    ports = {"origin": [*PORTS], "height": [1.5, 2.5, 3.5]}
    proposal = guess(ports=ports, **flights(with_hours=True))
    (tmp_path / "manifest.yaml").write_text(text := proposal.text(), encoding="utf-8")
    assert Manifest.read(tmp_path / "manifest.yaml") == proposal
    assert proposal.tables["flights"].links == (Link(("origin",), "ports"), Link(("origin", "time_hour"), "weather"))
    assert "      - {columns: [origin], table: ports}  # named like its key; 100 % of" in text
    assert "      - {columns: [origin, time_hour], table: weather}  # columns of the key; 97 % of" in text


def hotels() -> dict[str, dict[str, Any]]:
    """Returns rooms that are numbered in each of four hotels, and 300 bookings."""
    rng = np.random.default_rng(0)
    hotel, number = np.divmod(np.arange(80), 20)
    rows = rng.integers(0, 80, 300)
    return {
        "hotels": {"hotel_id": np.arange(4), "city": ["Rome", "Oslo", "Rome", "Bern"]},
        "rooms": {"hotel_id": hotel, "number": 100 + number, "beds": rng.integers(1, 4, 80)},
        "bookings": {
            "booking_id": np.arange(300),
            "hotel_id": hotel[rows],
            "room_number": 100 + number[rows],
            "beds": rng.integers(1, 4, 300),
        },
    }


@pytest.mark.parametrize(
    ("column", "other"),
    [("room_number", "number"), ("RoomNumber", "number"), ("number", "number"), ("number", "Number")],
)
def test_rooms_are_found_by_hotel_and_number(column: str, other: str) -> None:
    tables = hotels()
    tables["bookings"][column] = tables["bookings"].pop("room_number")
    tables["rooms"][other] = tables["rooms"].pop("number")
    proposal = guess(**tables)
    assert proposal.tables["rooms"].key == ("hotel_id", other)
    links = {link.columns: link.table for link in proposal.tables["bookings"].links}
    assert links == {("hotel_id",): "hotels", ("hotel_id", column): "rooms"}


def test_columns_with_other_names_match_if_both_refer_to_the_same_table() -> None:
    tables = hotels()
    tables["hotels"] = {"code": ["H0", "H1", "H2", "H3"], "city": tables["hotels"]["city"]}
    for name, column in (("rooms", "hotel"), ("bookings", "place")):
        tables[name][column] = np.array(["H0", "H1", "H2", "H3"])[tables[name].pop("hotel_id")]
    proposal = guess(**tables)
    assert Link(("room_number", "place"), "rooms") in proposal.tables["bookings"].links


def test_an_id_that_is_part_of_a_link_is_not_mentioned_as_none() -> None:
    tables = hotels()
    tables["bookings"]["room_id"] = tables["bookings"].pop("room_number")
    tables["rooms"]["id"] = tables["rooms"].pop("number")
    proposal = guess(**tables)
    assert proposal.tables["rooms"].key == ("hotel_id", "id")
    assert "no link" not in proposal.text()


def test_keys_in_text_files_are_found_as_in_parquet(tmp_path: Path) -> None:
    for name, columns in {**flights(with_hours=True), **hotels()}.items():
        pyarrow.csv.write_csv(pa.table(columns), tmp_path / f"{name}.csv")
    proposal = Tables(str(tmp_path))._propose(Folder.find(tmp_path), ())
    assert proposal.tables["weather"].key == ("origin", "time_hour")
    assert proposal.tables["rooms"].key == ("hotel_id", "number")
    assert (proposal.tables["weather"].time, proposal.tables["flights"].time) == ("time_hour", "time_hour")


def small(count: int, high: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, high, count) for name in ("stars", "votes", "rank")}


def few_rows() -> dict[str, dict[str, Any]]:
    """Six distinct pairs of small numbers, which all rows of another table have."""
    pairs = {"stars": np.array([1, 1, 2, 2, 3, 3]), "votes": np.array([1, 2, 1, 2, 1, 2])}
    return {"a": pairs, "b": {name: np.tile(cells, 9) for name, cells in pairs.items()}}


def same_key() -> dict[str, dict[str, Any]]:
    """Two tables with a row for each of the same pairs."""
    store, product = np.divmod(np.arange(400), 20)
    columns = {"store": store, "product": product}
    return {"a": {**columns, "price": np.ones(400)}, "b": {**columns, "price": np.ones(400)}}


def other_pairs() -> dict[str, dict[str, Any]]:
    """Half of the pairs that another table has are none of this table's."""
    tables = same_key()
    return {"a": {name: cells[:200] for name, cells in tables["a"].items()}, "b": {**tables["b"], **_twice(tables)}}


def _twice(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: np.tile(cells, 2) for name, cells in tables["b"].items()}


def a_date_alone() -> dict[str, dict[str, Any]]:
    """A row for each day, so that a pair with another column is no smaller key."""
    day = np.datetime64("2024-01-01", "us") + np.arange(60) * np.timedelta64(1, "D")
    rows = np.arange(300) % 60
    region = np.arange(60) % 2
    return {"a": {"day": day, "region": region}, "b": {"day": day[rows], "region": region[rows]}}


@pytest.mark.parametrize("make", [few_rows, same_key, other_pairs, a_date_alone])
def test_columns_of_the_same_names_are_no_key_without_evidence(make: Any) -> None:
    tables = make()
    proposal = guess(**tables)
    assert [spec.key for spec in proposal.tables.values()] == [(), ()], "no single column is distinct"
    assert not any(spec.links for spec in proposal.tables.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("count", "high"), [(8, 5), (30, 10), (30, 60), (300, 100)])
def test_random_small_numbers_are_no_key(count: int, high: int, seed: int) -> None:
    proposal = guess(a=small(count, high, seed), b=small(10 * count, high, 100 + seed))
    assert not any(link.columns[1:] for spec in proposal.tables.values() for link in spec.links)


def test_a_table_with_a_key_keeps_it() -> None:
    tables = hotels()
    tables["rooms"]["room_id"] = np.arange(80)
    proposal = guess(**tables)
    assert proposal.tables["rooms"].key == ("room_id",)
    assert [link.table for link in proposal.tables["bookings"].links] == ["hotels"]


def test_the_key_of_most_other_tables_is_proposed() -> None:
    tables = hotels()
    floor, door = np.divmod(np.arange(80), 10)
    tables["rooms"] |= {"floor": floor, "door": door}
    rows = np.arange(240) % 80
    tables["alarms"] = {"floor": floor[rows], "door": door[rows]}
    tables["cleanings"] = {name: tables["rooms"][name][rows] for name in ("hotel_id", "number")}
    specs = guess(**tables).tables
    assert specs["rooms"].key == ("hotel_id", "number")
    assert specs["cleanings"].links == (Link(("hotel_id",), "hotels"), Link(("hotel_id", "number"), "rooms"))
    assert specs["alarms"].links == ()


def test_the_entity_of_a_task_has_a_composite_key() -> None:
    tables = {name: Table(name, pa.table(columns)) for name, columns in hotels().items()}
    rows = {"hotel_id": [0, 1, 2], "number": [100, 101, 102], "at": HOURS[:3], "full": [0, 1, 0]}
    spec = propose(tables, {"full": Table("full", pa.table(rows))}).tasks["full"]
    assert (spec.table, spec.entity, spec.time, spec.label) == ("rooms", ("hotel_id", "number"), "at", "full")


def test_wide_tables_are_compared_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    columns = {f"c{place}": rng.integers(0, 40, 400) for place in range(300)}
    counted: list[int] = []
    distinct = composite._distinct

    def count(table: pa.Table) -> pa.Table:
        counted.append(len(table))
        return distinct(table)

    monkeypatch.setattr(composite, "_distinct", count)
    guess(a=columns, b={name: np.tile(cells, 2) for name, cells in columns.items()})
    assert 0 < len(counted) < 300
