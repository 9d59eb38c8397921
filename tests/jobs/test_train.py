"""Whole runs: real processes, real backends, real files."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gnnkit
from gnnkit import plugins
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.graph import CSC, Graph
from gnnkit.training import checkpoint
from tests.cases import exhaustive
from tests.forked import Forked, forked
from tests.ports import free_port
from tests.processes import listening
from tests.runs import BARE
from tests.waiting import GUARD, wait_until

QUICK = {"max_epochs": 2}

KEYS = [
    "strategy",
    "partition",
    "nodes",
    "grid",
    "world_size",
    "dataset",
    "model",
    "epochs",
    "train_loss",
    "val_accuracy",
    "test_accuracy",
    "seconds_per_epoch",
    "words_gathered",
    "words_reduced",
    "bytes_sent",
    "balance",
    "versions",
    "seed",
]


def small_graph(num_nodes: int = 60) -> Graph:
    """Three classes that the features tell apart, more edges within than between."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, num_nodes)
    src, dst = rng.integers(0, num_nodes, (2, 6 * num_nodes))
    kept = (labels[src] == labels[dst]) | (rng.random(len(src)) < 0.2)
    csc = CSC.from_edges(np.r_[src[kept], dst[kept]], np.r_[dst[kept], src[kept]], num_nodes)
    features = np.eye(3, 8, dtype=np.float32)[labels] + rng.standard_normal((num_nodes, 8)).astype(np.float32)
    split = rng.choice(np.array([1, 2, 3], np.int8), num_nodes, p=[0.4, 0.2, 0.4])
    return Graph(csc, features, labels, split)


def train(tmp_path: Path, name: str = "run", **keys: Any) -> tuple[dict[str, Any], Path]:
    trainer = {"max_epochs": 8, "precision": 64, **keys.pop("trainer", {})}
    keys = {**BARE, **keys}
    result = gnnkit.train(small_graph(), strategy="vertex_centric", trainer=trainer, folder=tmp_path / name, **keys)
    return result, tmp_path / name


@pytest.mark.slow
def test_a_run_leaves_result_predictions_checkpoint_and_states(tmp_path: Path) -> None:
    result, folder = train(
        tmp_path, partition="2d", workers=4, comm="threads", logger=["csv", "tensorboard"], report=True
    )
    assert json.loads((folder / "result.json").read_text()) == result
    assert [key for key in KEYS if key not in result] == []
    assert result["grid"] == [2, 2, 1]
    assert result["test_accuracy"] > 0.6
    predictions, graph = np.load(folder / "predictions.npy"), small_graph()
    assert predictions.shape == (graph.num_nodes,)
    tested = graph.split == 3
    assert (predictions == graph.labels)[tested].mean() == pytest.approx(result["test_accuracy"])
    state = checkpoint.load(folder / "checkpoints/last.json")
    assert state["epoch"] == 8
    assert torch.isfinite(state["state_dict"]["model.convs.0.weight"]).all()
    lines = [json.loads(line) for line in (folder / "workers.jsonl").read_text().splitlines()]
    assert [line["rank"] for line in lines[:4]] == [0, 1, 2, 3]
    assert len(lines) == 8 * 4
    assert sum(line["loss"] for line in lines[-4:]) == pytest.approx(result["train_loss"])
    assert all(line["memory"] > 0 and line["seconds_compute"] > 0 for line in lines)
    assert not (folder / "shards").exists()
    assert list((folder / "tensorboard").rglob("events*"))
    assert "val_accuracy" in (folder / "csv/metrics.csv").read_text() or result["epochs"] < 10


