"""One error lists all columns that cannot be used, and the key that excludes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import read_whole
from gnnkit_import.datasets import in_pieces
from hydra.core.override_parser.overrides_parser import OverridesParser

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.unfit_columns import ignore_key
from gnnkit.prepare.columns import check_texts
from gnnkit.utils.documents import read_yaml

N, M = 300, 900
NODE_REASONS = {
    "name": "is text with more than 256 different values, and at most 256 become columns of 0 and 1",
    "mixed": "holds numbers, but 'red' is neither a number nor a word for a missing value: leave a cell without a "
    "number empty, or list it in missing=[WORD, ...] (dataset.missing)",
    "amount": "spells numbers with a decimal point in some cells, and with a decimal comma in others: use one of them",
    "when": "holds dates, but '2020-02-30' is neither a date nor a word for a missing value: leave a cell without a date "
    "empty, or list it in missing=[WORD, ...] (dataset.missing)",
    "infinite": "row 7: inf is not finite",
    "large": "row 7: 1e+300 is too large for float32",
    "town": "is text with 200 values for 300 nodes, which no model learns from",
}
_EMPTY = "is empty or a word for a missing value, which missing=[WORD, ...] (dataset.missing) lists"
EDGE_REASONS = {
    "weight": f"row 3: {_EMPTY}",
    "comment": NODE_REASONS["name"],
    "price": "mixes units, such as '$3' and '€3': use one unit",
    "gap": f"row 5: {_EMPTY}",
}
PARQUET_REASONS = {
    "lists": "row 9: 3 numbers, expected 2 as in row 0",
    "blob": "holds binary, expected numbers, text or dates",
    "record": "holds struct<a: int64>, expected numbers, text or dates",
}


def load(folder: EdgeFolder) -> Graph:
    return folder.load()


def load_pieces(folder: EdgeFolder) -> Graph:
    return read_whole(in_pieces(folder))


def node_columns(form: str) -> dict[str, Any]:
    rows = range(N)
    columns = {
        "id": rows,
        "label": ["a", "b"] * (N // 2),
        "fit": np.arange(N) / N,
        "unused": [f"u{row}" for row in rows],
        "name": [f"user {row}" for row in rows],
        "mixed": ["red", *map(str, rows[1:])],
        "amount": ["1,5", "1.5"] * (N // 2),
        "when": ["2020-02-30" if row == 0 else f"2020-01-{1 + row % 28:02}" for row in rows],
        "infinite": np.where(np.arange(N) == 7, np.inf, 0.5),
        "large": np.where(np.arange(N) == 7, 1e300, 0.5),
        "town": [f"t{row % 200}" for row in rows],
    }
    extra = {"lists": [[1.0] * (2 + (row == 9)) for row in rows], "blob": [b"x"] * N, "record": [{"a": 1}] * N}
    return columns | (extra if form == "parquet" else {})


def ugly(folder: Path, form: str) -> Path:
    """Writes two tables with unfit columns."""
    rng = np.random.default_rng(0)
    edges = {
        "src": rng.integers(0, N, M),
        "dst": rng.integers(0, N, M),
        "weight": [None if row == 3 else 1.0 for row in range(M)],
        "length": rng.random(M),
        "comment": [f"c{row}" for row in range(M)],
        "price": ["$3", "€3"] * (M // 2),
        "gap": [None if row == 5 else 1.0 for row in range(M)],
    }
    folder.mkdir()
    for name, columns in (("nodes", node_columns(form)), ("edges", edges)):
        table = pa.table({key: pa.array(values) for key, values in columns.items()})
        write = pa.csv.write_csv if form == "csv" else pa.parquet.write_table
        write(table, folder / f"{name}.{form}")
    return folder


def reasons_of(form: str) -> list[str]:
    in_nodes = NODE_REASONS | (PARQUET_REASONS if form == "parquet" else {})
    places = [("nodes", pair) for pair in in_nodes.items()] + [("edges", pair) for pair in EDGE_REASONS.items()]
    return [
        f"{table}.{form}, column {name!r}{', ' if reason.startswith('row') else ' '}{reason}"
        for table, (name, reason) in places
    ]


def ignored_of(message: str) -> list[str]:
    """Returns the columns of the message's `dataset.ignore`."""
    (key,) = re.findall(r"dataset\.ignore=\[[^]]*\]", message)
    return list(OverridesParser.create().parse_overrides([key])[0].value())


