"""Small files in the forms of public data sets, read by three doors.

    python -m tests.public_files

Prints what `dataset=edges`, `Graph.from_tables(pandas.read_csv(...))` and `job=import`
make of each, which must be the same graph, or refusals.
"""

from __future__ import annotations

import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import read_whole
from gnnkit_import.datasets import in_pieces

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.table_oracle import differs, plain


@dataclass(frozen=True)
class PublicFile:
    """Text of a table of edges and perhaps of nodes, with the keys that read it."""

    edges: str
    nodes: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""  # a part of the refusal, which says what to do
    form: str = "csv"
    differ: str = ""  # why the doors may differ


RING = "0,1\n1,2\n2,0\n"
EDGES = f"src,dst\n{RING}"


def _rows(head: str, *rows: str) -> str:
    return "\n".join((head, *rows, ""))


FILES: dict[str, PublicFile] = {
    "karate: two columns": PublicFile(EDGES),
    "email: no header": PublicFile(RING, refused="add a first line"),
    "u.data: tabs, no header": PublicFile("196\t242\t3\n186\t302\t3\n", refused="add a first line", form="tsv"),
    "semicolons": PublicFile(EDGES.replace(",", ";")),
    "tabs": PublicFile(EDGES.replace(",", "\t"), form="tsv"),
    "SNAP: comments": PublicFile("# Directed graph\n# Nodes: 3\n" + RING, refused="remove comments"),
    "MovieLens: users and films": PublicFile(
        _rows("userId,movieId,rating,timestamp", "1,1,4.0,964982703", "1,3,4.0,964981247", "2,1,5.0,1445714835"),
        keys={"src": "userId", "dst": "movieId"},
        refused="bipartite=true",
    ),
    "Bitcoin: trust at times": PublicFile(
        _rows("SOURCE,TARGET,RATING,TIME", "6,2,4,1289241911.72836", "6,5,2,1289241941.53378"),
        keys={"src": "SOURCE", "dst": "TARGET"},
    ),
    "flights: empty tail numbers": PublicFile(
        _rows("origin,dest,tailnum", "JFK,LAX,N1", "LAX,,N2"), keys={"src": "origin", "dst": "dest"}, refused="is empty"
    ),
    "airports: text ids": PublicFile(
        _rows("origin,dest,miles", "JFK,LAX,2475", "LAX,SFO,337"),
        _rows("faa,name,lat", "JFK,Kennedy,40.6", "LAX,Angeles,33.9", "SFO,Francisco,37.6"),
        {"src": "origin", "dst": "dest", "id": "faa", "ignore": ["name"]},
    ),
    "airports: unknown end": PublicFile(
        _rows("src,dst", "JFK,LAX", "LAX,BQN"), _rows("id,lat", "JFK,40.6", "LAX,33.9"), refused="'BQN' is no id of a node"
    ),
    "airports: a code NA": PublicFile(
        _rows("src,dst", "NA,LAX", "LAX,NA"), _rows("id,lat", "NA,40.6", "LAX,33.9"), refused="stands for a missing value",
        differ="pandas reads NA as an empty cell",
    ),
    "tennis: dates as numbers": PublicFile(
        _rows("winner_id,loser_id,tourney_date", "104925,105223,20190101", "105223,104925,20191231"),
        keys={"src": "winner_id", "dst": "loser_id", "bipartite": False},
    ),
    "Formula 1: laps and clocks": PublicFile(
        EDGES, _rows("id,time_of_lap,start", "0,1:27.452,17:35", "1,1:28.090,7:05", "2,1:26.000,13:00")
    ),
    "UFO: dates of Americans": PublicFile(
        EDGES, _rows("id,seen", "0,4/15/2004 2:56 PM", "1,4/16/2004 12:00 AM", "2,12/31/2005 1:00 PM")
    ),
    "UFO: two digits of the year": PublicFile(
        EDGES, _rows("id,seen", "0,4/15/04 2:56 PM", "1,4/16/04 12:00 AM", "2,12/31/05 1:00 PM")
    ),
    "days that may be months": PublicFile(
        EDGES, _rows("id,seen", "0,01/02/2004", "1,03/04/2004", "2,05/06/2004"), refused="may be 2004-01-02 or 2004-02-01"
    ),
    "movies: 01-Jan-1995": PublicFile(EDGES, _rows("id,release", "0,01-Jan-1995", "1,22-Feb-1996", "2,")),
    "GitHub: zones": PublicFile(
        _rows("src,dst,created_at,stars", "0,1,2020-01-01T00:00:00Z,3", "1,0,2020-01-02T10:00:00Z,4"),
        keys={"time": "created_at"},
    ),
    "zones in some cells": PublicFile(
        _rows("src,dst,time", "0,1,2020-01-01T00:00:00Z", "1,0,2020-01-02T10:00:00"), refused="all with a time zone or all without"
    ),
    "wiki: seconds beside dates": PublicFile(
        _rows("src,dst,time", "0,1,1577836800", "1,0,1577923200"),
        _rows("id,time", "0,2019-01-01", "1,2019-01-02"),
        refused="expected the same unit in both",
    ),
    "prices with units": PublicFile(EDGES, _rows("id,price", '0,"$1,200.50"', "1,$3.25", '2,"$10,000.00"')),
    "decimal commas": PublicFile(EDGES.replace(",", ";"), _rows("id;share", "0;1,5", "1;2,75", "2;0,25")),
    "percent": PublicFile(EDGES, _rows("id,rate", "0,10%", "1,2.5%", "2,100%")),
    "yes and no": PublicFile(EDGES, _rows("id,ill", "0,yes", "1,no", "2,yes")),
    "True and False": PublicFile(EDGES, _rows("id,label,mod", "0,True,False", "1,False,True", "2,True,True")),
    "classes with names": PublicFile(EDGES, _rows("id,label", "0,cs.AI", "1,cs.LG", "2,cs.AI")),
    "classes with zeros": PublicFile(
        EDGES, _rows("id,label", "0,01", "1,02", "2,10"), differ="pandas reads 01 as 1"
    ),
    "prices as targets": PublicFile(EDGES, _rows("id,label", "0,129.5", "1,90.0", "2,")),
    "split beside labels": PublicFile(EDGES, _rows("id,label,split", "0,1,train", "1,0,val", "2,1,test")),
    "split without labels": PublicFile(EDGES, _rows("id,split", "0,train", "1,val", "2,test"), refused="'label' is missing"),
    "leagues: NA is a league": PublicFile(
        EDGES, _rows("id,league", "0,NA", "1,AL", "2,NL"), differ="pandas reads NA as an empty cell, with no word to warn of"
    ),
    "missing words": PublicFile(EDGES, _rows("id,age", "0,31", "1,unknown", "2,?")),
    "an index by pandas": PublicFile("Unnamed: 0," + EDGES.replace("\n", "\n0,", 3).replace("\n0,", "\n0,")),
    "composite keys": PublicFile(
        EDGES, _rows("id,year,x", "0,1,5", "0,2,6", "1,1,7", "1,2,8", "2,1,9", "2,2,9"), refused="together identify rows"
    ),
    "repeated ids": PublicFile(EDGES, _rows("id,x", "0,5", "1,6", "2,7", "2,7"), refused="occurs a second time"),
    "text that is free": PublicFile(
        EDGES, _rows("id,title", *(f"{row},title {row}" for row in range(300))), refused="more than 256 different values"
    ),
    "ids of Facebook": PublicFile(
        _rows("id_1,id_2", "0,1", "1,0"), _rows("id,facebook_id,page_type", "0,145647315578475,tv", "1,191483281412,gov"),
        {"src": "id_1", "dst": "id_2", "label": "page_type", "ignore": ["facebook_id"]},
    ),
    "relations": PublicFile(_rows("src,dst,type", "0,1,cites", "1,2,by", "2,0,cites")),
    "weights as text": PublicFile(_rows("src,dst,weight", "0,1,1", "1,2,2.5", "2,0,heavy"), refused="'heavy'"),
    "repeated edges": PublicFile(_rows("src,dst,weight", "0,1,1", "0,1,2", "1,0,3"), keys={"duplicates": "sum"}),
    "ids with fractions": PublicFile(_rows("src,dst", "0.0,1.0", "1.0,0.0"), _rows("id,x", "0,1", "1,2")),
    "ids beyond 2^53": PublicFile(_rows("src,dst", "9007199254740993,1", "1,9007199254740993"), _rows("id", "9007199254740993", "1")),
    "quoted names with commas": PublicFile(
        _rows("src,dst", '"Doe, J.","Roe, R."', '"Roe, R.","Doe, J."'), _rows("id,x", '"Doe, J.",1', '"Roe, R.",2')
    ),
}  # fmt: skip


