"""Full graphs and shares that read their rows from disk in each pass."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.kernels import pieces, products
from gnnkit.prepare import facts
from tests.cases import few
from tests.jobs.test_on_disk import CACHE, ROWS, WIDTH, N, bits, graph
from tests.jobs.test_on_disk import train as train_on_disk
from tests.runs import within_process

pytestmark = pytest.mark.slow
FULL = {"strategy": "vertex_centric"}
WAYS: dict[str, dict[str, Any]] = {
    "full": FULL,
    "2d": FULL | {"partition": "2d", "workers": 4},
    "columns": FULL | {"partition": {"nodes": "contiguous", "grid": [1, 1, 2]}},
    "supersteps": {"strategy": {"name": "vertex_centric", "local_iterations": 3}},
    "pipelined": FULL | {"exchange": "pipelined"},
    "links": FULL | {"task": "link_prediction"},
    "share": {"strategy": "preset_workload"},
    "halo": {"strategy": {"name": "preset_workload", "halo": "one_hop"}},
    "clusters": {"strategy": {"name": "cluster", "clusters": 4, "clusters_per_batch": 2}},
    "coverage": {"strategy": "coverage"},
    "exchanged": {"strategy": {"name": "preset_workload", "exchange_every": 2}},
    "links of shares": {"strategy": "preset_workload", "task": "link_prediction"},
}
DISK = {"place": "disk", "cache": CACHE}
NARROW = {"hidden": WIDTH - 3}  # so that layers multiply first
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", **NARROW},
    "sage": {"name": "sage", **NARROW},
    "gat": {"name": "gat"},
    "gin": {"name": "gin", "norm": "batch", **NARROW},
}


def train(folder: Path, data: Any = None, **keys: Any) -> Any:
    with within_process():
        return train_on_disk(folder, data, **keys)


@few("way", WAYS, default=["full", "halo"])
def test_rows_on_disk_give_the_bits_of_memory(way: str, tmp_path: Path) -> None:
    keys = {"model": MODELS["sage"], **WAYS[way]}
    memory = train(tmp_path / "memory", features={"place": "memory"}, **keys)
    assert "features_read" not in memory
    result = train(tmp_path / "disk", features=DISK, **keys)
    assert bits(result) == bits(memory)
    assert result["features_read"]["cache_rows"] == ROWS
    assert 0 < result["features_read"]["hit_rate"] < 1


@few(
    ("model", "dtype"),
    [*((name, "as_is") for name in MODELS), ("gcn", "bf16"), ("gcn", "int8")],
    default=[("gat", "as_is"), ("gcn", "int8")],
)
def test_every_model_that_multiplies_first(model: str, dtype: str, tmp_path: Path) -> None:
    keys = {"model": MODELS[model], **FULL}
    memory = train(tmp_path / "memory", features={"place": "memory", "dtype": dtype}, **keys)
    assert bits(train(tmp_path / "disk", features=DISK | {"dtype": dtype}, **keys)) == bits(memory)


@pytest.mark.exhaustive
@few("way", ["full", "halo"], default=["full"])
def test_rows_of_16_bits_differ_by_rounding_alone(way: str, tmp_path: Path) -> None:
    keys = {"model": MODELS["sage"], "trainer": {"max_epochs": 2, "precision": "bf16-mixed"}, **WAYS[way]}
    memory = train(tmp_path / "memory", features={"place": "memory", "dtype": "bf16"}, **keys)
    disk = train(tmp_path / "disk", features=DISK | {"dtype": "bf16"}, **keys)
    assert disk["train_loss"] == pytest.approx(memory["train_loss"], rel=0.01)


def test_an_epoch_reads_each_row_once_forward_and_once_backward(tmp_path: Path) -> None:
    for cache in (0, ROWS):
        features = {"place": "disk", "cache": cache * 4 * WIDTH}
        result = train(tmp_path / str(cache), features=features, model=MODELS["gcn"], workers=2, **FULL)
        kept, read = 2 * cache, result["features_read"]
        assert read["rows_by_epoch"] == [2 * (N - kept) + kept, 2 * (N - kept)]
        lines = map(json.loads, (result.folder / "epochs.jsonl").read_text().splitlines())
        by_epoch = [sum(line["bytes_read"]) for line in lines if "train_loss" in line]
        assert sum(by_epoch) == read["bytes"]


def test_many_pieces_differ_by_the_order_of_sums_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "CHUNK", 32)
    monkeypatch.setattr(pieces, "CHUNK", 32)
    monkeypatch.setattr(pieces, "PIECE", 1)
    keys = {"model": MODELS["sage"], "trainer": {"max_epochs": 2, "precision": 64}, "write": ["logits"], **FULL}
    memory = train(tmp_path / "memory", features={"place": "memory"}, **keys)
    disk = train(tmp_path / "disk", features=DISK, **keys)
    logits = [np.load(result.folder / "logits.npy") for result in (memory, disk)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-10, atol=1e-10)
    verified = train(tmp_path / "verify", job="verify", features=DISK, model=MODELS["sage"], **FULL)
    assert verified["verified"]


@pytest.mark.exhaustive
@few(
    ("way", "partition"), itertools.product(["full", "halo"], ["contiguous", "hash"]), default=[("full", "contiguous")]
)
def test_a_store_trains_and_predicts_from_disk(way: str, partition: str, tmp_path: Path) -> None:
    keys = {"model": MODELS["gcn"], **WAYS[way]}
    cut = {"strategy": keys["strategy"], "partition": partition}
    gnnkit.train(graph(), job="partition", folder=tmp_path / "store", features={"scale": "none"}, workers=2, **cut)
    store = {"name": "store", "root": str(tmp_path / "store")}
    own = keys | {"workers": 2}
    memory = train(tmp_path / "memory", store, features={"place": "memory"}, **own)
    disk = train(tmp_path / "disk", store, features=DISK, **own)
    assert bits(disk) == bits(memory)
    predicted = gnnkit.predict(tmp_path / "disk", folder=tmp_path / "p", comm="threads", report=False)
    assert (predicted.folder / "predictions.npy").read_bytes() == (disk.folder / "predictions.npy").read_bytes()


@pytest.mark.exhaustive
def test_a_run_that_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    keys = {"features": DISK, "model": MODELS["sage"], **FULL}
    whole = train(tmp_path / "whole", **keys)
    train(tmp_path / "part", **{**keys, "trainer": {"max_epochs": 1}})
    rest = {"max_epochs": 2, "resume": str(tmp_path / "part")}
    assert bits(train(tmp_path / "rest", **{**keys, "trainer": rest})) == bits(whole)


@pytest.mark.parametrize("model", [{"name": "gcn", "hidden": WIDTH}, {"name": "sage", "aggregator": "max", **NARROW}])
def test_a_model_that_reads_rows_before_a_product_is_refused_with_what_it_needs(
    model: dict[str, Any], tmp_path: Path
) -> None:
    size = f"{N // 2 * WIDTH * 4 / 1e6:.3g} MB"
    message = f"would load all of its rows, {size}: use features.place=memory"
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", features=DISK, model=model, **FULL)


def test_auto_goes_by_the_memory_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = N * WIDTH * 4
    keys = {"model": MODELS["gcn"], **FULL}
    for free, on_disk in ((3 * size, False), (1.5 * size, True)):
        monkeypatch.setattr(facts, "available_memory", lambda free=free: free)
        result = train(tmp_path / str(free), **keys)
        assert ("features_read" in result) == on_disk
    assert "reads the others in each pass (features.place=auto: 0.004" in capsys.readouterr().out
    monkeypatch.setattr(facts, "available_memory", lambda: size / 2)
    with pytest.raises(UserError, match=r"features.place=memory: the features are .* use features.place=disk"):
        train(tmp_path / "memory", features={"place": "memory"}, **keys)
    with pytest.raises(UserError, match=r"features.cache=.*: each worker on this host has"):
        train(tmp_path / "cache", features={"place": "disk", "cache": size}, **keys)
