"""A CSV of another encoding is refused with its name and a way to convert it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph

Reader = Callable[[EdgeFolder, Path], Graph]
EDGES = "src,dst\nä,ö\n"
NODES = "id,label,wort\nä,x,klug\nö,y,schön\n"


def imported(folder: EdgeFolder, work: Path) -> Graph:
    pieces = in_pieces(folder)
    work.mkdir()
    return Graph.load(
        import_graph(pieces, work, Room(1 << 26, 1), Journal(work, "asked"), ProgressReporter(quiet=True))
    )


READERS: dict[str, Reader] = {"load": lambda folder, _: folder.load(), "import": imported}


def written(folder: Path, nodes: str, edges: str, ending: str = "csv") -> EdgeFolder:
    for name, text, encoding in (("nodes", NODES, nodes), ("edges", EDGES, edges)):
        data = text.encode(encoding)
        (folder / f"{name}.{ending}").write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    return EdgeFolder(str(folder), symmetrize=False)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize(("nodes", "edges"), [("utf-8", "utf-8"), ("utf-8-sig", "utf-8-sig")])
def test_utf_8_is_read_with_and_without_a_mark(
    reader: str, ending: str, nodes: str, edges: str, tmp_path: Path
) -> None:
    graph = READERS[reader](written(tmp_path, nodes, edges, ending), tmp_path / "work")
    assert graph.node_ids.tolist() == ["ä", "ö"]
    assert graph.feature_names == ("wort=klug", "wort=schön")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ("latin-1", "utf-8", r"nodes.csv(.gz)? is not UTF-8 text \(byte 0xe4 in line 2\), expected UTF-8; convert"),
        ("utf-8", "cp1252", r"edges.csv(.gz)? is not UTF-8 text \(byte 0xe4 in line 2\), expected UTF-8; convert"),
        (
            "utf-16",
            "utf-8",
            r"nodes.csv(.gz)? is UTF-16, or not text, expected UTF-8; .* iconv -f UTF-16 -t UTF-8 nodes",
        ),
        ("utf-16-le", "utf-8", r"nodes.csv(.gz)? is UTF-16, or not text, expected UTF-8"),
        ("utf-8", "utf-16-be", r"edges.csv(.gz)? is UTF-16, or not text, expected UTF-8"),
        ("utf-8", "utf-32", r"edges.csv(.gz)? is UTF-16, or not text, expected UTF-8"),
    ],
)
def test_other_encodings_are_named(
    reader: str, ending: str, nodes: str, edges: str, message: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, nodes, edges, ending)
    with pytest.raises(UserError, match=message):
        READERS[reader](folder, tmp_path / "work")


@pytest.mark.parametrize("reader", READERS)
def test_a_line_of_names_or_a_label_of_another_encoding_is_named(reader: str, tmp_path: Path) -> None:
    for number, table in enumerate(("id,größe\nä,1\nö,2\n", "id,label\nä,klug\nö,schön\n", "id,x\nä,1\nö,schön\n")):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "edges.csv").write_text(EDGES)
        (folder / "nodes.csv").write_bytes(table.replace("ä", "a").replace("ö,", "o,").encode("latin-1"))
        with pytest.raises(UserError, match=r"nodes.csv is not UTF-8 text \(byte 0xf6 in line [13]\)"):
            READERS[reader](EdgeFolder(str(folder), symmetrize=False), folder / "work")


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_compressed_file_is_named(reader: str, tmp_path: Path) -> None:
    for number, data in enumerate((b"src,dst\n0,1\n", gzip.compress(b"src,dst\n" + b"0,1\n1,0\n" * 9999)[:60], b"")):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "edges.csv.gz").write_bytes(data)
        with pytest.raises(UserError, match=r"edges\.csv\.gz: "):
            READERS[reader](EdgeFolder(str(folder)), folder / "work")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nodes.csv.bz2", "holds nodes.csv.bz2, whose format is unsupported; use nodes.csv, nodes.csv.gz"),
        ("nodes.tsv.bz2", "holds nodes.tsv.bz2, whose format is unsupported"),
        ("nodes.npy", "holds nodes.npy, whose format is unsupported"),
        ("nodes/people.csv", "holds nodes, whose format is unsupported"),
        ("edges.feather", "holds edges.feather, whose format is unsupported; use edges.csv, .*edges.npy"),
        (
            "edges/knows.csv.bz2",
            "holds edges/knows.csv.bz2, whose format is unsupported; use .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .npy",
        ),
    ],
)
def test_tables_in_other_forms_are_not_passed_over(reader: str, name: str, message: str, tmp_path: Path) -> None:
    if name.startswith("nodes"):
        (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    if name.startswith("edges/"):
        (tmp_path / "edges/likes.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(UserError, match=message):
        READERS[reader](EdgeFolder(str(tmp_path)), tmp_path / "work")


def test_compressed_tables_of_relations_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    for name in ("knows", "pays"):
        (tmp_path / f"edges/{name}.csv.gz").write_bytes(gzip.compress(b"src,dst\n0,1\n"))
    for reader in READERS.values():
        graph = reader(EdgeFolder(str(tmp_path), symmetrize=False), tmp_path / "work")
        assert list(graph.edge_type_names or ()) == ["knows", "pays"]