def _folder(one: PublicFile, folder: Path) -> EdgeFolder:
    (folder / f"edges.{one.form}").write_text(one.edges, encoding="utf-8")
    if one.nodes is not None:
        (folder / "nodes.csv").write_text(one.nodes, encoding="utf-8")
    return EdgeFolder(str(folder), symmetrize=False, **one.keys)


def _imported(one: PublicFile, folder: Path) -> Graph:
    pieces = in_pieces(_folder(one, folder))
    assert pieces is not None
    return read_whole(pieces)


def _from_tables(one: PublicFile, _: Path) -> Graph:
    mark = next(mark for mark in (",", "\t", ";") if mark in one.edges.partition("\n")[0] or mark == ";")
    keys = dict(one.keys)
    ignored = keys.pop("ignore", [])
    tables = [
        None
        if text is None
        else pd.read_csv(io.StringIO(text), sep=mark, comment=None).drop(columns=ignored, errors="ignore")
        for text in (one.edges, one.nodes)
    ]
    return Graph.from_tables(*tables, **keys)


DOORS: dict[str, Callable[[PublicFile, Path], Graph]] = {
    "dataset=edges": lambda one, folder: _folder(one, folder).load(),
    "Graph.from_tables": _from_tables,
    "job=import": _imported,
}


def outcomes(one: PublicFile) -> dict[str, Graph | str]:
    """Returns each door's graph or refusal."""
    results: dict[str, Graph | str] = {}
    for name, read in DOORS.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                results[name] = read(one, Path(folder))
            except UserError as error:
                results[name] = str(error).removeprefix(f"dataset.root={folder}: ")
    return results


def are_equal(found: Mapping[str, Graph | str]) -> bool:
    """Returns whether all doors gave one graph, or all refused."""
    graphs = [plain(graph) for graph in found.values() if isinstance(graph, Graph)]
    if len(graphs) not in (0, len(found)):
        return False
    return not any(differs(list(graph.values()), list(graphs[0].values())) for graph in graphs[1:])


def main() -> int:
    """Prints all outcomes. Returns how many files the doors read differently."""
    num_different = 0
    for name, public_file in FILES.items():
        actual = outcomes(public_file)
        is_equal = are_equal(actual)
        num_different += not is_equal
        print(
            f"{name}: {'the same' if is_equal else 'DIFFERENT'}{f' ({public_file.differ})' if public_file.differ else ''}"
        )
        for text, doors in {
            str(value): [d for d in actual if str(actual[d]) == str(value)] for value in actual.values()
        }.items():
            print(f"    {', '.join(doors)}: {text}")
    print(f"{len(FILES)} files, {num_different} of them different")
    return num_different


if __name__ == "__main__":
    sys.exit(main())
