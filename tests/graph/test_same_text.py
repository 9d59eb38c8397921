"""Text that is easily misread is the same graph or refusal in every reader."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph

COUNT = 12
EDGES = {"src": range(COUNT), "dst": [(node + 1) % COUNT for node in range(COUNT)]}
ROWS = [f"{node},{(node + 1) % COUNT},wood" for node in range(COUNT)]


def _imported(folder: EdgeFolder) -> Graph:
    pieces, work = in_pieces(folder), folder.root / "work"
    assert pieces is not None
    work.mkdir()
    room, reporter = Room(1 << 26, 1, bucket=7), ProgressReporter(quiet=True)
    return Graph.load(import_graph(pieces, work, room, Journal(work, "key"), reporter, group=WorkGroup(2)))


def _from_folder(folder: Path, **keys: Any) -> dict[str, Callable[[], Graph]]:
    opened = EdgeFolder(str(folder), symmetrize=False, **keys)
    return {"edges": opened.load, "import": lambda: _imported(opened)}


def _doors(root: Path, nodes: Mapping[str, Sequence[Any]], **keys: Any) -> dict[str, Callable[[], Graph]]:
    """Returns all ways to read a table, as its types and as text."""
    doors: dict[str, Callable[[], Graph]] = {}
    edges, typed = pd.DataFrame(EDGES), pd.DataFrame({"id": range(COUNT), **nodes})
    frames = {"typed": typed, "text": typed.astype(dict.fromkeys(nodes, str))}
    for name, frame in frames.items():
        for form in ("csv", "parquet"):
            (folder := root / f"{name}.{form}").mkdir()
            getattr(edges, f"to_{form}")(folder / f"edges.{form}", index=False)
            getattr(frame, f"to_{form}")(folder / f"nodes.{form}", index=False)
            doors |= {f"{door} of {folder.name}": read for door, read in _from_folder(folder, **keys).items()}
        doors[f"pandas of {name}"] = lambda frame=frame: Graph.from_tables(edges, frame, **keys)  # type: ignore[misc]
    doors["polars"] = lambda: Graph.from_tables(pl.from_pandas(edges), pl.from_pandas(frames["text"]), **keys)
    return doors


def _outcome(read: Callable[[], Graph]) -> tuple[Any, ...] | str:
    """Returns names, cells and labels, or the refusal without places and remedies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = read()
        except UserError as error:
            found = re.search(r"column '.*|line \d.*", str(error))
            return re.sub(r": (dataset\.ignore|features)=.*", "", str(error) if found is None else found[0])
    cells = np.array(graph.features, np.float64)
    if graph.missing is not None:
        cells[graph.missing[:, 0], graph.missing[:, 1]] = -1
    return graph.feature_names, cells.tolist(), np.asarray(graph.labels).tolist(), graph.class_names


def _the_outcome(doors: Mapping[str, Callable[[], Graph]]) -> Any:
    """Returns the one outcome of all doors."""
    outcomes = {name: _outcome(read) for name, read in doors.items()}
    first = next(iter(outcomes.values()))
    assert outcomes == dict.fromkeys(outcomes, first)
    return first


def _folder(root: Path, edges: Sequence[str], header: str = "src,dst,note", nodes: str = "") -> Path:
    (root / "edges.csv").write_text("\n".join([header, *edges]) + "\n")
    (root / "nodes.csv").write_text(nodes or "id,x\n" + "".join(f"{node},{node}\n" for node in range(COUNT)))
    return root


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ({3: '3,4,"wood'}, 5),
        ({3: '3,"4,wood'}, 5),
        ({3: '"3,4,wood'}, 5),
        ({3: '3,4,"5 inch', 7: '7,8,"6 inch'}, 5),
        ({3: '3,4,5" pipe', 7: '7,8,"6 inch'}, 9),
        ({3: '3,4,"a ""b""\n\n"', 7: '7,8,"6 inch'}, 11),
        ({COUNT - 1: f'{COUNT - 1},0,"wood'}, COUNT + 1),
    ],
)
def test_a_stray_quote_is_refused_with_its_line(tmp_path: Path, rows: dict[int, str], line: int) -> None:
    folder = _folder(tmp_path, [rows.get(number, row) for number, row in enumerate(ROWS)])
    assert _the_outcome(_from_folder(folder)).startswith(f"line {line}: a cell begins with a quote that no quote")


def test_a_file_that_ends_within_quotes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text('src,dst,note\n0,1,x\n1,0,"wo')
    assert _the_outcome(_from_folder(tmp_path)).startswith("line 3: a cell begins with a quote")