@pytest.mark.slow
@pytest.mark.exhaustive
def test_processes_threads_and_one_process_train_the_same_model(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"model": "sage", "threads": 1, "trainer": {"max_epochs": 3}}
    single, _ = train(tmp_path, "one", workers=1, comm="threads", **usual)
    for name, keys in {
        "gloo": {"workers": 3, "partition": {"name": "1d", "nodes": "hash"}},
        "equal": {"workers": 3, "comm": "threads", "partition": {"name": "1d", "nodes": "hash"}},
        "threads": {"workers": 5, "comm": "threads", "partition": "3d"},
    }.items():
        result, _ = train(tmp_path, name, **usual, **keys)
        assert result["train_loss"] == pytest.approx(single["train_loss"], rel=1e-10)
        assert result["test_accuracy"] == single["test_accuracy"]
    gloo, equal = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("gloo", "equal"))
    assert gloo == equal, "sums are in rank order"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_products_in_bfloat16_converge_with_parameters_of_32_bits(tmp_path: Path) -> None:
    def trained(precision: int | str) -> tuple[dict[str, Any], Any]:
        chosen = {"precision": precision, "max_epochs": 20}
        keys: dict[str, Any] = {"workers": 2, "comm": "threads", "model": {"name": "sage", "hidden": 32}}
        result, folder = train(tmp_path, f"run{precision}", trainer=chosen, **keys)
        return result, checkpoint.load(folder / "checkpoints/last.json")["state_dict"]

    (exact, _), (rounded, parameters) = trained(32), trained("bf16-mixed")
    assert rounded["test_accuracy"] == pytest.approx(exact["test_accuracy"], abs=0.1)
    assert rounded["train_loss"] == pytest.approx(exact["train_loss"], rel=0.2)
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    if rounds_products():
        assert rounded["train_loss"] != exact["train_loss"]


def rounds_products() -> bool:
    """Whether torch rounds the factors of products on this processor where it may."""
    a, b = torch.full((512, 512), 1 + 2.0**-10), torch.ones(512, 512)
    torch.set_float32_matmul_precision("medium")
    try:
        return float((a @ b)[0, 0]) == 512
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_sampled_batches_in_bfloat16_converge_the_same_on_one_and_two_ranks(tmp_path: Path) -> None:
    def trained(precision: int | str, workers: int) -> dict[str, Any]:
        chosen = {"precision": precision, "max_epochs": 8, "checkpoint": False}
        keys: dict[str, Any] = {"workers": workers, "comm": "threads", "model": {"name": "sage", "hidden": 32}}
        size = 32 // workers
        return gnnkit.train(
            small_graph(),
            strategy={"name": "individual_sample", "batch_size": size},
            sampler={"name": "neighbor", "fanouts": [5, 5]},
            trainer=chosen,
            folder=tmp_path / f"run{precision}-{workers}",
            **BARE,
            **keys,
        )

    exact, one, two = trained(32, 1), trained("bf16-mixed", 1), trained("bf16-mixed", 2)
    assert one["test_accuracy"] == pytest.approx(exact["test_accuracy"], abs=0.1)
    assert one["train_loss"] == pytest.approx(exact["train_loss"], rel=0.2)
    assert one["train_loss"] != exact["train_loss"]
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=0.1)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_more_workers_than_nodes_is_no_special_case(tmp_path: Path) -> None:
    rows = np.arange(3)
    graph = Graph(
        CSC.from_edges(rows, (rows + 1) % 3, 3), np.eye(3, dtype=np.float32), rows, np.array([1, 2, 3], np.int8)
    )
    result = gnnkit.train(
        graph,
        strategy="vertex_centric",
        partition="1d",
        workers=4,
        comm="threads",
        trainer={"max_epochs": 2},
        folder=tmp_path / "run",
        **BARE,
    )
    assert np.isfinite(result["train_loss"])


@pytest.mark.parametrize("broken", ["cut short", "flipped", "missing tensors"])
def test_a_broken_checkpoint_is_named(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "state.json"
    checkpoint.save({"x": torch.ones(3), 7: (1, [2.5, None, "a"])}, path)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.pop("x"), torch.ones(3))
    assert loaded == {7: (1, [2.5, None, "a"])}
    tensors = next(tmp_path.glob("state-*.safetensors"))
    if broken == "cut short":
        path.write_bytes(path.read_bytes()[:-20])
    elif broken == "flipped":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    else:
        tensors.unlink()
    with pytest.raises(ValueError, match=r"checkpoint .*state\.json"):
        checkpoint.load(path)


def long(tmp_path: Path, **trainer: Any) -> dict[str, Any]:
    """Trains three ranks until somebody ends the run."""
    trainer = {"max_epochs": 1_000_000, **trainer}
    return gnnkit.train(
        small_graph(400), strategy="vertex_centric", workers=3, folder=tmp_path / "run", trainer=trainer, **BARE
    )


def ranks_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(text) for text in found.stdout.split()]


