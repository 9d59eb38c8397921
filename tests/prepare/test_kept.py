"""Partitions and shards that earlier runs have made are used again, to the bit."""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gnnkit
from gnnkit import config
from gnnkit.config.settings import Settings, settle
from gnnkit.graph import Graph
from gnnkit.partition.shard import Shard
from gnnkit.prepare import cut, kept
from gnnkit.prepare.cut import prepare
from gnnkit.prepare.facts import Needs, Preparation, Prepared
from gnnkit.prepare.kept import ResultCache, content, kept_partition
from gnnkit.result.result import COORDINATION, PREPARED
from gnnkit.utils.storage import save_arrays
from tests.cases import exhaustive, few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.waiting import GUARD

OWNERS = Needs(trains=True, graph=False, reference=False)
NEEDS = [
    pytest.param(OWNERS, id="owners"),
    pytest.param(replace(OWNERS, graph=True), id="all read the graph"),
    pytest.param(replace(OWNERS, graph=True, features=False), id="all read the edges"),
]
Prepare = Callable[..., tuple[dict[str, Any], dict[str, bytes]]]
code = functools.cache(kept._code_version)


@pytest.fixture(autouse=True)
def code_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamps gnnkit's own files once. Doing so per entry took a third of the time."""
    monkeypatch.setattr(kept, "_code_version", code)


@pytest.fixture
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what took no time, too."""
    monkeypatch.setattr(kept, "WORTH", -1.0)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """Prepares a run. Returns what the ranks hear, and all files by name."""

    def prepared(graph: Graph, *keys: str, needs: Needs = OWNERS) -> tuple[dict[str, Any], dict[str, bytes]]:
        folder = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        folder.mkdir()
        facts = prepare(Preparation(chosen(tmp_path, *keys), needs, folder, graph))
        return facts, {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    return prepared


def chosen(folder: Path, *keys: str) -> Settings:
    found = _settled(keys)
    return found if found.cache is None else replace(found, cache=folder / "cache")


@functools.cache
def _settled(keys: tuple[str, ...]) -> Settings:
    defaults = {"strategy": "vertex_centric", "workers": "4", "partition": "2d"}
    return settle(
        config.compose([f"{key}={value}" for key, value in (defaults | dict(k.split("=", 1) for k in keys)).items()])
    )


def entries(folder: Path, kind: str = "") -> list[Path]:
    return sorted((folder / "cache").glob(f"{kind}*"))


def summary(facts: dict[str, Any]) -> str:
    return Prepared(**facts).summary


def plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the lines on the cache, and the seconds."""
    lines = [line for line in facts["notes"] if "cached in" not in line]
    read: dict[str, Any] = json.loads(json.dumps({**facts, "notes": lines, "seconds": {}}))
    return read


