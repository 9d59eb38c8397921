"""Small data sets in the forms of other projects, and a store."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import scipy.sparse as sp
import yaml
from gnnkit_testing.graphs import check_graph

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.partition.store.manifest import digest_of
from gnnkit.prepare.storing import write

EDGES = np.array([[0, 1, 2, 2], [1, 2, 0, 2]])
FEATURES = np.arange(6, dtype=np.float32).reshape(3, 2) / 2


def digests_of(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of a folder, by the path in the folder."""
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in folder.rglob("*") if path.is_file()}


def table(path: Path, rows: Any, header: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, np.atleast_1d(row))) for row in rows]
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *lines] if header else lines) + "\n")


def ogb(folder: Path, **tables: Any) -> Path:
    """Writes a data set of three nodes. `name=rows` replaces a table of `raw`."""
    raw = {"edge": EDGES.T, "node-feat": FEATURES, "node-label": [[4], [0], [1]]}
    raw |= {"num-node-list": [[3]], "num-edge-list": [[4]]}
    for name, rows in (raw | {name.replace("_", "-"): rows for name, rows in tables.items()}).items():
        if rows is not None:
            table(folder / f"raw/{name}.csv.gz", rows)
    for part, node in (("train", 2), ("valid", 0), ("test", 1)):
        table(folder / f"split/time/{part}.csv.gz", [[node]])
    return folder


MATRIX = sp.csr_matrix((np.ones(3, np.float32), ([0, 1, 2], [1, 2, 1])), (4, 4))
CLASSES = {"0": 2, "1": 0, "2": 1, "3": 1}
ROLES = {"tr": [0, 2], "va": [1], "te": [3]}


def saint(folder: Path, classes: Any = CLASSES, roles: Any = ROLES, matrix: Any = MATRIX) -> Path:
    folder.mkdir(exist_ok=True)
    sp.save_npz(folder / "adj_full.npz", matrix)
    np.save(folder / "feats.npy", np.eye(4))
    (folder / "class_map.json").write_text(classes if isinstance(classes, str) else json.dumps(classes))
    (folder / "role.json").write_text(json.dumps(roles))
    return folder


def store(folder: Path) -> Path:
    """Writes the store of a small graph, as job=partition does."""
    folder.mkdir()
    keys = ["strategy=auto", "job=partition", "workers=4", "partition=3d", "cache=false"]
    write(settle(compose(keys)), folder, check_graph(), "")
    return folder


def graphbolt_folder(folder: Path, rng: np.random.Generator, form: str = "numpy") -> dict[str, Any]:
    """Writes a folder of GraphBolt. Returns its arrays."""
    n, m = 40, 200
    results: dict[str, Any] = {"edges": rng.integers(0, n, (2, m)), "feat": rng.random((n, 3)).astype(np.float32)}
    results |= {"age": rng.integers(0, 9, n), "length": rng.random((m, 2)), "labels": rng.integers(0, 4, n)}
    folder.mkdir()
    for name, rows in results.items():
        np.save(folder / f"{name}.npy", rows)
    if form == "csv":
        np.savetxt(folder / "edges.csv", results["edges"].T, "%d", ",")

    def entry(name: str, path: str = "", **more: Any) -> dict[str, Any]:
        return {**more, "name": name, "format": "numpy", "in_memory": False, "path": f"{path or name}.npy"}

    task: dict[str, Any] = {"name": "node_classification", "num_classes": 4}
    for number, name in enumerate(("train_set", "validation_set", "test_set")):
        seeds = np.arange(number, n - 4, 3)
        np.save(folder / f"{name}.npy", seeds)
        np.save(folder / f"{name}_labels.npy", results["labels"][seeds])
        task[name] = [{"data": [entry("seeds", name), entry("labels", f"{name}_labels")]}]
    rows = [entry("feat", domain="node", type=None), entry("age", domain="node"), entry("length", domain="edge")]
    graph = {"nodes": [{"num": n}], "edges": [{"format": form, "path": f"edges.{'csv' if form == 'csv' else 'npy'}"}]}
    text = {"dataset_name": "made", "graph": graph, "feature_data": rows, "tasks": [task]}
    (folder / "metadata.yaml").write_text(json.dumps(text))  # JSON is YAML
    return results


def _write_orc(table: pa.Table, path: Path) -> None:
    pa.orc.write_table(table, path, compression="zlib")


CHUNKS = {"parquet": pa.parquet.write_table, "orc": _write_orc, "csv": pa.csv.write_csv}  # writers, by file_type
DATA_TYPES = {
    pa.string(): "string",
    pa.float64(): "double",
    pa.int64(): "int64",
    pa.list_(pa.float64()): "list<double>",
}


