"""Any file gives a graph, or an error of its reader.

To read more files, from another case on, or for some seconds:

    GNNKIT_FUZZ_EXAMPLES=100000 GNNKIT_FUZZ_FIRST=1000 pytest THIS_FILE
"""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.graphsaint import GraphSaint
from gnnkit_formats.npz import Npz
from gnnkit_formats.ogb import Ogb

from gnnkit.dataset.saved import Saved
from gnnkit.graph import Graph
from tests.hostile import ODD, check_cases, fuzz, odd_tensor

FEW = 80
NUM_NODES, NUM_EDGES = 6, 9
CELLS = ["", "nan", "-1", "1e999", "9223372036854775808", "99999999999", '"', "a,b", "\0", "é", "1.5", "2020-13-01"]


def odd_array(random: Random, array: np.ndarray[Any, Any]) -> Any:
    """Returns an array with something that nobody expects."""
    tensor = torch.from_numpy(np.array(array))
    odd = odd_tensor(random, tensor)
    try:
        return np.asarray(odd if not isinstance(odd, torch.Tensor) else odd.numpy())
    except (TypeError, RuntimeError):
        return random.choice([np.array(None), np.array("a"), np.zeros(3, np.float16), np.zeros((2, 0))])


def spoil_arrays(random: Random, arrays: dict[str, Any]) -> dict[str, Any]:
    name = random.choice(list(arrays))
    if random.random() < 0.1:
        return {key: value for key, value in arrays.items() if key != name}
    return arrays | {name: odd_array(random, arrays[name])}


def spoil_bytes(random: Random, path: Path) -> None:
    """Cuts a file, or changes some of its bytes."""
    content = bytearray(path.read_bytes())
    if random.random() < 0.4:
        content = content[: random.randrange(len(content) + 1)]
    for _ in range(random.randrange(4)):
        if content:
            content[random.randrange(len(content))] = random.randrange(256)
    path.write_bytes(content)


def arrays(random: Random) -> dict[str, Any]:
    ends = np.sort(np.array([random.randrange(NUM_EDGES) for _ in range(NUM_NODES - 1)] + [NUM_EDGES]))
    array = {
        "indptr": np.concatenate([[0], ends]),
        "indices": np.array([random.randrange(NUM_NODES) for _ in range(NUM_EDGES)]),
        "weight": np.ones(NUM_EDGES),
        "x": np.zeros((NUM_NODES, 2)),
        "y": np.arange(NUM_NODES) % 2,
        "train_mask": np.arange(NUM_NODES) < 3,
    }
    if random.random() < 0.3:
        del array["x"]
        array |= {"x_indptr": np.arange(NUM_NODES + 1), "x_indices": np.zeros(NUM_NODES, np.int64)}
        array |= {"x_shape": np.array([NUM_NODES, 2]), "x_data": np.ones(NUM_NODES)}
    return array


def npz(random: Random, folder: Path) -> None:
    np.savez(folder / "graph.npz", **spoil_arrays(random, arrays(random)))
    if random.random() < 0.2:
        spoil_bytes(random, folder / "graph.npz")
    Npz(str(folder / "graph.npz")).load()


def tables(random: Random, folder: Path) -> None:
    rows = [[str(random.randrange(NUM_NODES)) for _ in range(3)] for _ in range(NUM_EDGES)]
    nodes = [[str(node), str(node % 2), "train", "0.5"] for node in range(NUM_NODES)]
    for table in (rows, nodes):
        if random.random() < 0.6:
            row = random.choice(table)
            row[random.randrange(len(row))] = random.choice(CELLS)
        if random.random() < 0.1:
            random.choice(table).pop()
    header = random.choice(["src,dst,weight"] * 6 + ["src,src,dst", "a,b,c", "", "src,dst,type"])
    (folder / "edges.csv").write_text("\n".join([header, *map(",".join, rows)]))
    if random.random() < 0.7:
        (folder / "nodes.csv").write_text("\n".join(["id,label,split,f", *map(",".join, nodes)]))
    if random.random() < 0.3:
        np.save(folder / "features.npy", odd_array(random, np.zeros((NUM_NODES, 2))))
    if random.random() < 0.1:
        spoil_bytes(random, folder / "edges.csv")
    EdgeFolder(str(folder)).load()


def edge_arrays(random: Random, folder: Path) -> None:
    ends = np.array([[random.randrange(NUM_NODES) for _ in range(NUM_EDGES)] for _ in range(2)])
    np.save(folder / "edges.npy", odd_array(random, ends))
    EdgeFolder(str(folder), num_nodes=random.choice([None, None, NUM_NODES, *ODD])).load()


