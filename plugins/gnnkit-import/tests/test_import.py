"""job=import writes the store of job=partition, and goes on when it was ended."""

from __future__ import annotations

import functools
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import import cut as import_store
from gnnkit_import import job as job_module
from gnnkit_import import run as entry

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import Order, check
from gnnkit.launch.processes import RankError
from gnnkit.partition import Grid
from tests.cases import exhaustive, few, pairwise
from tests.folders import digests_of, graphbolt_folder, ogb
from tests.forked import forked
from tests.runs import BARE
from tests.waiting import NEVER

N, M = 60, 500
MADE = ("parts/", "partition/", "node_ids.npy", "inputs.json")  # of a store
SEVERAL = "1GB"  # memory of several importers


def tables(folder: Path, *, ids: bool = True, wide: float = 1.0, relations: bool = False, flaws: bool = False) -> Path:
    """Writes edges with weights, doubles and loops, and nodes with features."""
    rng = np.random.default_rng(3)
    names = np.array([f"n{v}" for v in range(N)]) if ids else np.arange(N)
    ends = names[rng.integers(0, N - 5, (2, M))]
    folder.mkdir()
    columns = {"src": ends[0], "dst": ends[1], "weight": rng.random(M), "kind": rng.integers(0, 4, M)}
    columns |= {"type": np.array(["likes", "knows", "is"])[np.arange(M) % 7 % 3]} if relations else {}
    pa.parquet.write_table(
        pa.table(columns),
        folder / "edges.parquet",
        row_group_size=100,
    )
    split, label = rng.choice(["train", "val", "test"], N), rng.choice(["cat", "dog"], N)
    features: dict[str, Any] = {"f0": rng.normal(size=N), "f1": wide * rng.normal(size=N)}
    if flaws:  # empty cells, and text with one
        features["f0"] = [None if v % 7 == 3 else float(number) for v, number in enumerate(features["f0"])]
        features["hue"] = [["red", "blue", None][v % 3 if v < 20 else 0] for v in range(N)]
    pa.parquet.write_table(
        pa.table({"id": names, "label": label, "split": split, **features}), folder / "nodes.parquet"
    )
    return folder


def run(job: str, data: Path, folder: Path, **keys: Any) -> Any:
    """Runs a job on tables. An import is of one process, unless `memory` is given."""
    dataset = {"name": "edges", "root": str(data), "symmetrize": True}
    memory = {"memory": "64MiB"} if job == "import" else {}
    given = {"dataset": dataset, "strategy": "individual_sample", "cache": False, **memory, **keys}
    return gnnkit.train(job=job, folder=folder, **given)


