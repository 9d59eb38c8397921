"""A run from a store is the run on the data set, and a rank opens its own part only."""

from __future__ import annotations

import contextvars
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_plan import layouts

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.partition.store import manifest as manifests
from tests.cases import few
from tests.forked import forked
from tests.runs import BARE

pytestmark = pytest.mark.slow
N = 60
FAST = {"comm": "threads", "threads": 1, "types": "ignore", "trainer": {"max_epochs": 2}, **BARE}
FULL, SAMPLED = "vertex_centric", "individual_sample"
PARTITIONED = {"name": SAMPLED, "features": "partitioned"}


def rich_graph() -> Graph:
    """Makes a directed graph with everything that a shard carries."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N, (2, 5 * N))
    features = rng.normal(size=(N, 80)) * (rng.random((N, 80)) < 0.05)
    return Graph.from_edges(
        src,
        dst,
        N,
        features=SparseFeatures.of(features.astype(np.float32)),
        labels=rng.integers(0, 3, N),
        split=1 + np.arange(N) % 3,
        weight=rng.random(5 * N),
        edge_features=rng.normal(size=(5 * N, 2)),
        edge_types=rng.integers(0, 3, 5 * N),
        edge_type_names=["knows", "likes", "cites"],
        class_names=["a", "b", "c"],
        node_ids=[f"n{v}" for v in range(N)],
        feature_names=[f"f{c}" for c in range(80)],
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data") / "graph"
    rich_graph().save(folder)
    return {"name": "saved", "root": str(folder)}


def cut(root: Path, data: dict[str, str], **keys: Any) -> Path:
    gnnkit.train(job="partition", dataset=data, folder=root, **{"strategy": "auto", **keys})
    return root


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, data: dict[str, str]) -> Path:
    """The store of a grid of 2 x 2 ranks."""
    return cut(tmp_path_factory.mktemp("store") / "2d", data, partition="2d", workers=4)


@pytest.fixture(scope="module")
def one_column(tmp_path_factory: pytest.TempPathFactory, data: dict[str, str]) -> Path:
    """The store of three ranks, with the graph that a sampled strategy reads."""
    return cut(tmp_path_factory.mktemp("store") / "1d", data, workers=3, strategy=SAMPLED)


def train(folder: Path, dataset: Any, **keys: Any) -> Any:
    dataset = {"name": "store", "root": str(dataset)} if isinstance(dataset, Path) else dataset
    types = {"types": "read"} if "rgcn" in str(keys.get("model")) else {}
    return gnnkit.train(dataset=dataset, folder=folder, **{**FAST, **types, "strategy": FULL, **keys})


def bits(result: Any) -> list[Any]:
    model = hashlib.sha256((result.folder / "model.safetensors").read_bytes()).hexdigest()
    kept = [(result.folder / name).read_bytes() for name in ("predictions.npy", "node_ids.npy", "inputs.json")]
    return [result["train_loss"], result["balance"]["nodes"], model, *kept]


@pytest.mark.exhaustive
@few(
    ("kind", "keys"),
    [
        pytest.param("store", {"partition": "2d", "workers": 4}, id="2d"),
        pytest.param("one_column", {"workers": 3}, id="1d"),
        pytest.param("one_column", {"workers": 3, "strategy": SAMPLED}, id="sampled"),
        pytest.param("one_column", {"workers": 3, "strategy": PARTITIONED}, id="partitioned features"),
    ],
    default=["2d", "partitioned features"],
)
def test_a_run_from_a_store_equals_the_run_on_the_data_set(
    kind: str, keys: dict[str, Any], data: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root = request.getfixturevalue(kind)
    strategy = keys.get("strategy", FULL)
    found = train(tmp_path / "store", root, strategy=strategy)
    assert bits(found) == bits(train(tmp_path / "data", data, **keys))
    assert not (tmp_path / "store/prepared").exists()


def test_a_store_without_a_graph_serves_a_strategy_that_reads_one(
    data: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = cut(tmp_path / "parts", data, workers=2)
    found = train(tmp_path / "store", root, strategy=SAMPLED)
    assert "all parts are read for a strategy that reads the whole graph" in capfd.readouterr().out
    assert bits(found) == bits(train(tmp_path / "data", data, workers=2, strategy=SAMPLED))


LINKS: dict[str, Any] = {"task": "link_prediction", "features": {"scale": "standard"}, "input_rows": "dense"}


@pytest.mark.exhaustive
@few(
    ("shape", "model"),
    [
        pytest.param({"inputs": "learned", "embedding": 8}, {"name": "rgcn", "hidden": 8}, id="learned rows and types"),
        pytest.param({"inputs": "degree"}, {"name": "gat", "hidden": 8, "heads": 2}, id="degrees and edge features"),
        pytest.param(LINKS, "gcn", id="edges to predict"),
    ],
    default=["learned rows and types"],
)
def test_what_shapes_the_parts_comes_with_the_store(
    shape: dict[str, Any], model: Any, tmp_path: Path, data: dict[str, str]
) -> None:
    shaped = {key: value for key, value in shape.items() if key != "embedding"}
    graph = rich_graph()
    if "features" in shape:
        data = {**data, "root": str(tmp_path / "dense")}
        Graph(graph.csc, np.asarray(graph.features), graph.labels, graph.split, node_ids=graph.node_ids).save(
            tmp_path / "dense"
        )
    root = cut(tmp_path / "cut", data, partition="2d", workers=4, **shaped)
    own = {"embedding": 8} if "embedding" in shape else {}
    found = train(tmp_path / "store", root, model=model, **own)
    assert bits(found) == bits(train(tmp_path / "data", data, partition="2d", workers=4, model=model, **shape))


@pytest.mark.exhaustive
def test_trained_models_verify_predict_and_test_from_a_store(store: Path, data: dict[str, str], tmp_path: Path) -> None:
    run = train(tmp_path / "run", store)
    keys = {"comm": "threads", "threads": 1, "report": False}
    verified = train(tmp_path / "verify", store, job="verify", trainer={}, logger="none")
    assert verified["verified"]
    assert verified["reference"] == "one rank with the whole graph"
    for dataset in (None, {"name": "store", "root": str(store)}, data):
        folder = tmp_path / f"test {dataset and dataset['name']}"
        given = {} if dataset is None else {"dataset": dataset}
        tested = gnnkit.predict(tmp_path / "run", job="test", folder=folder, **keys, **given)
        assert tested["test_accuracy"] == run["test_accuracy"], dataset
        np.testing.assert_array_equal(np.load(folder / "predictions.npy"), np.load(tmp_path / "run/predictions.npy"))
    more = {**FAST, "trainer": {"max_epochs": 3, "resume": str(tmp_path / "run")}}
    resumed = gnnkit.train(dataset={"name": "store", "root": str(store)}, strategy=FULL, folder=tmp_path / "on", **more)
    whole = train(tmp_path / "whole", data, partition="2d", workers=4, trainer={"max_epochs": 3})
    assert bits(resumed)[2:] == bits(whole)[2:]


@pytest.mark.exhaustive
def test_other_layouts_of_a_store_are_planned(
    store: Path, data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "can_try", lambda _: False)  # no trial, as only words are compared
    keys = {"job": "plan", "workers": 2, "partition": "hash", "trainer": {}, "logger": "none"}
    found = train(tmp_path / "store", store, **keys)
    words = [plan["layouts"]["chosen"]["words"] for plan in (found, train(tmp_path / "data", data, **keys))]
    assert words[0] == words[1]


@few("partition", ["auto", "hash"], default=["hash"])
def test_the_same_job_again_does_nothing_and_says_so(
    partition: str,
    tmp_path: Path,
    data: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, keys = tmp_path / "cut", {"partition": partition, "workers": 2}
    cut(root, data, **keys)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    monkeypatch.setattr(gnnkit.jobs.store_jobs, "run_in_child", None)  # cuts nothing
    again = gnnkit.train(job="partition", dataset=data, folder=root, strategy="auto", **keys)
    assert f"{root} holds this store already, and its data are unchanged" in capfd.readouterr().out
    assert (again["num_nodes"], again.folder) == (N, root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    with pytest.raises(UserError, match="it holds a run"):
        cut(root, data, **{**keys, "workers": 3})
    os.utime(Path(data["root"]) / "labels.npy")
    with pytest.raises(UserError, match="it holds a run"):
        cut(root, data, **keys)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="it holds files that are not a run's"):
        cut(tmp_path / "mine", data, **keys)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"workers": 8}, r"workers=8 must be auto or a whole number, of processes that hold parts, from 1 to 4"),
        (
            {"partition": {"name": "hash", "grid": "2d"}},
            r"partition=hash: the store .* was cut with partition=contiguous",
        ),
        ({"partition": "3d"}, r"partition\.grid=3d: the store .* was cut with partition\.grid=2d"),
        ({"task": "link_prediction"}, r"task=link_prediction: the store .* was cut with task=node_classification"),
        ({"inputs": "degree"}, r"inputs=degree: the store .* was cut with inputs=features"),
        (
            {"job": "partition", "partition": "2d"},
            r"job=import supports only partition.grid=1d, job=partition of the data set itself does so in memory",
        ),
        (
            {"job": "partition", "partition": "1d", "inputs": "degree"},
            r"inputs=degree: the store .* was written with inputs=features, and keeps it when partitioned again",
        ),
    ],
)
def test_a_run_of_other_parts_is_refused(keys: dict[str, Any], message: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", store, **({"trainer": {}, "logger": "none"} if "job" in keys else {}), **keys)
    assert not (tmp_path / "run").exists()


def test_a_graph_that_nothing_trains_on_is_measured_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], store: Path
) -> None:
    graph = rich_graph()
    numbers = Graph(graph.csc, graph.features, np.linspace(0, 1, N), graph.split)
    gnnkit.train(numbers, job="partition", workers=2, strategy="auto", folder=tmp_path / "cut")
    assert "store: none is written, as no run would read it: task=node_classification" in capfd.readouterr().out
    assert (tmp_path / "cut/partition/node_rank.npy").exists()
    with pytest.raises(
        UserError,
        match=r"does not contain a complete store, because store\.json is missing: write one with job=partition",
    ):
        train(tmp_path / "run", tmp_path / "cut")


def test_a_damaged_store_is_named(store: Path, tmp_path: Path) -> None:
    def broken(name: str, content: bytes | None) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(store, tmp_path / "copy")
        if content is None:
            (tmp_path / "copy" / name).unlink()
        else:
            (tmp_path / "copy" / name).write_bytes(content)
        with pytest.raises(UserError) as caught:
            train(tmp_path / "run", tmp_path / "copy")
        return str(caught.value)

    whole, manifest = (store / "parts/1/labels.npy").read_bytes(), json.loads((store / "store.json").read_bytes())
    assert "parts/1/labels.npy: No such file" in broken("parts/1/labels.npy", None)
    assert "parts/1/labels.npy: it has 5 bytes of" in broken("parts/1/labels.npy", whole[:5])
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    assert "parts/1/labels.npy: its bytes have changed" in broken("parts/1/labels.npy", flipped)
    assert "does not contain a complete store, because store.json is missing" in broken("store.json", None)
    assert "store.json: it is not JSON" in broken("store.json", b'{"format"')
    assert "store.json is not a store's manifest" in broken("store.json", b"[]")
    older = json.dumps({**manifest, "version": 0}).encode()
    assert "the store has format 0, but this gnnkit reads 4: write it again" in broken("store.json", older)
    changed = json.dumps({**manifest, "counts": {}}).encode()
    assert "store.json: its numbers have changed" in broken("store.json", changed)


def test_damage_in_a_large_file_is_seen_by_verify(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_SMALL", 0)  # all files are large
    shutil.copytree(store, tmp_path / "copy")
    path = tmp_path / "copy/parts/1/labels.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"parts/1/labels.npy: its bytes have changed"):
        train(tmp_path / "verify", tmp_path / "copy", job="verify")
    path.write_bytes(whole)
    assert train(tmp_path / "whole", tmp_path / "copy", job="verify")["verified"]


def test_a_store_of_one_worker_keeps_the_line_on_its_graph(
    data: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = cut(tmp_path / "store", data, strategy=SAMPLED, workers=1, partition="1d")
    capfd.readouterr()
    train(tmp_path / "run", root, strategy=SAMPLED, workers=1)
    lines = "".join(capfd.readouterr()).splitlines()
    (origin,) = [number for number, line in enumerate(lines) if line.startswith(f"store: {root}")]
    assert "nodes, " in lines[origin + 1]
    assert (
        lines[origin + 2]
        == f"strategy={SAMPLED}: every rank reads the whole graph, and evaluates the nodes that it owns"
    )


@pytest.mark.exhaustive
def test_a_rank_opens_its_own_part_and_the_launching_process_the_manifest(store: Path, tmp_path: Path) -> None:
    keys = [f"strategy={FULL}", "dataset=store", f"dataset.root={store}", "comm=gloo", "threads=1", "report=false"]
    keys += ["types=ignore", "trainer.max_epochs=1", "logger=none", f"output={tmp_path}/run"]

    def traced() -> None:
        log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def opened(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and str(path := arguments[0]).startswith(str(store)):
                os.write(log, f"{os.environ.get('RANK', 'launcher')} {path}\n".encode())

        sys.addaudithook(opened)
        raise SystemExit(contextvars.Context().run(main, keys))

    with forked(traced, tmp_path) as program:
        code, text = program.ended()
    assert code == 0, text
    assert "no graph is read" in text
    found: dict[str, set[str]] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        who, _, path = line.partition(" ")
        name = Path(path).relative_to(store)
        found.setdefault(who, set()).add(name.parts[1] if name.parts[0] == "parts" else name.name)
    own = {str(rank): {str(rank)} for rank in range(4)}  # a fork has the manifest that was read before
    assert found == {"launcher": {"store.json", "node_ids.npy", "pairs"}, **own}


def test_the_command_takes_partition_and_workers_of_the_store(store: Path, tmp_path: Path) -> None:
    keys = [f"strategy={FULL}", "dataset=store", f"dataset.root={store}", "comm=threads", "trainer.max_epochs=1"]
    keys += ["types=ignore"]
    assert main([*keys, "partition=auto", "report=false", "logger=none", f"output={tmp_path}/run"]) == 0
    result = json.loads((tmp_path / "run/result.json").read_bytes())
    assert (result["grid"], result["world_size"], result["nodes"]) == ([2, 2, 1], 4, "contiguous")
