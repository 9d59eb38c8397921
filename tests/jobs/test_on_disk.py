"""Features that stay on disk give the bits of features in memory."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.prepare import facts
from tests.cases import few, pairwise
from tests.runs import BARE

pytestmark = pytest.mark.slow
N, WIDTH = 160, 7
FAST = {"comm": "threads", "threads": 1, "workers": 2, "trainer": {"max_epochs": 2}, **BARE}
ROWS = 40
CACHE = ROWS * 4 * WIDTH  # bytes
OWNERS = {"name": "individual_sample", "topology": "partitioned", "batch_size": 20}
WAYS: dict[str, dict[str, Any]] = {
    "shared": {"strategy": {"name": "individual_sample", "batch_size": 20}},
    "fetched": {"strategy": {"name": "individual_sample", "features": "partitioned", "batch_size": 20}},
    "owners": {"strategy": OWNERS},
    "cached": {"strategy": {**OWNERS, "cache": "exact", "options": {"cache_rows": 30}}},
    "cooperative": {"strategy": {"name": "joint_sample", "batch_size": 20}},
    "links": {"strategy": {"name": "individual_sample", "batch_size": 90}, "task": "link_prediction"},
    "owners of links": {"strategy": {**OWNERS, "batch_size": 90}, "task": "link_prediction"},
    "joint links": {"strategy": {"name": "joint_sample", "batch_size": 90}, "task": "link_prediction"},
}


def graph(dtype: Any = np.float32) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = (N * rng.random(5 * N) ** 2).astype(int), rng.integers(0, N, 5 * N)
    features = rng.normal(size=(N, WIDTH)).astype(dtype)
    return Graph.from_edges(src, dst, N, features=features, labels=rng.integers(0, 3, N), split=1 + np.arange(N) % 3)


def train(folder: Path, data: Any = None, **keys: Any) -> Any:
    data_keys = {"dataset": data} if isinstance(data, dict) else {}
    args = [] if data_keys else [graph() if data is None else data]
    return gnnkit.train(*args, folder=folder, **data_keys, **{**FAST, **keys})


def bits(result: Any) -> list[bytes]:
    """Returns what must be equal: the weights, the predictions, and the loss."""
    names = ("model.safetensors", "predictions.npy")
    contents = [(result.folder / name).read_bytes() for name in names if (result.folder / name).exists()]
    assert contents
    return [*contents, repr(result["train_loss"]).encode()]


ON_DISK: dict[str, Any] = {"place": "disk", "cache": CACHE}
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains once for each way and features, and returns the result each time."""
    results: dict[str, Any] = {}

    def run(way: str, features: dict[str, Any], **keys: Any) -> Any:
        asked = json.dumps([way, features, keys], sort_keys=True)
        if asked not in results:
            way_keys = WAYS.get(way, {"strategy": "vertex_centric"})
            results[asked] = train(tmp_path_factory.mktemp("run") / "run", features=features, **way_keys, **keys)
        return results[asked]

    return run


@few("way", WAYS, default=["shared", "owners"])
def test_rows_on_disk_give_the_bits_of_memory(way: str, run: Run) -> None:
    mapped, result = run(way, {"place": "mapped"}), run(way, ON_DISK)
    assert "features_read" not in mapped
    assert bits(result) == bits(mapped)
    read = result["features_read"]
    assert read["cache_rows"] == ROWS
    assert 0 < read["hit_rate"] < 1
    assert sum(read["bytes_by_epoch"]) == read["bytes"] > 0


@few("way", WAYS, default=["shared"])
def test_rows_in_memory_give_the_bits_of_mapped_rows(way: str, run: Run) -> None:
    assert bits(run(way, {"place": "memory"})) == bits(run(way, {"place": "mapped"}))


def test_threads_read_what_io_uring_reads(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[bool] = []

    def forbidden(*arguments: Any) -> _core.RowFile:
        *_, ring = arguments
        rings.append(ring)
        if ring:
            raise UserError("io_uring: Operation not permitted")
        return _core.RowFile(*arguments)

    monkeypatch.setattr("gnnkit.engine.remote.disk._core", SimpleNamespace(RowFile=forbidden))
    threads = train(tmp_path / "threads", features=ON_DISK, **WAYS["shared"])
    assert rings[:2] == [True, False]
    assert bits(threads) == bits(run("shared", ON_DISK))
    assert threads["features_read"]["bytes"] == run("shared", ON_DISK)["features_read"]["bytes"]


@few(("dtype", "cache"), itertools.product([np.float16, np.float32, np.float64], [CACHE, 0]), default=1)
def test_rows_of_every_type_scaled_and_filled(dtype: Any, cache: int, tmp_path: Path) -> None:
    empty = np.arange(0, N, 7)
    given = replace(graph(dtype), missing=np.stack([empty, np.full(len(empty), 2)], 1))
    columns, disk = {"scale": "standard", "fill": "mean"}, {"place": "disk", "cache": cache}
    found = [
        bits(train(tmp_path / str(n), given, strategy=WAYS["shared"]["strategy"], features=columns | way))
        for n, way in enumerate([{"place": "mapped"}, disk])
    ]
    assert found[0] == found[1]


@pytest.mark.exhaustive
@few("way", ["shared", "owners", "cooperative"], default=["owners"])
def test_a_store_trains_predicts_and_is_verified_from_disk(way: str, tmp_path: Path) -> None:
    keys = WAYS[way]
    gnnkit.train(graph(), job="partition", folder=tmp_path / "store", features={"scale": "none"}, workers=2, **keys)
    store = {"name": "store", "root": str(tmp_path / "store")}
    disk = {"place": "disk", "cache": CACHE}
    own = {key: value for key, value in FAST.items() if key != "workers"} | keys
    mapped = gnnkit.train(dataset=store, folder=tmp_path / "mapped", features={"place": "mapped"}, **own)
    result = gnnkit.train(dataset=store, folder=tmp_path / "disk", features=disk, **own)
    assert bits(result) == bits(mapped)
    predicted = gnnkit.predict(tmp_path / "disk", folder=tmp_path / "p", comm="threads", report=False)
    assert (predicted.folder / "predictions.npy").read_bytes() == (result.folder / "predictions.npy").read_bytes()
    verified = gnnkit.train(job="verify", dataset=store, folder=tmp_path / "v", features=disk, **own)
    assert verified["verified"]


@pytest.mark.exhaustive
def test_a_run_that_goes_on_has_the_same_bits(run: Run, tmp_path: Path) -> None:
    keys = {"features": ON_DISK, **WAYS["shared"]}
    steps = {"max_epochs": 1, "checkpoint_every_n_steps": 2}
    train(tmp_path / "part", **{**keys, "trainer": steps})
    rest = {"max_epochs": 2, "resume": str(tmp_path / "part")}
    assert bits(train(tmp_path / "rest", **{**keys, "trainer": rest})) == bits(run("shared", ON_DISK))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"place": "mapped", "cache": "1GB"},
            "features.cache=1GB is read by features.place=disk only: leave the key out",
        ),
        ({"place": "disk", "cache": "100000GB"}, None),
    ],
)
def test_keys_that_nothing_reads_are_refused(features: Any, message: str | None, tmp_path: Path) -> None:
    if message is None:  # more than all rows is all rows
        assert train(tmp_path / "run", features=features, **WAYS["shared"])["features_read"]["cache_rows"] == N
        return
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", features=features, **WAYS["shared"])


