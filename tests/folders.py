"""Small data sets in the forms of other projects, and a store."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from gnnkit_testing.graphs import check_graph

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.partition.store.manifest import digest_of
from gnnkit.prepare.stored import write

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