def made(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in digests_of(folder).items() if name.startswith(MADE)}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of the store of the tables, by name of the file."""
    folder = tmp_path_factory.mktemp("usual")
    run("import", tables(folder / "data"), folder / "store")
    return made(folder / "store")


@pytest.fixture(scope="module")
def cut_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], dict[str, str]]:
    """Returns digests of the store that job=partition writes, with ids or without."""

    @functools.cache
    def digests(ids: bool) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("whole")
        run("partition", tables(folder / "data", ids=ids), folder / "store")
        return made(folder / "store")

    return digests


ROWS: dict[str, Any] = {"features": {"scale": "row"}}
ZEROS: dict[str, Any] = {"features": {"fill": "zero"}, "strategy": "vertex_centric"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"partition": "hash", "workers": 4, "wide": 100.0},
        exhaustive({"partition": "random", "workers": 2, "inputs": "degree"}),
        {"partition": "ldg", "workers": 3, "relations": True},
        exhaustive({"partition": "hash", "workers": 3, "relations": True, "strategy": "vertex_centric"}),
        exhaustive({"workers": 1, "inputs": "learned", "strategy": "vertex_centric"}),
        {"partition": {"name": "buffered", "options": {"buffer": 16}}, "workers": 3, **ROWS, "ids": False},
        exhaustive({"partition": {"name": "fennel", "options": {"passes": 2}}, "workers": 2, "flaws": True, **ZEROS}),
        {"workers": 2, "flaws": True, "wide": 100.0, "features": {"fill": "mean", "text": "known"}},
        exhaustive({"workers": 2, "flaws": True, "features": {"fill": "drop"}, "partition": "hash"}),
        exhaustive({"workers": 2, "flaws": True, "inputs": "learned"}),
    ],
    ids=[
        "hash, scaled",
        "random, degrees",
        "ldg, relations",
        "relations, parts alone",
        "one worker",
        "buffered, rows that add up to 1",
        "fennel, zeros in empty cells",
        "ranges, means in empty cells",
        "columns with empty cells left out",
        "empty cells that nobody reads",
    ],
)
def test_an_imported_store_is_that_of_the_graph_in_memory(keys: dict[str, Any], tmp_path: Path) -> None:
    shape = {name: keys.pop(name) for name in ("ids", "wide", "relations", "flaws") if name in keys}
    data = tables(tmp_path / "data", **shape)
    run("import", data, tmp_path / "imported", **keys)
    run("partition", data, tmp_path / "cut", **keys)
    assert made(tmp_path / "imported") == made(tmp_path / "cut")
    stores = [json.loads((tmp_path / name / "store.json").read_bytes()) for name in ("imported", "cut")]
    assert {key for key in stores[0] if stores[0][key] != stores[1][key]} == {"sha256", "asked"}
    assert not (tmp_path / "imported/import").exists()


@pytest.mark.slow
def test_degrees_of_an_import_are_those_before_the_first_held_out_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    edges = {"src": rng.integers(0, N, M), "dst": rng.integers(0, N, M), "time": rng.integers(0, 100, M)}
    nodes = {"id": np.arange(N), "label": rng.integers(0, 2, N), "time": rng.integers(0, 100, N)}
    for name, columns in {"edges": edges, "nodes": nodes}.items():
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    dataset = {"name": "edges", "root": str(tmp_path), "symmetrize": False}
    dataset["split"] = {"by": "time", "borders": [50, 70]}
    for job in ("import", "partition"):
        run(job, tmp_path, tmp_path / job, dataset=dataset, inputs="degree", workers=1, strategy="vertex_centric")
    assert made(tmp_path / "import") == made(tmp_path / "partition")
    degrees = np.bincount(edges["dst"][edges["time"] < min(nodes["time"][nodes["time"] >= 50])], minlength=N)
    rows = np.load(tmp_path / "import/parts/0/features.npy")
    np.testing.assert_allclose(np.expm1(rows[:, 0]), degrees, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    ("symmetrize", "relations", "numbers"),
    [(True, False, (1, 3)), (False, True, (1, 2, 4))],
    default=[(True, False, (1, 3))],
)
def test_any_number_of_importers_writes_the_same_store(
    symmetrize: bool,
    relations: bool,
    numbers: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = tables(tmp_path / "data", relations=relations)
    dataset = {"name": "edges", "root": str(data), "symmetrize": symmetrize}
    stores = []
    for cores in numbers:
        monkeypatch.setattr(entry, "num_cores", lambda cores=cores: cores)
        run("import", data, tmp_path / str(cores), workers=4, memory=SEVERAL, dataset=dataset)
        assert (f"in {cores} processes" in capfd.readouterr().out) == (cores > 1)
        stores.append(made(tmp_path / str(cores)))
    assert stores == stores[:1] * len(numbers)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_importer_that_dies_ends_the_others_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: dict[str, str]
) -> None:
    data, dies = tables(tmp_path / "data"), tmp_path / "dies"
    dies.touch()
    monkeypatch.setattr(entry, "num_cores", lambda: 3)
    share = entry.ForkedGroup.run

    def killed(group: entry.ForkedGroup, work: Callable[[int], Any]) -> list[Any]:
        def some(member: int) -> Any:
            if dies.exists() and member == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if dies.exists():
                time.sleep(NEVER)
            return work(member)

        return share(group, some)

    monkeypatch.setattr(entry.ForkedGroup, "run", killed)
    with pytest.raises(RankError, match="importer 1 was ended by SIGKILL"):
        run("import", data, tmp_path / "store", memory=SEVERAL)
    dies.unlink()
    run("import", data, tmp_path / "store", memory=SEVERAL)
    assert made(tmp_path / "store") == usual


def ogb_folder(folder: Path) -> dict[str, Any]:
    return {"name": "ogb", "root": str(ogb(folder / "ogbn_arxiv")), "symmetrize": True}


def graphbolt(folder: Path) -> dict[str, Any]:
    graphbolt_folder(folder / "bolt", np.random.default_rng(0))
    return {"name": "graphbolt", "root": str(folder / "bolt"), "symmetrize": True}


def saved(folder: Path) -> dict[str, Any]:
    EdgeFolder(str(tables(folder / "tables")), symmetrize=True).load().save(folder / "saved")
    return {"name": "saved", "root": str(folder / "saved")}


@pytest.mark.slow
@few("form", [ogb_folder, graphbolt, saved], default=(ogb_folder,))
def test_other_data_sets_are_imported_to_the_same_store(form: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    dataset = form(tmp_path)
    keys: dict[str, Any] = {"dataset": dataset, "workers": 2, "partition": "hash", "cache": False}
    for job in ("import", "partition"):
        gnnkit.train(job=job, strategy="individual_sample", folder=tmp_path / job, **keys)
    assert made(tmp_path / "import") == made(tmp_path / "partition")
    stores = [json.loads((tmp_path / job / "store.json").read_bytes()) for job in ("import", "partition")]
    assert {key for key in stores[0] if stores[0][key] != stores[1][key]} <= {"sha256", "asked"}


@pytest.mark.slow
@few(
    ("strategy", "inputs", "relations"),
    pairwise(
        [*itertools.product(["vertex_centric", "individual_sample"], ["features", "degree", "learned"], [False, True])]
    ),
    default=1,
)
def test_a_store_that_is_cut_anew_is_the_store_of_the_data(
    strategy: str, inputs: str, relations: bool, tmp_path: Path
) -> None:
    data, keys = tables(tmp_path / "data", wide=100.0, relations=relations), {"strategy": strategy, "inputs": inputs}
    run("import", data, tmp_path / "first", partition="hash", workers=3, **keys)
    shape: dict[str, Any] = {"partition": "ldg", "workers": 2, "cache": False}
    store = {"name": "store", "root": str(tmp_path / "first")}
    gnnkit.train(job="partition", dataset=store, folder=tmp_path / "again", **shape, strategy=strategy)
    run("partition", data, tmp_path / "new", **shape, **keys)
    assert made(tmp_path / "again") == made(tmp_path / "new")
    stores = [json.loads((tmp_path / name / "store.json").read_bytes()) for name in ("again", "new")]
    assert {key for key in stores[0] if stores[0][key] != stores[1][key]} <= {"sha256", "asked"}


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    ("strategy", "model"),
    [("individual_sample", "sage"), ("preset_workload", "gcn"), ("vertex_centric", "rgcn")],
    default=[("vertex_centric", "rgcn")],
)
def test_a_run_from_an_imported_store_is_the_run_on_the_tables(strategy: str, model: str, tmp_path: Path) -> None:
    data = tables(tmp_path / "data", relations=model == "rgcn")
    run("import", data, tmp_path / "store", workers=2, strategy="auto")
    keys: dict[str, Any] = {"strategy": strategy, "comm": "threads", "threads": 1, "trainer": {"max_epochs": 2}, **BARE}
    keys["model"] = model
    found = gnnkit.train(dataset={"name": "store", "root": str(tmp_path / "store")}, folder=tmp_path / "a", **keys)
    expected = run("train", data, tmp_path / "b", workers=2, **keys)
    assert found["train_loss"] == expected["train_loss"]
    for name in ("predictions.npy", "node_ids.npy", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.slow
def test_the_same_import_again_does_nothing_and_changed_data_start_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tables(tmp_path / "data")
    run("import", data, tmp_path / "store")
    first, times = made(tmp_path / "store"), (tmp_path / "store/store.json").stat().st_mtime_ns
    capfd.readouterr()
    run("import", data, tmp_path / "store")
    assert "holds this store already" in capfd.readouterr().out
    assert (tmp_path / "store/store.json").stat().st_mtime_ns == times
    os.utime(data / "edges.parquet", ns=(1, 1))
    with pytest.raises(UserError, match="it holds a run"):
        run("import", data, tmp_path / "store")
    run("import", data, tmp_path / "store", on_exists="replace")
    assert made(tmp_path / "store") == first


def import_until(name: str, data: Path, store: Path) -> None:
    """Imports tables, and kills the process where it opens a file of the store."""

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(store)) and name in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(opened)
    run("import", data, store)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_import_that_is_killed_goes_on(tmp_path: Path, usual: dict[str, str]) -> None:
    data, store = tables(tmp_path / "data"), tmp_path / "store"
    for name in ("features.read", "src.records", "graph/.meta.json", "parts/.0"):
        with forked(functools.partial(import_until, name, data, store), tmp_path) as program:
            assert program.ended()[0] == -signal.SIGKILL, (name, program.text())
    run("import", data, store)
    assert made(store) == usual
    assert not (store / "import").exists()


def limited(monkeypatch: pytest.MonkeyPatch, process: str, size: int) -> None:
    """Lets files of one of the two processes of an import have `size` bytes.

    With `process` importer, these are the files of those that a process starts.
    """
    start, share = job_module.run_in_child, entry.ForkedGroup.run
    monkeypatch.setattr(entry, "num_cores", lambda: 2 if process == "importer" else 1)

    def shared(group: entry.ForkedGroup, work: Callable[[int], Any]) -> list[Any]:
        def some(member: int) -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return work(member)

        return share(group, some)

    monkeypatch.setattr(entry.ForkedGroup, "run", shared if process == "importer" else share)

    def started(function: Callable[..., Any], *arguments: Any, **keys: Any) -> Any:
        def work(*given: Any) -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return function(*given)

        if function.__name__ == process:
            return start(work, *arguments, always=True, **keys)
        return start(function, *arguments, **keys)

    monkeypatch.setattr(job_module, "run_in_child", started)


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    ("process", "size", "file"),
    [
        ("run_import", 400, "progress.json"),
        ("run_import", 600, "labels.npy"),
        ("run_import", 2000, "weight.records"),
        ("run_import", 3000, "src.read"),
        ("importer", 1000, "dst.records"),
        ("_write_import", 200, "inputs.json"),
        ("_write_import", 500, "labels.npy"),
        ("_write_import", 700, "indices.npy"),
        ("_write_import", 1500, "edge_ids.npy"),
        ("_write_import", 5000, "store.json"),
    ],
    default=[("importer", 1000, "dst.records")],
)
def test_a_full_disk_in_any_pass_is_told_by_file_and_leaves_no_store(
    process: str, size: int, file: str, tmp_path: Path, cut_store: Callable[[bool], dict[str, str]]
) -> None:
    has_ids = process == "_write_import" or file == "src.read"  # ids, which are then written first
    data, store = tables(tmp_path / "data", ids=has_ids), tmp_path / "store"
    with pytest.MonkeyPatch.context() as patch:
        limited(patch, process, size)
        with pytest.raises(
            UserError, match=rf"/\.?{file}[.\w]*: File too large: .* run the same command again to resume"
        ) as raised:
            run("import", data, store, memory=SEVERAL)
    assert "\n" not in str(raised.value)
    assert not (store / "store.json").exists()
    run("import", data, store, memory=SEVERAL)
    assert made(store) == cut_store(has_ids)


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_read_is_named_and_the_import_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, store = tables(tmp_path / "data"), tmp_path / "store"
    start = job_module.run_in_child

    def started(*given: Any, **keys: Any) -> Any:
        found = start(*given, **keys)
        other = pa.parquet.read_table(data / "nodes.parquet").take(np.arange(N)[::-1])  # of the same size
        pa.parquet.write_table(other, data / "nodes.parquet")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "run_in_child", started)
        with pytest.raises(UserError, match=rf"^{data}/nodes.parquet changed while it was read: run the command again"):
            run("import", data, store)
    assert not (store / "store.json").exists()
    run("import", data, store)
    run("partition", data, tmp_path / "whole")
    assert made(store) == made(tmp_path / "whole")


REFUSED = [
    ["dataset=pystdlib"],
    ["partition=balanced"],
    ["partition=2d"],
    ["partition.border=min_words"],
    ["input_rows=sparse"],
    ["features.degree=true"],
    ["task=link_prediction"],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "overrides"), [*zip(job_module.REFUSED, REFUSED, strict=True)], ids=map(" ".join, REFUSED)
)
def test_what_an_import_does_not_do_is_refused(message: str, overrides: list[str], tmp_path: Path) -> None:
    data = [] if overrides[0].startswith("dataset=") else ["dataset=edges", f"dataset.root={tmp_path}"]
    order = Order(settle(compose(["job=import", "strategy=auto", *data, *overrides])))
    with pytest.raises(UserError) as raised:
        check(order)
    told = message.format(s=order.settings, data=f"dataset={order.settings.dataset.name}")
    assert str(raised.value) == told


@pytest.mark.slow
def test_warnings_about_tables_are_printed_once_as_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,time\n0,1,3\n1,0,4\n")
    (tmp_path / "nodes.csv").write_text("id,x,label,split\n0,1.5,0,train\n1,2.5,1,train\n")
    run("import", tmp_path, tmp_path / "store")
    told = capfd.readouterr().err
    assert told.count("gnnkit: warning: dataset=edges: edges.csv: 'time' is the time of each row") == 1
    assert "UserWarning" not in told


@pytest.mark.slow
def test_an_import_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    count = 600_000
    pa.parquet.write_table(pa.table({"id": np.arange(count)[::-1]}), tmp_path / "nodes.parquet")
    np.save(tmp_path / "edges.npy", np.zeros((10, 2), np.int64))
    with pytest.raises(UserError, match=r"the ids of .* do not fit"):
        run("import", tmp_path, tmp_path / "store", memory="64MiB")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_memory_is_read_by_an_import_only() -> None:
    composed = compose(["job=import", "strategy=auto"])
    for text, size in (("1GB", 10**9), ("1.5GiB", 3 * 2**29), ("512 MB", 512 * 10**6), (2**27, 2**27)):
        assert settle({**composed, "memory": text}).job_keys.memory == size
    with pytest.raises(UserError, match="memory is read by job=import only: leave the key out"):
        settle(compose(["job=plan", "strategy=vertex_centric", "memory=1GB"]))


@pytest.mark.slow
def test_the_process_that_starts_an_import_has_no_torch() -> None:
    code = "import gnnkit_import.job, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_graph_from_python_is_cut_by_another_job() -> None:
    settings = settle(
        compose(["job=import", "strategy=vertex_centric", "dataset=edges", "dataset.root=x", "workers=2"])
    )
    with pytest.raises(UserError, match="job=import reads a folder of tables: job=partition cuts a graph from Python"):
        job_module.check_import(settings, from_python=True)


def test_a_partitioner_that_needs_more_memory_is_told_with_what_is_needed() -> None:
    graph = Graph.from_edges([0], [1])
    greedy: Any = SimpleNamespace(reads_edges=True, stream_bytes=lambda nodes: 10**9 * nodes)
    with pytest.raises(UserError, match="memory=1048576: SimpleNamespace of 2 nodes needs more than that; use memory"):
        import_store._assign_nodes(greedy, graph, Grid(2, 1, 1), Room(1 << 20, 1))
