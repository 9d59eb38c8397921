"""Features that stay on disk give the bits of features in memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.prepare import placed
from tests.runs import BARE

pytestmark = pytest.mark.slow
N, WIDTH = 400, 7
FAST = {"comm": "threads", "threads": 1, "workers": 2, "trainer": {"max_epochs": 3}, **BARE}
CACHE = 60 * 4 * WIDTH  # bytes: 60 rows of float32
OWNERS = {"name": "individual_sample", "topology": "partitioned", "batch_size": 20}
WAYS: dict[str, dict[str, Any]] = {
    "shared": {"strategy": {"name": "individual_sample", "batch_size": 20}},
    "fetched": {"strategy": {"name": "individual_sample", "features": "partitioned", "batch_size": 20}},
    "owners": {"strategy": OWNERS},
    "cached": {"strategy": {**OWNERS, "cache": "exact", "cache_rows": 30}},
    "cooperative": {"strategy": {"name": "joint_sample", "batch_size": 20}},
    "links": {"strategy": {"name": "individual_sample", "batch_size": 90}, "task": "link_prediction"},
    "owners of links": {"strategy": {**OWNERS, "batch_size": 90}, "task": "link_prediction"},
    "joint links": {"strategy": {"name": "joint_sample", "batch_size": 90}, "task": "link_prediction"},
}


def graph(dtype: Any = np.float32) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = (N * rng.random(8 * N) ** 2).astype(int), rng.integers(0, N, 8 * N)
    features = rng.normal(size=(N, WIDTH)).astype(dtype)
    return Graph.from_edges(src, dst, N, features=features, labels=rng.integers(0, 3, N), split=1 + np.arange(N) % 3)


def train(folder: Path, data: Any = None, **keys: Any) -> Any:
    given = {"dataset": data} if isinstance(data, dict) else {}
    args = [] if given else [graph() if data is None else data]
    return gnnkit.train(*args, folder=folder, **given, **{**FAST, **keys})


def bits(result: Any) -> list[bytes]:
    """Returns what must be equal: the weights, the predictions, and the loss."""
    names = ("model.safetensors", "predictions.npy")
    found = [(result.folder / name).read_bytes() for name in names if (result.folder / name).exists()]
    assert found
    return [*found, repr(result["train_loss"]).encode()]


@pytest.mark.parametrize("way", WAYS)
def test_every_policy_gives_the_bits_of_memory(way: str, tmp_path: Path) -> None:
    keys = WAYS[way]
    mapped = train(tmp_path / "mapped", features={"place": "mapped"}, **keys)
    assert "features_read" not in mapped
    expected = bits(mapped)
    assert bits(train(tmp_path / "memory", features={"place": "memory"}, **keys)) == expected
    read = {}
    for policy in ("exact", "static", "lru"):
        features = {"place": "disk", "cache": CACHE, "policy": policy, "scale": "auto"}
        result = train(tmp_path / policy, features=features, **keys)
        assert bits(result) == expected, policy
        read[policy] = result["features_read"]
        assert read[policy]["cache_rows"] == 60
        assert 0 < read[policy]["hit_rate"] < 1
        assert sum(read[policy]["bytes_by_epoch"]) == read[policy]["bytes"] > 0
    assert read["exact"]["rows"] < read["lru"]["rows"]


def test_io_uring_reads_what_threads_read_or_is_refused_with_the_reason_of_the_system(tmp_path: Path) -> None:
    features: dict[str, Any] = {"place": "disk", "cache": CACHE}
    threads = train(tmp_path / "threads", features=features, **WAYS["shared"])
    features["reads"] = "io_uring"
    try:
        _core.RowFile(__file__, 0, 1, 1, "lru", 0, False, True)
    except UserError:  # a container, or a system that is not Linux
        with pytest.raises(UserError, match="io_uring: "):
            train(tmp_path / "ring", features=features, **WAYS["shared"])
        return
    ring = train(tmp_path / "ring", features=features, **WAYS["shared"])
    assert bits(ring) == bits(threads)
    assert ring["features_read"]["bytes"] == threads["features_read"]["bytes"]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "cached"])
@pytest.mark.parametrize("policy", ["exact", "static"])
def test_a_plan_counts_the_bytes_that_a_run_reads(way: str, policy: str, tmp_path: Path) -> None:
    keys = {"features": {"place": "disk", "cache": CACHE, "policy": policy}, **WAYS[way]}
    planned = train(tmp_path / "plan", job="plan", **keys)["features_read"]
    result = train(tmp_path / "run", **keys)
    for name in ("bytes_by_epoch", "rows_by_epoch"):
        assert result["features_read"][name][:2] == planned[name]
    assert planned["bytes"] > 0
    lines = (result.folder / "epochs.jsonl").read_text().splitlines()
    by_epoch = [sum(found["bytes_read"]) for found in map(json.loads, lines) if "bytes_read" in found]
    assert 0 < sum(by_epoch) <= result["features_read"]["bytes"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_every_type_scaled_and_filled(dtype: Any, tmp_path: Path) -> None:
    empty = np.arange(0, N, 7)
    given = replace(graph(dtype), missing=np.stack([empty, np.full(len(empty), 2)], 1))
    columns = {"scale": "standard", "fill": "mean"}
    ways = [{"place": "mapped"}, {"place": "disk", "cache": CACHE}, {"place": "disk", "cache": 0, "policy": "lru"}]
    found = [
        bits(train(tmp_path / str(n), given, strategy=WAYS["shared"]["strategy"], features=columns | way))
        for n, way in enumerate(ways)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("way", ["shared", "owners", "cooperative"])
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


def test_a_run_that_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    keys = {"features": {"place": "disk", "cache": CACHE}, **WAYS["shared"]}
    whole = train(tmp_path / "whole", **keys)
    steps = {"max_epochs": 2, "checkpoint_every_n_steps": 2}
    train(tmp_path / "part", **{**keys, "trainer": steps})
    rest = {"max_epochs": 3, "resume": str(tmp_path / "part")}
    assert bits(train(tmp_path / "rest", **{**keys, "trainer": rest})) == bits(whole)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"place": "mapped", "cache": "1GB"}, "features.cache=1GB is of features.place=disk"),
        ({"place": "memory", "policy": "lru"}, "features.policy=lru is of features.place=disk"),
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
    monkeypatch.setattr(placed, "_programs", lambda *_: 0)
    for name, free in (("memory", 10**11), ("disk", 0)):
        monkeypatch.setattr(placed, "available_memory", lambda free=free: free)
        result = train(tmp_path / name, **keys)
        told[name] = capsys.readouterr().out
        assert ("features_read" in result) == (name == "disk")
    assert "features: read into memory before the first step (features.place=auto: 0.0113 MB" in told["memory"]
    assert "features: on disk, each worker keeps 0 MB of them" in told["disk"]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"place": "memory"}, "features.place=memory: the features are 0.0113 MB, and 0 MB of memory are free"),
        ({"place": "disk", "cache": "1GB"}, "features.cache=1 GB for each worker of this host"),
    ],
)
def test_what_does_not_fit_is_refused_before_ranks_start(
    features: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed, "_programs", lambda *_: 0)
    monkeypatch.setattr(placed, "available_memory", lambda: 0)
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", features=features, **WAYS["shared"])


def test_processes_that_memory_does_not_hold_are_refused_with_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed, "available_memory", lambda: placed.BASE)
    needed = r"workers=2: the processes of this host need 94\d MB of memory beside features, and 419 MB is free"
    with pytest.raises(UserError, match=needed):
        train(tmp_path / "run", features={"place": "disk"}, **WAYS["shared"])


@pytest.mark.parametrize("dtype", ["as_is", "int8"])
@pytest.mark.parametrize("job", ["partition", "import"])
def test_parts_that_are_ranges_read_the_rows_of_the_graph(job: str, dtype: str, tmp_path: Path) -> None:
    features = {"scale": "none", "dtype": dtype}
    graph().save(tmp_path / "saved")
    saved = {"name": "saved", "root": str(tmp_path / "saved")}
    nodes = {"ranges": "contiguous", "mixed": "hash"}
    for name, partition in nodes.items():
        keys = {"strategy": "individual_sample", "partition": partition, "workers": 2, "features": features}
        gnnkit.train(job=job, dataset=saved, folder=tmp_path / name, **keys)
    rows = {name: sum(path.stat().st_size for path in (tmp_path / name).rglob("feature*.npy")) for name in nodes}
    once = N * WIDTH * (1 if dtype == "int8" else 4)
    assert once < rows["ranges"] < 1.6 * once
    assert rows["mixed"] > 2 * once
    own = {key: value for key, value in FAST.items() if key != "workers"}
    for name, partition in nodes.items():
        store = {"name": "store", "root": str(tmp_path / name)}
        for way in ("shared", "owners", "full graph"):
            given = WAYS.get(way, {"strategy": "vertex_centric"})
            expected = bits(train(tmp_path / f"{name}{way}", features=features, partition=partition, **given))
            for place in ("mapped", "disk") if way in WAYS else ("auto",):
                read = {"place": place} | ({"cache": CACHE} if place == "disk" else {})
                result = gnnkit.train(
                    dataset=store, folder=tmp_path / f"{name}{way}{place}", features=read, **{**own, **given}
                )
                assert bits(result) == expected, (name, way, place)
