"""Dates and times of day in every common form are read alike by every reader."""

from __future__ import annotations

import datetime
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.values import FORMS

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.graph.test_values import READERS as ALL_READERS
from tests.graph.test_values import in_order, read, write

EPOCH = datetime.datetime(1970, 1, 1)
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
DAYS = [form.day for form in FORMS if form.day]
READERS = ("pandas", "csv", "parquet", "import of csv", "import of parquet")
every_reader = pytest.mark.parametrize("reader", READERS)


def draw_moments(seed: int, count: int) -> list[datetime.datetime]:
    """Draws moments of a century, one of them on a 31st, so that a form is certain."""
    rng = random.Random(seed)
    moments = [EPOCH + datetime.timedelta(seconds=rng.randrange(2 * 10**9)) for _ in range(count - 1)]
    return [datetime.datetime(2004, 1, 31, 23, 59, 58), *moments]


def without_zeros(text: str) -> str:
    """Writes 04/05/2004 7:05 as 4/5/2004 7:05."""
    return re.sub(r"(^|/)0(\d/)", r"\1\2", re.sub(r" 0(\d:)", r" \1", text))


@pytest.mark.parametrize("day", DAYS)
def test_dates_of_every_form_are_the_seconds_of_the_calendar(day: str) -> None:
    (form,) = [form for form in FORMS if form.day == day]
    for number, time in enumerate(TIMES if "%H" not in day else ("",)):
        moments = draw_moments(number, 300)
        texts = [moment.strftime(day + time) for moment in moments]
        reference = [(datetime.datetime.strptime(text, day + time) - EPOCH).total_seconds() for text in texts]
        assert form.seconds(pa.array(texts)).tolist() == reference
        if day.count("/") == 2:
            assert form.seconds(pa.array(list(map(without_zeros, texts)))).tolist() == reference
        if time:
            assert form.seconds(pa.array([f"{text} UTC" for text in texts])).tolist() == reference


def test_days_that_no_month_has_and_other_text_have_no_form() -> None:
    texts = ["2/30/2004", "31.4.2004", "32-Jan-1995", "25:00", "7:60", "1:2", "soon", "", "4/15/04x", "1:99.5", "3-2"]
    for form in FORMS:
        assert np.isnan(form.seconds(pa.array(texts))).all(), form
    assert sum(form.read(pa.array(["2/29/2004"])) is not None for form in FORMS) == 1


@every_reader
@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["4/15/04 2:56 PM", "4/16/04", "", "12/31/04 1:05 AM"], [1082040960, 1082073600, 0, 1104455100]),
        (["15.4.2004", "31.12.2004", "NA", "1.2.2004"], [1081987200, 1104451200, 0, 1075593600]),
        (["01-Jan-1995", "31-dec-1995", "2-Feb-1995", "3-Feb-1995"], [788918400, 820368000, 791683200, 791769600]),
        (["Fri Apr 16 15:03:00 +0000 2004"] * 4, [1082127780] * 4),
        (["17:35", "7:05", "0:00:01", "23:59"], [63300, 25500, 1, 86340]),
        (["1:27.5", "0:59.25", "-", "12:00.0"], [87.5, 59.25, 0, 720]),
    ],
)
def test_text_in_a_common_form_becomes_seconds(
    reader: str, texts: list[str], seconds: list[float], tmp_path: Path
) -> None:
    graph = read(reader, tmp_path, {"a": texts})
    assert graph.feature_names == ("a",)
    np.testing.assert_array_equal(np.asarray(graph.features)[:, 0], seconds)
    assert (graph.missing is None) == (0 not in seconds)


@every_reader
def test_dates_whose_day_may_be_the_month_are_refused_with_both(reader: str, tmp_path: Path) -> None:
    texts = ["01/01/2004", "01/02/2004", "03/02/2004", ""]
    with pytest.raises(UserError, match=r"'01/02/2004', which may be 2004-01-02 or 2004-02-01: write dates as 2004-01"):
        read(reader, tmp_path, {"a": texts})
    certain = read(reader, tmp_path, {"a": [*texts[:3], "13/02/2004"]})
    assert np.asarray(certain.features)[1, 0] == 1075593600  # 1 February


def test_the_first_unclear_date_is_found_after_any_number_of_clear_ones() -> None:
    texts = [f"1/1/2004 {hour}:{minute:02}" for hour in range(6) for minute in range(60)] + ["1/2/2004 0:00"]
    edges = pd.DataFrame({"src": 0, "dst": 1, "when": texts})
    for keys in ({"time": "when"}, {"edge_features": ["when"]}):
        with pytest.raises(UserError, match="'1/2/2004 0:00', which may be 2004-01-02 or 2004-02-01: write"):
            Graph.from_tables(edges, **keys)


