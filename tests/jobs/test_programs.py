"""Programs as jobs: the same command, launcher, reports and errors as training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import gnnkit
from gnnkit.graph import Graph, Split
from gnnkit.model.base import Nodes, Program
from tests.cases import few
from tests.jobs.test_train import open_files
from tests.runs import BARE

N = 24


class Reach(Program):
    """Whether a path leads to a node from one that has features."""

    def start(self, nodes: Nodes) -> torch.Tensor:
        return (nodes.features.abs().sum(1, keepdim=True) > 0).to(nodes.adjacency.in_degree.dtype)

    def step(self, x: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        return nodes.adjacency.aggregate(x, reduce="max").maximum(x)


def make_graph(*, split: bool = True) -> Graph:
    """Makes a directed path. Only the first node has a feature, and may train."""
    ids = np.arange(N - 1)
    splits = np.full(N, Split.TEST, np.int8)
    splits[0] = Split.TRAIN
    features = np.eye(N, 1)
    return Graph.from_edges(
        ids, ids + 1, N, features=features, labels=np.ones(N, np.int64), split=splits if split else np.zeros(N, np.int8)
    )


def run(folder: Path, model: Any, *overrides: str, graph: Graph | None = None, **keys: Any) -> dict[str, Any]:
    chosen = {"comm": "threads", "workers": 4, "threads": 1, "trainer": {"precision": 64}, **BARE, **keys}
    return gnnkit.train(
        graph or make_graph(),
        strategy="vertex_centric",
        model=model,
        overrides=overrides,
        folder=folder / "run",
        **chosen,
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_processes_write_pagerank_in_the_data_sets_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = {"name": "pagerank", "tolerance": 1e-12, "damping": 0.5}
    partition = {"name": "2d", "nodes": "hash"}
    result = run(tmp_path, model, graph=make_graph(split=False), comm="gloo", partition=partition)
    expected = nx.pagerank(nx.path_graph(N, nx.DiGraph), 0.5, tol=1e-15)
    values = np.load(tmp_path / "run/values.npy")
    np.testing.assert_allclose(values, [expected[v] for v in range(N)], rtol=0, atol=1e-11)
    assert json.loads((tmp_path / "run/result.json").read_text()) == result
    assert result["converged"]
    assert result["residual"] <= 1e-12
    assert result["words_gathered"] + result["words_reduced"] > 0
    assert not (tmp_path / "run/prepared").exists()
    assert "Warning" not in capfd.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    assert [(line["step"], line["rank"]) for line in lines] == [
        (step, rank) for step in range(1, result["iterations"] + 1) for rank in range(4)
    ]
    assert lines[-1]["residual"] == result["residual"]


@pytest.mark.slow
def test_label_propagation_reports_accuracy_and_what_it_did_not_reach(tmp_path: Path) -> None:
    result = run(tmp_path, {"name": "label_propagation", "tolerance": 1e-9, "max_iterations": 7})
    values, predictions = np.load(tmp_path / "run/values.npy"), np.load(tmp_path / "run/predictions.npy")
    assert values.shape == (N, 2)
    assert (values[:8, 1] > 0).all()
    assert not values[8:].any(), "seven steps reach seven nodes beyond the first"
    np.testing.assert_array_equal(predictions, np.arange(N) < 8)
    assert (result["train_accuracy"], result["test_accuracy"], result["val_accuracy"]) == (1, 7 / (N - 1), None)
    assert (result["iterations"], result["converged"]) == (7, False)


@pytest.mark.slow
@few("partition", ["1d", "3d"], default=("1d",))
def test_a_program_of_ones_own_runs_to_its_end(tmp_path: Path, partition: str) -> None:
    result = run(tmp_path, Reach(tolerance=0), partition=partition)
    assert np.load(tmp_path / "run/values.npy").tolist() == [1] * N
    assert (result["model"], result["iterations"], result["residual"]) == ("Reach", N, 0)


class BreaksOff(Reach):
    """A program whose second step fails."""

    steps = 0

    def step(self, x: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        self.steps += 1
        if self.steps > 1:
            raise RuntimeError("broken off")
        return super().step(x, nodes)


@pytest.mark.slow
def test_a_program_that_is_broken_off_leaves_no_file_open(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken off"):
        run(tmp_path, BreaksOff())
    assert open_files(tmp_path) == []
    assert (tmp_path / "run/workers.jsonl").read_text().count("\n") == 4


@pytest.mark.slow
@few("model", ["pagerank", "label_propagation"], default=("label_propagation",))
def test_programs_are_verified_against_one_process(tmp_path: Path, model: str) -> None:
    result = run(tmp_path, model, "job=verify", partition="2d")
    assert result["verified"]
    assert list(result["largest_difference"]) == ["values"]


class Uneven(Program):
    """A program that breaks a promise: values depend on the rank."""

    def start(self, nodes: Nodes) -> torch.Tensor:
        return torch.full_like(nodes.features, nodes.comm.rank + 1)

    def step(self, x: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        return x.clone()


@pytest.mark.slow
def test_a_program_that_depends_on_the_layout_is_found(tmp_path: Path) -> None:
    assert not run(tmp_path, Uneven, "job=verify")["verified"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy.local_iterations=2"], r"model=pagerank is a program .* strategy\.local_iterations=1"),
        (["trainer.resume=last.json"], r"trainer\.resume=last\.json: programs have no checkpoints"),
        (["model.damping=1"], r"model\.damping=1 must be a number of at least 0 and below 1"),
    ],
)
def test_what_programs_cannot_do_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path, "pagerank", *overrides)


@pytest.mark.slow
def test_a_plan_of_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="job=plan counts steps of training, and model=pagerank is a program: run it"):
        run(tmp_path, "pagerank", "job=plan", partition="2d")


@pytest.mark.slow
def test_label_propagation_without_training_nodes_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dataset: no labelled node is in the training split"):
        run(tmp_path, "label_propagation", graph=make_graph(split=False), comm="gloo", workers=2)