def ogb(random: Random, folder: Path) -> None:
    raw, split = folder / "ogbn_arxiv" / "raw", folder / "ogbn_arxiv" / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    texts = {
        "edge": [f"{random.randrange(NUM_NODES)},{random.randrange(NUM_NODES)}" for _ in range(NUM_EDGES)],
        "num-node-list": [str(NUM_NODES)],
        "num-edge-list": [str(NUM_EDGES)],
        "node-feat": ["0.5,1"] * NUM_NODES,
        "node-label": ["1"] * NUM_NODES,
    }
    parts = {"train": ["0", "1"], "valid": ["2"], "test": ["3"]}
    spoiled = random.choice(list(texts) + list(parts))
    for place, files in ((raw, texts), (split, parts)):
        for name, lines in files.items():
            if name == spoiled:
                lines[random.randrange(len(lines))] = random.choice([*CELLS, "1,2,3", "7"])
            (place / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    if random.random() < 0.2:
        spoil_bytes(random, random.choice(sorted(raw.iterdir())))
    Ogb(str(folder / "ogbn_arxiv")).load()


def graph_saint(random: Random, folder: Path) -> None:
    matrix = {name: value for name, value in arrays(random).items() if name in ("indptr", "indices")}
    matrix |= {"data": np.ones(NUM_EDGES), "shape": np.array([NUM_NODES, NUM_NODES]), "format": np.array(b"csr")}
    numbers: dict[str, Any] = {name: value for name, value in matrix.items() if name != "format"}
    numbers = spoil_arrays(random, numbers) if random.random() < 0.5 else numbers
    np.savez(folder / "adj_full.npz", **numbers, format=matrix["format"])
    features = np.zeros((NUM_NODES, 2))
    np.save(folder / "feats.npy", odd_array(random, features) if random.random() < 0.3 else features)
    classes: dict[str, Any] = {str(node): node % 2 for node in range(NUM_NODES)}
    role: dict[str, Any] = {"tr": [0, 1], "va": [2], "te": [3]}
    for document, name in ((classes, "class_map.json"), (role, "role.json")):
        if random.random() < 0.4:
            document[random.choice([*document, "x"])] = random.choice(
                [[-1], [99], -1, 1e300, None, "a", [[0]], {}, [0, 0]]
            )
        (folder / name).write_text(json.dumps(document))
    if random.random() < 0.1:
        spoil_bytes(random, random.choice(sorted(folder.iterdir())))
    GraphSaint(str(folder)).load()


@functools.cache
def saved_graph() -> Path:
    """Saves a graph that cases copy."""
    folder = Path(tempfile.mkdtemp())
    values = arrays(Random(1))
    csc = {"indptr": values["indptr"], "indices": values["indices"]}
    destination = np.repeat(np.arange(NUM_NODES), np.diff(csc["indptr"]))
    Graph.from_edges(
        csc["indices"], destination, NUM_NODES, features=np.zeros((NUM_NODES, 2)), labels=values["y"]
    ).save(folder / "graph")
    return folder / "graph"


def saved(random: Random, folder: Path) -> None:
    copy = folder / "graph"
    shutil.copytree(saved_graph(), copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = random.choice(files)
    if path.suffix == ".npy" and random.random() < 0.6:
        np.save(path, odd_array(random, np.load(path)))
    elif path.suffix == ".json" and random.random() < 0.6:
        document = json.loads(path.read_text())
        document[random.choice(list(document))] = random.choice([None, -1, 2**70, "a", [], {}, 1.5, [None]])
        path.write_text(json.dumps(document))
    else:
        spoil_bytes(random, path)
    Saved(str(copy)).load()


def from_edges(random: Random, folder: Path) -> None:
    values = arrays(random)
    columns = {
        "src": values["indices"],
        "dst": values["indices"][::-1].copy(),
        "features": np.zeros((NUM_NODES, 2)),
        "labels": values["y"],
        "split": np.zeros(NUM_NODES, np.int64),
        "weight": values["weight"],
        "edge_features": np.zeros((NUM_EDGES, 2)),
        "edge_types": np.zeros(NUM_EDGES, np.int64),
    }
    columns = spoil_arrays(random, columns)
    num_nodes = random.choice([NUM_NODES] * 8 + [None, *ODD])
    Graph.from_edges(columns.pop("src", None), columns.pop("dst", None), num_nodes, **columns)


READERS: list[Callable[[Random, Path], None]] = [npz, tables, edge_arrays, ogb, graph_saint, saved, from_edges]


def run(random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        random.choice(READERS)(random, Path(folder))


@pytest.mark.slow
def test_any_file_gives_a_graph_or_an_error_of_its_reader() -> None:
    check_cases("tests.graph.test_hostile_files", FEW)


if __name__ == "__main__":
    fuzz(run, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