def started(program: Forked, folder: Path) -> list[int]:
    """Waits until all ranks train, and returns the process ids."""
    steps = folder / "workers.jsonl"
    wait_until(lambda: steps.exists() and steps.read_text(), alive=lambda: program.poll() is None)
    return ranks_of(program.pid)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_listen_on_loopback_only_never_unpickle_and_when_one_is_killed_it_is_named(tmp_path: Path) -> None:
    def without_pickle() -> None:
        pickle.loads = pickle.load = None  # type: ignore[assignment]
        long(tmp_path)

    with forked(without_pickle, tmp_path) as program:
        ranks = started(program, tmp_path / "run")
        assert len(ranks) == 3
        addresses = listening(ranks)
        os.kill(ranks[1], signal.SIGKILL)
        code, errors = program.ended()
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert code == 1
    assert "rank 1 was ended by SIGKILL" in errors
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_sigterm_leaves_no_process_and_no_half_written_file(tmp_path: Path) -> None:
    with forked(lambda: long(tmp_path, checkpoint_every=1), tmp_path) as program:
        ranks = started(program, tmp_path / "run")
        program.process.terminate()
        code, _ = program.ended()
    assert code == 143
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
    if (tmp_path / "run/checkpoints/last.json").exists():
        checkpoint.load(tmp_path / "run/checkpoints/last.json")
    assert not (tmp_path / "run/prepared").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_that_torchrun_started_join(tmp_path: Path) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def join(rank: int) -> None:
        os.environ.update(place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"})
        gnnkit.train(small_graph(), strategy="vertex_centric", folder=tmp_path / "run", trainer=QUICK, **BARE)

    with contextlib.ExitStack() as stack:
        for rank in range(2):
            (tmp_path / str(rank)).mkdir()
        work = [functools.partial(join, rank) for rank in range(2)]
        programs = [stack.enter_context(forked(work[rank], tmp_path / str(rank))) for rank in range(2)]
        for program in programs:
            code, errors = program.ended()
            assert code == 0, errors
    assert json.loads((tmp_path / "run/result.json").read_text())["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("parts", [exhaustive(None), exhaustive(4)])
def test_a_process_group_of_the_program_stays_and_ranks_meet_in_its_store(tmp_path: Path, parts: int | None) -> None:
    """At a port that the program holds."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def sum_of_ones() -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    def join(rank: int) -> None:
        os.environ.update(place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"})
        dist.init_process_group("gloo", timeout=timedelta(seconds=GUARD))
        keys = {"strategy": "vertex_centric", "parts": parts, "trainer": QUICK, **BARE}
        for number in range(2):
            gnnkit.train(small_graph(), folder=tmp_path / f"run{number}", **keys)
            assert sum_of_ones() == 2
        dist.destroy_process_group()

    with contextlib.ExitStack() as stack:
        for rank in range(2):
            (tmp_path / str(rank)).mkdir()
        work = [functools.partial(join, rank) for rank in range(2)]
        for program in [stack.enter_context(forked(work[rank], tmp_path / str(rank))) for rank in range(2)]:
            code, errors = program.ended()
            assert code == 0, errors
    weights = [(tmp_path / f"run{number}/model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]


class Slow(nn.Module):
    """A network that takes time to make, and draws where training begins."""

    num_layers = 1
    trains: ClassVar[threading.Event] = threading.Event()

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_features, num_classes)
        self.trains.wait(0.25)  # for a rank that trains before all ranks have a model
        self.second = nn.Linear(num_classes, num_classes)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return self.second(adjacencies[0].aggregate(self.first(x)))

    def decayed_parameters(self) -> list[nn.Parameter]:
        torch.rand(1)
        self.trains.set()
        return list(self.parameters())


@pytest.mark.slow
def test_threads_begin_with_equal_parameters_however_long_a_model_takes_to_make(tmp_path: Path) -> None:
    result = gnnkit.train(
        small_graph(),
        strategy="individual_sample",  # the ranks do not meet in the set-up
        model=Slow,
        workers=3,
        comm="threads",
        trainer={"max_epochs": 1, "checkpoint": False},
        overrides=["sampler=neighbor", "sampler.fanouts=[3]"],
        folder=tmp_path / "run",
        **BARE,
    )
    assert result["drift"] == 0


@pytest.mark.slow
def test_ranks_that_were_started_cannot_be_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^comm=threads creates its own ranks, but ranks were started"):
        train(tmp_path, comm="threads")


class Counting(Threads):
    """Somebody's own threads."""

    @classmethod
    def run(cls, function: Any, world_size: int, *, timeout: float = 120.0) -> list[Any]:
        return [{**result, "run_by": cls.__name__} for result in super().run(function, world_size, timeout=timeout)]


@pytest.mark.slow
def test_threads_of_others_start_their_ranks_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = plugins.load
    monkeypatch.setattr(plugins, "load", lambda kind, name: Counting if kind == "comm" else find(kind, name))
    result, _ = train(tmp_path, comm="threads", workers=2, trainer={"max_epochs": 1, "checkpoint": False})
    assert result["run_by"] == "Counting"


def open_files(folder: Path) -> list[str]:
    """Names the files below a folder that this process holds open, garbage included."""
    found = [each for each in gc.get_objects() if type(each) in (io.TextIOWrapper, io.BufferedWriter)]
    return sorted({str(each.name) for each in found if not each.closed and str(each.name).startswith(str(folder))})


class BreaksOff(nn.Module):
    """A network whose second step fails on all ranks."""

    num_layers, steps = 1, 0

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        self.steps += self.training
        if self.steps > 1:
            raise RuntimeError("broken off")
        logits: Tensor = self.linear(x)
        return logits


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_is_broken_off_leaves_no_file_open(tmp_path: Path) -> None:
    """A rank may be a thread of a program that goes on, or torchrun's."""
    threads = threading.active_count()
    keys = {"logger": ["csv", "tensorboard"], "profile": True}
    with pytest.raises(RuntimeError, match="broken off"):
        train(tmp_path, model=BreaksOff, comm="threads", workers=2, **keys)
    assert open_files(tmp_path) == []
    assert threading.active_count() <= threads  # a thread that an earlier test left may end


@pytest.mark.slow
@pytest.mark.parametrize(("model", "reads"), [("sage", False), ("gat", True)])
def test_features_of_edges_that_no_layer_reads_are_named(
    tmp_path: Path, model: str, reads: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = small_graph()
    edges = np.random.default_rng(1).normal(size=(graph.num_edges, 2))
    keys = {"workers": 1, "comm": "threads", "strategy": "vertex_centric", "model": model, "trainer": {"max_epochs": 1}}
    gnnkit.train(replace(graph, edge_features=edges), folder=tmp_path / "run", **keys, **BARE)  # type: ignore[arg-type]
    said = f"model={model} ignores edge features (2 columns)" in capfd.readouterr().err
    assert said != reads


@pytest.mark.slow
@pytest.mark.parametrize(("num_train", "decay"), [(2, 5e-4), (3, 0.0)])
def test_weights_decay_by_default_if_features_far_outnumber_training_nodes(
    num_train: int, decay: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = small_graph()
    split = np.where(np.arange(graph.num_nodes) < num_train, 1, 2).astype(np.int8)
    graph = replace(graph, split=split)
    assert (graph.features.shape[1] >= 4 * num_train) == (decay > 0)
    keys = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", **BARE}
    results = []
    for index, explicit in enumerate([{}, {"weight_decay": decay}, {"weight_decay": 0.1}]):
        trainer = {"max_epochs": 3, "checkpoint": False, **explicit}
        results.append(gnnkit.train(graph, folder=tmp_path / str(index), trainer=trainer, **keys)["train_loss"])
        assert ("trainer.weight_decay=0.0005, because" in capsys.readouterr().out) == (decay > 0 and not explicit)
    assert results[0] == results[1] != results[2]


@pytest.mark.slow
def test_the_last_lines_are_metrics_and_seconds_and_verbose_adds_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def names(name: str, **keys: Any) -> list[str]:
        train(tmp_path, name, comm="threads", workers=2, trainer={"max_epochs": 1}, **keys)
        out = capfd.readouterr()
        return [
            line.split()[0] for line in (out.err + out.out).splitlines() if line.startswith("  ") and line[2] != " "
        ]

    few, all_of_them = names("few"), names("all", verbose=True)
    assert {"test_accuracy", "exact", "seconds_total"} <= {*few}
    assert {"words_gathered", "balance", "versions"} <= {*all_of_them} - {*few}
    assert {*few} <= {*all_of_them}
    assert len(few) < len(all_of_them) / 2