def test_auto_goes_by_the_memory_at_hand_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = WAYS["shared"]
    told = {}
    monkeypatch.setattr(facts, "_process_bytes", lambda *_: 0)
    for name, free in (("memory", 10**11), ("disk", 0)):
        monkeypatch.setattr(facts, "available_memory", lambda free=free: free)
        result = train(tmp_path / name, **keys)
        told[name] = capsys.readouterr().out
        assert ("features_read" in result) == (name == "disk")
    assert "features: read into memory before the first step (features.place=auto: 0.00461 MB" in told["memory"]
    assert "features: on disk, each worker keeps 0 MB of them" in told["disk"]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"place": "memory"}, "features.place=memory: the features are 0.00461 MB, and 0 MB of memory are free"),
        ({"place": "disk", "cache": "1GB"}, "features.cache=1 GB: each worker on this host has"),
    ],
)
def test_what_does_not_fit_is_refused_before_ranks_start(
    features: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_process_bytes", lambda *_: 0)
    monkeypatch.setattr(facts, "available_memory", lambda: 0)
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", features=features, **WAYS["shared"])


def test_processes_that_memory_does_not_hold_are_refused_with_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "available_memory", lambda: facts.BASE)
    needed = r"workers=2: the processes of this host need 94\d MB of memory in addition to features, and 419 MB is free"
    with pytest.raises(UserError, match=needed):
        train(tmp_path / "run", features={"place": "disk"}, **WAYS["shared"])


NODES = {"ranges": "contiguous", "mixed": "hash"}
Cut = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Cuts the graph once for each job, type of rows, and owners of nodes."""
    saved = tmp_path_factory.mktemp("data") / "saved"
    graph().save(saved)
    stores: dict[tuple[str, str, str], Path] = {}

    def cut(job: str, dtype: str, nodes: str) -> Path:
        if (job, dtype, nodes) not in stores:
            folder = stores[job, dtype, nodes] = tmp_path_factory.mktemp("store") / nodes
            keys = {"features": {"scale": "none", "dtype": dtype}, "partition": NODES[nodes], "workers": 2}
            keys |= {"strategy": "individual_sample", "dataset": {"name": "saved", "root": str(saved)}}
            gnnkit.train(job=job, folder=folder, **keys, **({"memory": "64MiB"} if job == "import" else {}))
        return stores[job, dtype, nodes]

    return cut


@few(
    ("job", "dtype"),
    itertools.product(["partition", "import"], ["as_is", "int8"]),
    default=[("import", "int8")],
)
def test_parts_that_are_ranges_hold_no_rows_beside_those_of_the_graph(job: str, dtype: str, cut: Cut) -> None:
    rows = {
        nodes: sum(np.load(path).nbytes for path in cut(job, dtype, nodes).rglob("feature*.npy")) for nodes in NODES
    }
    once = N * WIDTH * (1 if dtype == "int8" else 4)
    assert once <= rows["ranges"] < 1.6 * once
    assert rows["mixed"] >= 2 * once


READS = [("full graph", "auto"), *itertools.product(["shared", "owners"], ["mapped", "disk"])]


@few(
    ("job", "dtype", "nodes", "way", "place"),
    [
        (*store, *read)
        for *store, read in pairwise([*itertools.product(["partition", "import"], ["as_is", "int8"], NODES, READS)])
    ],
    default=1,
)
def test_parts_read_the_rows_of_the_graph(
    job: str, dtype: str, nodes: str, way: str, place: str, cut: Cut, run: Run, tmp_path: Path
) -> None:
    expected = run(way, {"scale": "none", "dtype": dtype}, partition=NODES[nodes])
    own = {key: value for key, value in FAST.items() if key != "workers"}
    store = {"name": "store", "root": str(cut(job, dtype, nodes))}
    read = {"place": place} | ({"cache": CACHE} if place == "disk" else {})
    way_keys = WAYS.get(way, {"strategy": "vertex_centric"})
    result = gnnkit.train(dataset=store, folder=tmp_path / "run", features=read, **{**own, **way_keys})
    assert bits(result) == bits(expected)