def changed(graph: Graph, name: str) -> Graph:
    """Changes the last number of one array."""
    if name == "weight":
        weight = np.ones(graph.num_edges, np.float32)
        return replace(graph, csc=replace(graph.csc, weight=weight))
    array = np.array(getattr(graph, name))
    array.flat[-1] = 1 + array.flat[-1] if name == "features" else (array.flat[-1] % 2) + 1
    values: dict[str, Any] = {name: array}
    return replace(graph, **values)


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
@few("needs", NEEDS, default=["owners"])
def test_a_second_run_gets_the_same_files(prepared: Prepare, needs: Needs, tmp_path: Path) -> None:
    graph = small_graph()
    cold = prepared(graph, "cache=false", needs=needs)
    assert not entries(tmp_path)
    first, second = prepared(graph, needs=needs), prepared(graph, needs=needs)
    assert cold[1] == first[1] == second[1]
    assert plain(cold[0]) == plain(first[0]) == plain(second[0])
    assert "made by an earlier run" not in summary(first[0])
    notes = summary(second[0]).splitlines()[-2:]
    assert notes == [
        f"{kind}: made by an earlier run, cached in {tmp_path / 'cache'}" for kind in ("partition", "shards")
    ]
    assert len(entries(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_second_run_makes_nothing(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    prepared(graph)
    for module, name in ((kept, "assign"), (cut, "save_shards"), (cut, "measure")):
        monkeypatch.setattr(module, name, None)
    assert "shards: made by an earlier run" in summary(prepared(graph)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
@few("needs", NEEDS, default=["all read the graph"])
def test_kept_shards_get_the_reason_of_this_run(needs: Needs, tmp_path: Path) -> None:
    heard, decisions = [], []
    for number, cache in enumerate(("cache", "cache", None)):
        why = f"the leader takes this layout for reason {min(number, 1)}"
        decided = {"why": why, "layouts": {"2d": {"seconds": min(number, 1)}}}
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        settings = replace(chosen(tmp_path), decided=decided, cache=cache and tmp_path / cache)
        heard.append(prepare(Preparation(settings, needs, folder, small_graph())))
        report = folder / COORDINATION
        decisions.append(json.loads(report.read_text())["decision"] if report.exists() else None)
    assert "shards: made by an earlier run" in summary(heard[1])
    assert plain(heard[1]) == plain(heard[2]) != plain(heard[0])
    assert "reason 1" in heard[1]["why"]
    assert decisions[1] == decisions[2]


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_another_graph_is_cut_anew(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    monkeypatch.setattr(kept, "fingerprint", lambda graph: "alike")
    prepared(graph)
    for name in ("features", "labels", "split", "weight"):
        other = changed(graph, name)
        assert content(graph) != content(other), name
        warm = prepared(other)
        assert "earlier" not in summary(warm[0]), name
        assert warm[1] == prepared(other, "cache=false")[1], name


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
@pytest.mark.parametrize(
    ("keys", "again"),
    [
        (["workers=2"], []),
        exhaustive((["partition=1d"], [])),
        exhaustive((["partition.nodes=random"], [])),
        (["partition.border=min_words"], []),
        (["strategy=individual_sample"], ["partition"]),
        exhaustive((["trainer.precision=bf16-mixed"], ["partition"])),
        (["seed=7", "trainer.max_epochs=3", "trainer.lr=0.5", "model=sage"], ["partition", "shards"]),
    ],
)
def test_a_key_counts_where_the_files_depend_on_it(prepared: Prepare, keys: list[str], again: list[str]) -> None:
    graph = small_graph()
    prepared(graph)
    text = summary(prepared(graph, *keys)[0])
    assert [line.partition(":")[0] for line in text.splitlines() if "earlier" in line] == again
    assert "not read from" not in text  # entries of the same graph with other keys are no damage


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
@pytest.mark.parametrize("changes", ["_code_version", "origin"])
def test_another_version_of_gnnkit_or_of_the_partitioner_starts_anew(
    prepared: Prepare, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_graph()
    prepared(graph)
    monkeypatch.setattr(kept, changes, lambda *_: ["another"])
    assert "partition: made" not in summary(prepared(graph)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_partition_of_a_folder_is_read_anew_when_the_folder_changes(prepared: Prepare, tmp_path: Path) -> None:
    graph, stored = small_graph(), tmp_path / "stored"
    for owner in (0, 3):
        arrays = {"node_rank": np.full(graph.num_nodes, owner, np.int32)}
        save_arrays(stored, arrays, {"grid": {"rows": 2, "cols": 2, "slices": 1}})
        facts, files = prepared(graph, "partition=stored", "partition.grid=2d", f"partition.path={stored}")
        assert "earlier" not in summary(facts)
        assert len(files[f"{PREPARED}/{owner}/owned.npy"]) > len(files[f"{PREPARED}/1/owned.npy"])


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_damaged_entry_is_noticed_and_made_anew(prepared: Prepare, tmp_path: Path) -> None:
    graph = small_graph()
    first = prepared(graph)
    (entry,) = entries(tmp_path, "shards")
    numbers = (entry / PREPARED / "0/owned.npy").read_bytes()
    meta = (entry / "entry.json").read_text()
    for name, damages in {
        f"{PREPARED}/0/owned.npy": (numbers[:-1], numbers[::-1], None),
        f"{PREPARED}/0/more.npy": (numbers,),
        "entry.json": ("{", meta.replace('"why": "', '"why": "x')),
    }.items():
        for damage in damages:
            (entry / name).unlink(missing_ok=True)  # the run folders link to the same file
            if damage is not None:
                (entry / name).write_bytes(damage.encode() if isinstance(damage, str) else damage)
            facts, files = prepared(graph)
            assert f"shards: not read from {entry}" in summary(facts), (name, damage)
            assert files == first[1]
            assert kept._read_facts(entry)
    facts, files = prepared(graph)
    assert "shards: made by an earlier run" in summary(facts)
    assert files == first[1]


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_folder_that_cannot_be_written_fails_no_run(prepared: Prepare, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    facts, files = prepared(small_graph())
    assert f"shards: not cached in {tmp_path / 'cache'}: " in summary(facts)
    assert f"{PREPARED}/0/owned.npy" in files


def test_what_takes_no_time_is_not_kept(prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "WORTH", GUARD)
    prepared(small_graph())
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_runs_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    graph, settings = small_graph(), chosen(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kept_partition(ResultCache(settings.cache, graph), settings), range(16)))
    assert len({partition.node_rank.tobytes() for partition in found}) == 1
    (entry,) = (tmp_path / "cache").iterdir()
    assert kept._read_facts(entry) is None


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_run_goes_on_without_an_entry_that_has_been_removed(tmp_path: Path) -> None:
    graph, settings = small_graph(), chosen(tmp_path)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        prepare(Preparation(settings, OWNERS, tmp_path / name, graph))
    shutil.rmtree(tmp_path / "cache")
    first, second = (Shard.load(tmp_path / name / PREPARED / "3") for name in ("first", "second"))
    assert content(first) == content(second)


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_files_are_copied_where_disks_differ(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    first, second = prepared(small_graph()), prepared(small_graph())
    assert "shards: made by an earlier run" in summary(second[0])
    assert first[1] == second[1]


@pytest.mark.slow
def test_kept_files_wait_for_the_disk_and_those_of_a_run_do_not(
    prepared: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda file: waited.add(os.fstat(file).st_ino))
    prepared(small_graph(), "cache=false")
    assert not {path.stat().st_ino for path in (tmp_path / "run0" / PREPARED).rglob("*")} & waited
    monkeypatch.setattr(kept, "WORTH", -1.0)
    prepared(small_graph())
    assert {path.stat().st_ino for path in (tmp_path / "cache").rglob("*") if path.is_file()} <= waited


@pytest.mark.usefixtures("worthwhile")
def test_only_the_user_reads_the_entries(prepared: Prepare, tmp_path: Path) -> None:
    prepared(small_graph())
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "cache", *entries(tmp_path))] == [0o700] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_the_entry_used_longest_ago_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    for workers, used in ((2, 20), (3, 30), (4, 10)):
        settings = chosen(tmp_path, f"workers={workers}", "partition=1d")
        kept_partition(ResultCache(settings.cache, graph), settings)
        (new,) = [path for path in entries(tmp_path) if path.stat().st_mtime > 100]
        os.utime(new, (used, used))
    monkeypatch.setattr(kept, "MOST", sum(map(kept._entry_size, entries(tmp_path))))
    settings = chosen(tmp_path, "workers=5", "partition=1d")
    kept_partition(ResultCache(settings.cache, graph), settings)
    assert sorted(path.stat().st_mtime for path in entries(tmp_path))[:2] == [20, 30]
    assert len(entries(tmp_path)) == 3


@pytest.mark.usefixtures("worthwhile")
def test_an_entry_that_is_too_large_is_not_kept(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST", 10)
    text = summary(prepared(small_graph())[0])
    assert "bytes are more than the cache may hold, 10" in text
    assert entries(tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
def test_a_run_with_kept_shards_trains_the_same_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys: dict[str, Any] = {"workers": 2, "threads": 1, "cache": str(tmp_path / "cache"), "trainer": {"max_epochs": 2}}
    keys |= {"comm": "threads", **BARE}
    for name in ("cold", "warm"):
        gnnkit.train(small_graph(), strategy="vertex_centric", folder=tmp_path / name, **keys)
        assert ("shards: made by an earlier run" in capfd.readouterr().out) == (name == "warm")
    cold, warm = (load_file(tmp_path / name / "model.safetensors") for name in ("cold", "warm"))
    assert cold.keys() == warm.keys()
    assert all(torch.equal(cold[name], warm[name]) for name in cold)


@pytest.mark.slow
@pytest.mark.usefixtures("worthwhile")
@pytest.mark.parametrize(
    "keys", [["partition.nodes=hdrf"], ["partition.grid=1.5d", "partition.replication=3", "workers=4"]]
)
def test_a_partition_is_the_same_after_it_was_kept(tmp_path: Path, keys: list[str]) -> None:
    graph = small_graph()
    settings = chosen(tmp_path, *keys)
    first, second = (kept_partition(ResultCache(settings.cache, graph), settings) for _ in range(2))
    assert first.edge_cell is not None
    assert content(first) == content(second)
    assert asdict(first.grid) == asdict(second.grid)
    assert first.columns == second.columns == ((2, 1, 1) if "partition.grid=1.5d" in keys else ())


def test_what_runs_that_died_have_left_makes_room(tmp_path: Path) -> None:
    for name, age in ((".old", 10**6), (".new", 0), ("no entry", 10**6)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    kept._make_room(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {".new", "no entry"}