@pytest.mark.parametrize("read", [load, load_pieces], ids=["load", "pieces"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_one_error_lists_the_unfit_columns_of_both_tables(
    tmp_path: Path, form: str, read: Callable[[EdgeFolder], Graph]
) -> None:
    data = str(ugly(tmp_path / "data", form))
    with pytest.raises(UserError) as raised:
        read(EdgeFolder(data, ignore=["unused"]))
    reasons, message = reasons_of(form), str(raised.value)
    start = f"dataset.root={data}: {len(reasons)} columns cannot be used: {'; '.join(reasons)}: dataset.ignore=["
    assert message.startswith(start)
    ignored_columns = ignored_of(message)
    assert ignored_columns[0] == "unused"
    assert len(ignored_columns) == len(reasons) + 1
    graph = read(EdgeFolder(data, ignore=ignored_columns))
    assert (graph.feature_names, graph.edge_feature_names) == (("fit",), ("length",))
    assert check_texts(graph, "one_hot") == []


@pytest.mark.parametrize("read", [load, load_pieces], ids=["load", "pieces"])
def test_rows_that_are_read_late_are_listed_with_columns_of_the_other_table(
    tmp_path: Path, read: Callable[[EdgeFolder], Graph]
) -> None:
    """Types decide how the columns are read, so only their rows show the flaws."""
    nodes = {"id": range(3), "x": pa.array([0.5, np.inf, 1.0], pa.float32())}
    edges = {"src": [0, 1], "dst": [1, 2], "w": pa.array([0.5, None], pa.float32())}
    for name, columns in (("nodes", nodes), ("edges", edges)):
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    match = r"2 columns .*: nodes.parquet, column 'x', row 1: inf .*; edges.parquet, column 'w', row 1: is .*=\[x,w\] leaves"
    with pytest.raises(UserError, match=match):
        read(EdgeFolder(str(tmp_path)))


@pytest.mark.parametrize("read", [load, load_pieces], ids=["load", "pieces"])
def test_lists_of_relations_have_one_length(tmp_path: Path, read: Callable[[EdgeFolder], Graph]) -> None:
    (tmp_path / "edges").mkdir()
    for name, length in (("knows", 2), ("likes", 3)):
        table = pa.table({"src": [0, 1], "dst": [1, 0], "x": [[1.0] * length] * 2})
        pa.parquet.write_table(table, tmp_path / f"edges/{name}.parquet")
    with pytest.raises(
        UserError, match=r"likes.parquet, column 'x' holds lists of 3 numbers, 2 elsewhere: .*=\[x\] leaves"
    ):
        read(EdgeFolder(str(tmp_path)))


TRAIN = [
    "strategy=vertex_centric",
    "comm=threads",
    "trainer.max_epochs=1",
    "dataset.split=[0.6,0.2,0.2]",
    "report=false",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [pytest.param(TRAIN, marks=pytest.mark.exhaustive), ["job=import", "partition=1d"], ["job=init", "init.minutes=0"]],
    ids=["train", "import", "init"],
)
def test_jobs_print_the_error_and_run_with_its_key(
    tmp_path: Path, job: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    data = ugly(tmp_path / "data", "csv")
    keys = [*job, "dataset=edges", f"dataset.root={data}", "dataset.symmetrize=true"]
    assert main([*keys, f"output={tmp_path / 'refused'}", "dataset.ignore=[unused]"]) == 2
    message = capfd.readouterr().err
    assert "; ".join(reasons_of("csv")) in message
    key = f"dataset.ignore=[{','.join(ignored_of(message))}]"
    assert main([*keys, f"output={tmp_path / 'run'}", key]) == 0, capfd.readouterr().err


@pytest.mark.slow
def test_init_leaves_unfit_columns_out_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{row},n{row},{'red' if row == 7 else row},{row % 5},{row % 2}" for row in range(40))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/nodes.csv").write_text(f"id,name,mixed,x,label\n{rows}\n")
    edges = "\n".join(f"{row},{(3 * row + 1) % 40},{'' if row == 3 else row}" for row in range(40))
    (tmp_path / "data/edges.csv").write_text(f"src,dst,gap\n{edges}\n")
    data = ["dataset=edges", "dataset.root=data", "dataset.symmetrize=true"]
    assert main(["job=init", "init.minutes=0", *data, "output=new"]) == 0
    out = capfd.readouterr().out
    assert "left out by dataset.ignore: 3 columns cannot be used: nodes.csv, column 'name' is text" in out
    assert "; edges.csv, column 'gap', row 3: is empty" in out
    assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=1", "report=false", "output=run"]) == 0
    config = read_yaml(tmp_path / "run/config.yaml")
    assert config["dataset"]["ignore"] == ["name", "mixed", "gap"]


def test_text_that_identifies_nodes_is_listed_with_each_column(tmp_path: Path) -> None:
    rows = "\n".join(f"{row},n{row},s{row},{row}" for row in range(20))
    (tmp_path / "nodes.csv").write_text(f"id,name,street,x\n{rows}\n")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,0\n")
    graph = EdgeFolder(str(tmp_path), ignore=["x"]).load()
    match = (
        r"dataset: 2 columns cannot be used: column 'name' is text with 20 values for 20 nodes, .* \(also 'street'\): "
        r"dataset.ignore=\[x,name,street\] leaves these columns out"
    )
    with pytest.raises(UserError, match=match):
        check_texts(graph, "one_hot", ["x"])
    with pytest.raises(
        UserError, match=r"features.text=refuse: .*: dataset.ignore=\[x,name,street\] leaves these columns out"
    ):
        check_texts(graph, "refuse", ["x"])
    with pytest.raises(UserError, match=r"also 'street'\): remove these columns from the data$"):
        check_texts(graph, "one_hot", None)


def test_frames_list_all_unfit_columns_of_a_table() -> None:
    nodes = pa.table({"id": [0, 1], "blob": [b"x"] * 2, "x": [0.5, 1.0], "record": [{"a": 1}] * 2})
    edges = pa.table({"src": [0], "dst": [1]})
    match = "2 columns .* 'blob' .* 'record' .*: features=.* names the columns to read, without blob, record"
    with pytest.raises(UserError, match=match):
        Graph.from_tables(edges, nodes)
    with pytest.raises(
        UserError, match=r"2 columns .* 'gap', row 0: is empty or a word .* 'wide', .*: edge_features=.* gap, wide"
    ):
        Graph.from_tables(pa.table({"src": [0], "dst": [1], "gap": [np.nan], "wide": [1e300]}), None)


@pytest.mark.exhaustive
def test_a_long_list_keeps_its_key(tmp_path: Path) -> None:
    names = [f"text{column}" for column in range(100)]
    nodes = {"id": range(300)} | {name: [f"{row}x" for row in range(300)] for name in names}
    pa.parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    pa.parquet.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "edges.parquet")
    with pytest.raises(UserError, match=r"100 columns cannot be used: .*; 68 more: dataset") as raised:
        EdgeFolder(str(tmp_path)).load()
    assert ignored_of(str(raised.value)) == names


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["a", "b_1", "a"], "dataset.ignore=[a,b_1]"),
        (["total price", "2020"], """'dataset.ignore=["total price","2020"]'"""),
        (["true", "a,b", "é", "x[0]", 'say "no"', "it's"], None),
    ],
    ids=["words", "quoted", "special"],
)
def test_the_key_survives_the_shell_and_the_configuration(names: list[str], key: str | None) -> None:
    text = ignore_key(names)
    (argument,) = shlex.split(text)
    assert list(OverridesParser.create().parse_overrides([argument])[0].value()) == list(dict.fromkeys(names))
    assert key in (None, text)