def test_a_stray_quote_is_refused_in_a_table_of_nodes(tmp_path: Path) -> None:
    nodes = "id,town,label\n" + "".join(f"{node},a,{'' if node != 4 else chr(34)}no\n" for node in range(COUNT))
    folder = _folder(tmp_path, ["0,1,x"], nodes=nodes)
    assert _the_outcome(_from_folder(folder)).startswith("line 6: a cell begins with a quote")


def test_cells_may_contain_quotes_and_line_breaks(tmp_path: Path) -> None:
    rows = {2: '2,3,"a\nb"', 3: '3,4,5" pipe', 4: '4,5,"a ""b""\n\n, c"', 5: '5,6,""', 6: '6,7,"""\n"""'}
    folder = _folder(tmp_path, [rows.get(number, row) for number, row in enumerate(ROWS)])
    for read in _from_folder(folder, ignore=["note"]).values():
        assert read().num_edges == COUNT


def test_a_row_with_too_many_cells_is_named_by_its_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path, [*ROWS, "1,2,wood,3"])
    assert _the_outcome(_from_folder(folder)).startswith(
        f"line {COUNT + 2}: CSV parse error: Expected 3 columns, got 4"
    )


@pytest.mark.parametrize("word", [-999, "-999", -999.0])
def test_a_missing_number_is_missing_in_every_column(tmp_path: Path, word: Any) -> None:
    gap = [node % 4 == 0 for node in range(COUNT)]
    nodes: dict[str, Sequence[Any]] = {
        "label": [-999 if no else node % 3 for node, no in enumerate(gap)],
        "whole": [-999 if no else node for node, no in enumerate(gap)],
        "part": [-999 if no else node / 4 for node, no in enumerate(gap)],
        "word": ["-999" if no else "AB"[node % 2] for node, no in enumerate(gap)],
    }
    names, cells, labels, classes = _the_outcome(_doors(tmp_path, nodes, missing=[word]))
    assert (names, classes) == (("whole", "part", "word=A", "word=B"), None)
    assert [row == [-1] * 4 for row in cells] == [label == -1 for label in labels] == gap


def test_a_missing_number_is_no_id(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n-999,2\n")
    for read in _from_folder(tmp_path, missing=[-999]).values():
        with pytest.raises(UserError, match="column 'src', row 1: is empty"):
            read()


@pytest.mark.filterwarnings("ignore:.* as numbers")
@pytest.mark.parametrize("number", [0, 1, 1.0, -1e20])
def test_any_number_may_be_a_missing_one(tmp_path: Path, number: float) -> None:
    edges, ids = pd.DataFrame(EDGES) + COUNT, [COUNT + node for node in range(COUNT)]
    nodes = pd.DataFrame({"id": ids, "x": [number, *[0.5] * (COUNT - 1)]})
    for kind in (float, str):
        graph = Graph.from_tables(edges, nodes.astype({"x": kind}), missing=[number])
        assert graph.missing is not None
        assert graph.missing.tolist() == [[0, 0]]


def test_hexadecimal_text_is_a_category(tmp_path: Path) -> None:
    names, *_ = _the_outcome(_doors(tmp_path, {"x": [f"0x{1 + node % 2}" for node in range(COUNT)]}))
    assert names == ("x=0x1", "x=0x2")


@pytest.mark.parametrize("first", [2**53 + 1, -(2**60), 2**65])
def test_integers_that_floats_merge_are_refused(tmp_path: Path, first: int) -> None:
    values: Any = [first + node for node in range(COUNT)]
    values = values if first < 2**63 else [*map(str, values)]
    refused = _the_outcome(_doors(tmp_path, {"x": values}))
    assert refused.startswith(
        f"column 'x' holds whole numbers from {first} to {first + COUNT - 1}, which float64 cannot"
    )


def test_points_among_decimal_commas_are_ambiguous(tmp_path: Path) -> None:
    nodes: dict[str, Sequence[Any]] = {
        "price": [f"{node},5" for node in range(COUNT)],
        "people": [f"{1 + node % 9}.{100 + node}" for node in range(COUNT)],
    }
    refused = _the_outcome(_doors(tmp_path, nodes))
    assert refused.startswith(
        "column 'people' holds '1.100', which may be 1.1 or 1100, because '0,5' in another column"
    )


def test_points_of_weights_among_decimal_commas_are_ambiguous(tmp_path: Path) -> None:
    rows = [f"{node};{(node + 1) % COUNT};1.{100 + node};{node},5" for node in range(COUNT)]
    folder = _folder(tmp_path, rows, "src;dst;weight;price")
    assert _the_outcome(_from_folder(folder)).startswith("column 'weight' holds '1.100', which may be 1.1 or 1100")


def test_points_that_are_no_thousands_are_decimal_beside_commas(tmp_path: Path) -> None:
    nodes: dict[str, Sequence[Any]] = {
        "price": [f"{node},5" for node in range(COUNT)],
        "x": [node + 0.25 for node in range(COUNT)],
    }
    _, cells, *_ = _the_outcome(_doors(tmp_path, nodes))
    assert cells[3] == [3.5, 3.25]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("13.01.21", 1_610_496_000),
        ("13.01.21 14:05", 1_610_546_700),
        ("1 Jan 21", 1_609_459_200),
        ("Jan 2021", 1_609_459_200),
    ],
)
def test_dates_of_short_years_and_months_are_seconds(tmp_path: Path, text: str, seconds: int) -> None:
    names, cells, *_ = _the_outcome(_doors(tmp_path, {"x": [text] * COUNT}))
    assert (names, cells[0]) == (("x",), [seconds])