@every_reader
def test_years_of_an_unclear_century_are_refused_with_both(reader: str, tmp_path: Path) -> None:
    texts = ["3/14/71", "7/5/29", "7/6/29"]
    with pytest.raises(UserError, match="dates of the year 45, which may be 1945 or 2045: write all four digits"):
        read(reader, tmp_path, {"a": [*texts, "7/4/45"]})
    certain = read(reader, tmp_path, {"a": [*texts, "7/4/29"]})
    assert np.asarray(certain.features)[:2, 0].astype("M8[s]").astype("M8[D]").astype(str).tolist() == [
        "1971-03-14",
        "2029-07-05",
    ]


@every_reader
def test_dates_in_two_forms_are_refused_with_the_odd_one(reader: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds dates, but 'soon' is neither a date nor a word for a missing value"):
        read(reader, tmp_path, {"a": ["4/15/2004", "4/16/2004", "4/17/2004", "soon"]})
    with pytest.raises(UserError, match="holds dates, but '2004-01-01' is neither a date nor"):
        read(reader, tmp_path, {"a": ["4/15/2004", "4/16/2004", "4/17/2004", "2004-01-01"]})


@every_reader
@pytest.mark.parametrize("form", ["%m/%d/%Y %H:%M", "%a %b %d %H:%M:%S +0000 %Y"])
def test_times_of_rows_may_have_any_form(reader: str, form: str, tmp_path: Path) -> None:
    moments = [datetime.datetime(2004, 1, 31, hour, 5) for hour in range(4)]
    plain = [int((moment - EPOCH).total_seconds()) * 10**6 for moment in moments]
    edges, nodes = {"time": [one.strftime(form) for one in moments]}, {"time": [f"{one:%Y/%m/%d}" for one in moments]}
    graph = read(reader, tmp_path, nodes, edges)
    assert graph.edge_time is not None
    assert (in_order(graph, graph.edge_time), graph.time_unit) == (plain, "us")
    assert set(graph.node_time.tolist()) == {plain[0] - 5 * 60 * 10**6}  # type: ignore[union-attr]
    assert (graph.feature_names, graph.edge_feature_names, graph.column_forms) == (None, None, None)


@every_reader
def test_a_time_of_day_is_no_time_of_rows(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {}, {"time": ["17:35", "7:05", "0:00", "23:59"]})
    assert (graph.edge_time, graph.edge_feature_names) == (None, ("time",))


def test_tables_of_several_relations_decide_on_one_form_of_times(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    for name, times in (("likes", ["01/02/2004", "03/02/2004"]), ("knows", ["13/02/2004", "14/02/2004"])):
        frame = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "time": times})
        frame.to_parquet(tmp_path / f"edges/{name}.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = EdgeFolder(str(tmp_path), symmetrize=False, time=["time"]).load()
    assert min(graph.edge_time) == 1075593600 * 10**6  # type: ignore[arg-type]


def test_labels_that_look_like_dates_stay_classes() -> None:
    nodes = {"id": [0, 1, 2], "label": ["16:10", "4:30", "16:10"]}
    graph = Graph.from_tables(pd.DataFrame({"src": [0, 1], "dst": [1, 2]}), pd.DataFrame(nodes))
    assert graph.class_names == ("16:10", "4:30")


def test_new_lines_name_the_column_and_an_example(tmp_path: Path) -> None:
    edges = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]}
    folder = write(tmp_path, "csv", {"id": [0, 1, 2, 3], "a": ["4/15/04"] * 4, "b": ["AL", "NA", "NL", "?"]}, edges)
    with pytest.warns(
        UserWarning, match=r"reads 'a' \(4/15/04\) as seconds, 'NA' in 'b' as a missing value, unless mis"
    ):
        EdgeFolder(str(folder), symmetrize=False).load()


@every_reader
@pytest.mark.parametrize(
    ("edge_time", "node_time", "line"),
    [
        (
            [1082040960] * 4,
            [1082040960000] * 4,
            "edge_time is 1082040960 and node_time is 1082040960000: give nodes and",
        ),
        ([1082040960] * 4, [2004, 2005, 2006, 2007], "edge_time is 1082040960 and node_time is 2005: give nodes and"),
        (pd.to_datetime([1082040960] * 4).tolist(), None, "edge_time is 1970-01-01 00:00:01.0820"),
        ([1, 2, 3, 4], [1, 100, 200, 300], None),
        ([1082040960] * 4, [1082040961] * 4, None),
    ],
)
def test_units_that_differ_are_named(
    reader: str, edge_time: list[Any], node_time: list[int] | None, line: str | None, tmp_path: Path
) -> None:
    nodes = {"id": [0, 1, 2, 3], **({} if node_time is None else {"time": node_time})}
    edges = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0], "time": edge_time}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ALL_READERS[reader](tmp_path, nodes, edges, {})
    lines = [str(warning.message) for warning in caught if "unit" in str(warning.message)]
    assert bool(lines) == (line is not None)
    assert line is None or line in lines[0]
