"""Runs that join outputs by columns write the values that other runs join by rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.cases import few
from tests.farm import EVERYTHING
from tests.graphs import random_graph
from tests.launch.outside import Outside, by_hand
from tests.runs import BARE

pytestmark = pytest.mark.slow
SLICED = {"grid": [1, 2, 3]}  # the slices are wider than the logits
LAYOUTS: dict[str, dict[str, Any]] = {
    "one worker": {"strategy": "vertex_centric", "workers": 1},
    "samples": {"strategy": {"name": "individual_sample", "batch_size": 8}, "workers": 3},
    "two": {"strategy": "vertex_centric", "partition": "2d", "workers": 2},
    "slices": {"strategy": "vertex_centric", "partition": SLICED, "workers": 6},
    "preset": {"strategy": "preset_workload", "workers": 4},
    "joint": {"strategy": "joint_sample", "workers": 5},
}


def train(folder: Path, graph: Graph | None = None, **keys: Any) -> gnnkit.Result:
    usual: dict[str, Any] = {
        "strategy": "vertex_centric",
        "comm": "threads",
        "workers": 2,
        "threads": 1,
        "cache": False,
    }
    usual |= {"write": EVERYTHING, "trainer": {"max_epochs": 1}, "model": {"name": "gcn", "hidden": 7}, **BARE}
    return gnnkit.train(graph or random_graph(), folder=folder, **(usual | keys))


def assert_joined_alike(rows: Path, columns: Path, names: list[str]) -> None:
    for name in names:
        expected, joined = (np.load(folder / f"{name}.npy") for folder in (rows, columns))
        assert (joined.dtype, joined.shape) == (expected.dtype, expected.shape)
        assert joined.tobytes("C") == expected.tobytes("C")
        assert joined.flags.f_contiguous


@few("layout", LAYOUTS, default=["samples"])
def test_a_run_and_a_prediction_write_by_columns_what_they_write_by_rows(layout: str, tmp_path: Path) -> None:
    for by in ("rows", "columns"):
        train(tmp_path / by, write_by=by, launcher="inline", **LAYOUTS[layout])
    assert_joined_alike(tmp_path / "rows", tmp_path / "columns", EVERYTHING)
    for by in ("rows", "columns"):
        keys = {"job": "test", "write": EVERYTHING, "write_by": by, "comm": "threads", **BARE}
        keys["workers"] = LAYOUTS[layout]["workers"]
        gnnkit.predict(tmp_path / "columns", random_graph(50, seed=1), folder=tmp_path / f"new {by}", **keys)
    assert_joined_alike(tmp_path / "new rows", tmp_path / "new columns", EVERYTHING)
    assert not list((tmp_path / "columns").glob(".*columns"))


@few("task", ["multilabel", "regression", "pagerank", "label_propagation"], default=["multilabel", "pagerank"])
def test_other_tasks_and_programs_write_by_columns_too(task: str, tmp_path: Path) -> None:
    graph, keys, names = random_graph(), {"task": task, "write": ["predictions"]}, ["predictions"]
    if task == "multilabel":
        graph = replace(graph, labels=np.eye(40, 3, dtype=bool))
    elif task == "regression":
        graph = replace(graph, labels=np.random.default_rng(0).random((40, 2)))
    else:
        keys, names = {"model": task, "write": ["predictions"]}, ["values"]
    for by in ("rows", "columns"):
        train(tmp_path / by, graph, write_by=by, workers=3, **keys)
    assert_joined_alike(tmp_path / "rows", tmp_path / "columns", names)


def test_learned_rows_are_written_by_columns_and_read_again(tmp_path: Path) -> None:
    graph = replace(random_graph(), features=np.empty((40, 0), np.float32))
    for by in ("rows", "columns"):
        train(tmp_path / by, graph, write_by=by, inputs="learned", embedding=5, write=["logits"])
        keys: dict[str, Any] = {"write": ["logits"], "comm": "threads", "workers": 3, **BARE}
        gnnkit.predict(tmp_path / by, graph, folder=tmp_path / f"again {by}", **keys)
    assert_joined_alike(tmp_path / "rows", tmp_path / "columns", ["logits", "embedding"])
    again = [np.load(tmp_path / f"again {by}/logits.npy") for by in ("rows", "columns")]
    np.testing.assert_array_equal(*again)


def test_pairs_of_link_prediction_stay_rows(tmp_path: Path) -> None:
    for by in ("rows", "columns"):
        train(tmp_path / by, write_by=by, task="link_prediction", write=["predictions", "logits", "vectors"])
    assert_joined_alike(tmp_path / "rows", tmp_path / "columns", ["logits"])
    for file in ("predictions.npy", "vectors/node.npy"):
        assert (tmp_path / "rows" / file).read_bytes() == (tmp_path / "columns" / file).read_bytes()


def test_tables_are_not_joined_by_columns(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match="write_by=columns is read by write_format=npy only: leave the key out, or use write_format=npy",
    ):
        train(tmp_path / "run", write_by="columns", write_format="parquet")
    run, keys = train(tmp_path / "run", write_by="columns").folder, {"comm": "threads", **BARE}
    again = gnnkit.predict(run, random_graph(), folder=tmp_path / "again", write_format="parquet", **keys)
    assert (again.folder / "predictions.parquet").is_file()


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    launcher = Outside()
    yield launcher
    launcher.close()


def read_without_gnnkit(file: Path) -> dict[str, Any]:
    """Reads a file as a program does that has NumPy alone."""
    program = """
import json, sys
import numpy as np
array = np.load(sys.argv[1], mmap_mode="r")
column = [float(number) for number in array[:, 1]]
print(json.dumps({"shape": array.shape, "column": column, "gnnkit": "gnnkit" in sys.modules}))
"""
    command = [sys.executable, "-c", program, str(file)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


@few("launcher", ["outside", "processes", "threads"], default=["outside"])
def test_processes_write_one_file_together_that_numpy_reads(launcher: str, outside: Outside, tmp_path: Path) -> None:
    data = ["dataset=synthetic", "dataset.num_nodes=90", "dataset.num_edges=400", "threads=1", "cache=false"]
    command = ["strategy=vertex_centric", *data, "trainer.max_epochs=1", "report=false", "logger=none"]
    command += ["write=[logits,predictions]"]
    rows, columns = (
        [*command, f"write_by={by}", f"output={tmp_path / by}", "partition.grid=[1,1,2]"] for by in ("rows", "columns")
    )
    assert main([*rows, "comm=threads", "workers=2"]) == 0
    if launcher == "outside":
        ended = outside.run(tmp_path, [columns] * 2, by_hand(2))
        assert [rank.code for rank in ended] == [0, 0], [rank.output for rank in ended]
    else:
        comm = "threads" if launcher == "threads" else "gloo"
        assert main([*columns, f"launcher={launcher}", f"comm={comm}", "workers=2"]) == 0
    assert_joined_alike(tmp_path / "rows", tmp_path / "columns", ["logits", "predictions"])
    expected = np.load(tmp_path / "rows/logits.npy")
    found = read_without_gnnkit(tmp_path / "columns/logits.npy")
    assert found == {"shape": [*expected.shape], "column": [*map(float, expected[:, 1])], "gnnkit": False}