@pytest.mark.parametrize("text", ["1 Jan 62", "13.01.62"])
def test_an_unclear_century_is_refused(tmp_path: Path, text: str) -> None:
    assert "may be 1962 or 2062" in _the_outcome(_doors(tmp_path, {"x": [text] * COUNT}))


@pytest.mark.parametrize("text", ["{}. Januar 2021", "{} kg", "{},50 EUR", "2021-01-0{} 14:05 CET"])
def test_text_that_begins_with_digits_is_said_to_be_categories(tmp_path: Path, text: str) -> None:
    nodes = {"x": [text.format(1 + node % 3) for node in range(COUNT)]}
    for name, read in _doors(tmp_path, nodes).items():
        with pytest.warns(UserWarning, match=r"reads 'x' \(.*1.*\) as categories, neither numbers nor dates"):
            assert len(read().feature_names or ()) == 3, name


@pytest.mark.parametrize(("ids", "row", "cell"), [(["0", "1", "2.0"], 2, "2.0"), (["0.0", "1.0", "2"], 2, "2")])
def test_an_id_in_another_form_is_named_by_its_row(tmp_path: Path, ids: list[str], row: int, cell: str) -> None:
    folder = _folder(tmp_path, [f"{one},0,x" for one in ids])
    refused = _the_outcome(_from_folder(folder))
    assert refused.startswith(f"column 'src', row {row}: {cell!r} differs from the id 2 in form")


@pytest.mark.parametrize(
    ("header", "row", "cure"),
    [
        ("Src,dst", "0,1", "did you mean 'Src'?"),
        ("src, dst", "0,1", "did you mean ' dst'?"),
        ("src|dst", "0|1", "cells must be divided by commas, tabs or semicolons, and not by '|'"),
        ("src dst", "0 1", "cells must be divided by commas, tabs or semicolons, and not by ' '"),
        ("sep=,\nsrc,dst", "0,1", "remove the first line, which begins with sep="),
        ("sep=,\nsrc,dst,note", "0,1,x", "remove the first line, which begins with sep="),
    ],
)
def test_a_wrong_header_names_its_cure(tmp_path: Path, header: str, row: str, cure: str) -> None:
    folder = _folder(tmp_path, [row], header)
    for read in _from_folder(folder).values():
        with pytest.raises(UserError, match=re.escape(cure)):
            read()


def test_an_index_of_ids_names_its_cure() -> None:
    nodes = pd.DataFrame({"id": range(COUNT), "x": range(COUNT)}).set_index("id")
    with pytest.raises(UserError, match=r"nodes has no column 'id', only 'x'; use reset_index\(\), as it is the index"):
        Graph.from_tables(pd.DataFrame(EDGES), nodes)


@pytest.mark.parametrize(
    ("column", "cells", "why"),
    [
        ("label", [0.5, np.inf], "column 'label', row 1: inf is not finite"),
        ("label", pd.to_datetime(["2021-01-01", "2021-01-02"]), "expected numbers or text: write the date as a number"),
        ("split", ["train", "dev"], "row 1: 'dev' is none of train, val, test, none: write one of these words"),
    ],
)
def test_unusable_cells_name_column_and_cure(column: str, cells: Any, why: str) -> None:
    nodes = pd.DataFrame({"id": [0, 1], column: cells})
    with pytest.raises(UserError, match=re.escape(why)):
        Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)