def graphar_folder(
    folder: Path, rng: np.random.Generator, *, form: str = "parquet", lists: str = "parquet", **changes: Any
) -> dict[str, pa.Table]:
    """Writes people who know each other and have seen films, as GraphAr 0.13 does.

    Chunks hold 7 nodes and 16 edges. Returns the tables.

    Args:
        folder: The folder.
        rng: Draws.
        form: file_type of the chunks.
        lists: file_type of the chunks with lists, which CSV has none of.
        changes: Other columns of tables, by name of the table.
    """
    people, films, count = 25, 12, 90
    tables = {
        "person": {
            "name": [f"p{i}" for i in range(people)],
            "age": rng.normal(size=people),
            "place": [[float(i), 1.0] for i in range(people)],
            "label": rng.choice(["cat", "dog"], people),
            "split": np.where(np.arange(people) % 3, "train", "test"),
        },
        "film": {"title": 7 * np.arange(films), "year": rng.integers(1900, 2000, films)},
        "saw": {"_graphArSrcIndex": rng.integers(0, people, count), "_graphArDstIndex": rng.integers(0, films, count)},
        "knows": {"_graphArSrcIndex": rng.integers(0, people, 40), "_graphArDstIndex": rng.integers(0, people, 40)},
    }
    for name in ("saw", "knows"):
        tables[name] |= {"weight": rng.random(len(tables[name]["_graphArSrcIndex"])), "stars": 1.5}
        tables[name]["stars"] = rng.integers(0, 5, len(tables[name]["weight"]))
    graphs_by_name = {name: pa.table({**columns, **changes.get(name, {})}) for name, columns in tables.items()}
    folder.mkdir()

    def form_of(names: list[str]) -> str:
        return lists if "place" in names else form

    def write(place: Path, table: pa.Table, size: int) -> None:
        for number, first in enumerate(range(0, table.num_rows, size)):
            place.mkdir(parents=True, exist_ok=True)
            CHUNKS[form_of(table.column_names)](table.slice(first, size), place / f"chunk{number}")

    def count_file(path: Path, number: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "little"))

    def group(table: str, names: list[str], key: str = "") -> dict[str, Any]:
        types = {column: DATA_TYPES.get(graphs_by_name[table][column].type, "date") for column in names}
        properties = [{"name": column, "is_primary": column == key, "data_type": types[column]} for column in names]
        return {"file_type": form_of(names), "prefix": "_".join(names) + "/", "properties": properties}

    for kind, groups in {"person": [["name", "age"], ["place", "label", "split"]], "film": [["title", "year"]]}.items():
        place = folder / f"vertex/{kind}"
        count_file(place / "vertex_count", graphs_by_name[kind].num_rows)
        for names in groups:
            write(place / "_".join(names), graphs_by_name[kind].select(names), 7)
        facts = {"type": kind, "prefix": f"vertex/{kind}/", "chunk_size": 7, "version": "gar/v1"}
        facts["property_groups"] = [group(kind, names, groups[0][0]) for names in groups]
        (folder / f"{kind}.vertex.yml").write_text(yaml.safe_dump(facts))
    for name, end, adjacency in (("saw", "film", "ordered_by_source"), ("knows", "person", "unordered_by_dest")):
        order = adjacency.startswith("ordered")
        index_column = "_graphArSrcIndex" if adjacency.endswith("source") else "_graphArDstIndex"
        rows = graphs_by_name[name].sort_by(index_column) if order else graphs_by_name[name]
        place = folder / f"edge/person_{name}_{end}" / adjacency
        vertices = graphs_by_name["person" if index_column == "_graphArSrcIndex" else end].num_rows
        for part in range(-(-vertices // 7)):
            chunk = rows.filter(pc.equal(pc.divide(rows[index_column], 7), part))
            count_file(place / f"edge_count{part}", chunk.num_rows)
            write(place / f"adj_list/part{part}", chunk.select(["_graphArSrcIndex", "_graphArDstIndex"]), 16)
            for names in (["weight"], ["stars"]):
                write(place / f"{names[0]}/part{part}", chunk.select(names), 16)
        listed = {
            "ordered": order,
            "aligned_by": "src" if index_column == "_graphArSrcIndex" else "dst",
            "file_type": form,
        }
        facts = {"src_type": "person", "edge_type": name, "dst_type": end, "prefix": f"edge/person_{name}_{end}/"}
        facts |= {"chunk_size": 16, "src_chunk_size": 7, "dst_chunk_size": 7, "directed": True, "adj_lists": [listed]}
        facts |= {"property_groups": [group(name, ["weight"]), group(name, ["stars"])], "version": "gar/v1"}
        (folder / f"person_{name}_{end}.edge.yml").write_text(yaml.safe_dump(facts))
    names = {"vertices": ["person.vertex.yml", "film.vertex.yml"]}
    names["edges"] = ["person_saw_film.edge.yml", "person_knows_person.edge.yml"]
    (folder / "films.graph.yml").write_text(
        yaml.safe_dump({"name": "films", "prefix": "./", "version": "gar/v1", **names})
    )
    return graphs_by_name
