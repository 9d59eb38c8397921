"""A run that has learned nothing says so at its end, and no other run does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.ranks import on_ranks
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph
from gnnkit.jobs import figures
from gnnkit.partition import Grid
from gnnkit.task import Task
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression
from gnnkit.training import monitor
from tests.cases import few
from tests.runs import BARE

N, EPOCHS = 120, 12
SPLIT = (1 + np.arange(N) % 3).astype(np.int8)
TASKS: dict[str, tuple[Any, str]] = {  # the task, and the figure that shows that nothing was learned
    "node_classification": ("node_classification", "train_accuracy"),
    "weighted classes": ({"name": "node_classification", "class_weights": "balanced"}, "train_macro_f1"),
    "multilabel": ("multilabel", "train_micro_f1"),
    "regression": ("regression", "train_rmse"),
    "absolute errors": ({"name": "regression", "loss": "absolute"}, "train_mae"),
    "link_prediction": ({"name": "link_prediction", "width": 8, "eval_negatives": 20}, "val_roc_auc"),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "vertex_centric": {"strategy": "vertex_centric"},
    "stale rows": {"strategy": "vertex_centric", "exchange": "pipelined"},
    "supersteps": {"strategy": {"name": "vertex_centric", "local_iterations": 4}},
    "preset_workload": {"strategy": "preset_workload"},
    "individual_sample": {"strategy": {"name": "individual_sample", "batch_size": 40}, "sampler": "full"},
    "joint_sample": {"strategy": {"name": "joint_sample", "batch_size": 40}, "sampler": "full"},
}


class Constant(nn.Module):
    """A model that gives every node the same outputs."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        return self.bias.expand(adjacencies[0].num_dst, -1)


def make_graph(task: str) -> Graph:
    """Makes a graph of four groups of nodes, which features, edges and labels show."""
    rng = np.random.default_rng(0)
    group = np.arange(N) // 3 % 4
    src = rng.integers(0, N, 1500)
    dst = rng.integers(0, N, 1500)
    within = group[src] == group[dst]
    labels: Any = group
    if task == "multilabel":
        labels = np.eye(4, dtype=bool)[group] | np.eye(4, dtype=bool)[(group + 1) % 4]
    elif task in ("regression", "absolute errors"):
        labels = 100.0 * group
    return Graph.from_edges(
        src[within],
        dst[within],
        N,
        features=np.eye(4)[group] + 0.1 * rng.normal(size=(N, 4)),
        labels=None if task == "link_prediction" else labels,
        split=None if task == "link_prediction" else SPLIT,
    ).symmetrize()


@pytest.fixture(autouse=True)
def few_steps_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "MIN_STEPS", EPOCHS)


def run(folder: Path, task: str, **keys: Any) -> Any:
    chosen: dict[str, Any] = {"workers": 2, "comm": "threads", "threads": 1, "model": "gcn", **BARE, **keys}
    trainer = {"max_epochs": EPOCHS, "lr": 0.1, "checkpoint": False, **chosen.pop("trainer", {})}
    return gnnkit.train(make_graph(task), task=TASKS[task][0], trainer=trainer, folder=folder / "run", **chosen)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("task", TASKS, default=("absolute errors",))
def test_a_run_that_learns_nothing_says_so_for_every_task(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lazy = run(tmp_path / "lazy", task, strategy="vertex_centric", model=Constant)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "has learned nothing" in line]
    assert line == f"gnnkit: warning: {lazy['learned_nothing']}"
    assert f"after {EPOCHS} epochs ({EPOCHS} steps): {TASKS[task][1]}=" in line
    good = run(tmp_path / "good", task, strategy="vertex_centric")
    assert good["learned_nothing"] is None
    assert "has learned nothing" not in capfd.readouterr().err


@pytest.mark.slow
@few("strategy", STRATEGIES, default=("supersteps",))
def test_a_run_that_learns_nothing_says_so_under_every_strategy(
    strategy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = STRATEGIES[strategy]
    lazy = run(tmp_path / "lazy", "node_classification", **keys, trainer={"lr": 1e-12, "optimizer": "sgd"})
    assert "train_accuracy=0" in lazy["learned_nothing"]
    assert "where the most frequent class for every node gives 0.25" in lazy["learned_nothing"]


@pytest.mark.slow
@pytest.mark.exhaustive
@few("strategy", STRATEGIES, default=("joint_sample",))
def test_a_run_that_learns_is_not_warned_of_under_any_strategy(strategy: str, tmp_path: Path) -> None:
    keys = STRATEGIES[strategy]
    good = run(tmp_path / "good", "node_classification", **keys)
    assert good["learned_nothing"] is None, dict(good)


@pytest.mark.parametrize(("steps", "accuracy", "warns"), [(49, 0.25, False), (50, 0.25, True), (50, 0.4, False)])
def test_few_steps_and_little_skill_are_no_alarm(
    steps: int, accuracy: float, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    measured, baseline = {"train_accuracy": accuracy}, {"train_accuracy": 0.25}
    assert (monitor.learned_nothing(NodeClassification(), measured, baseline, 7, steps) is not None) == warns


@pytest.mark.slow
def test_a_run_that_learns_nothing_says_so_after_a_third_of_the_epochs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "MIN_STEPS", 1)
    trainer = {"lr": 1e-12, "optimizer": "sgd", "max_epochs": 6, "check_val_every_n_epoch": 1}
    run(tmp_path / "lazy", "node_classification", strategy="vertex_centric", trainer=trainer)
    said = re.findall(r"has learned nothing after (\d) epochs", capfd.readouterr().err)
    assert said == ["2", "6"]


CHANCE: list[tuple[Task, Any, dict[str, float]]] = [
    (NodeClassification(), np.repeat([0, 1, 2], [60, 40, 20]), {"train_accuracy": 0.5}),
    (NodeClassification("balanced"), np.repeat([0, 1, 2], [60, 40, 20]), {"train_macro_f1": 2 / 3 / 3}),
    (NodeClassification(), np.repeat([0, 1], [90, 30]), {"train_accuracy": 0.75, "train_roc_auc": 0.5}),
    (Multilabel(), np.eye(3, dtype=bool)[np.repeat([0, 1, 2], [90, 20, 10])], {"train_micro_f1": 0.75}),
    (Regression(), np.repeat([0.0, 4.0], 60), {"train_rmse": 2.0}),
    (Regression("absolute", "none"), np.repeat([0.0, 4.0], [90, 30]), {"train_mae": 1.5}),
    (Regression(), np.repeat([[0.0, 4.0], [np.nan, 8.0]], 60, axis=0), {"train_rmse": (4 * 120 / 180) ** 0.5}),
    (LinkPrediction(width=3), None, {"val_roc_auc": 0.5, "test_roc_auc": 0.5}),
]


@pytest.mark.parametrize(("task", "labels", "expected"), CHANCE)
def test_chance_is_the_figure_of_the_best_constant_on_any_number_of_ranks(
    task: Task, labels: Any, expected: dict[str, float]
) -> None:
    src, dst = np.random.default_rng(0).integers(0, N, (2, 300))
    split = None if labels is None else np.ones(N, np.int8)
    graph, links = task.prepare(Graph.from_edges(src, dst, N, features=np.eye(N), labels=labels, split=split))
    width = task.num_outputs(graph.num_classes)
    outputs = torch.randn(N, width, dtype=torch.float64)

    def work(worker: Any) -> dict[str, float]:
        task.begin(worker)
        return task.chance(outputs[torch.from_numpy(worker.owned.astype(np.int64))], worker)

    for grid in (Grid(1, 1, 1), Grid(3, 1, 1)):
        for found in on_ranks(graph, grid, work, rows=links):
            assert {name: found[name] for name in expected} == pytest.approx(expected)


def rare_graph(rare: int, split: np.ndarray) -> Graph:
    """Returns a graph with a feature that ranks one node in 20 highest."""
    rng = np.random.default_rng(0)
    labels = np.full(400, 1 - rare)
    labels[:20] = rare
    features = rng.normal(size=(400, 4)) + 1.5 * (labels == rare)[:, None]
    src = np.arange(400)
    return Graph.from_edges(src, src, 400, features=features, labels=labels, split=split, class_names=["no", "yes"])


@pytest.mark.slow
@few(("rare", "metric"), [(1, "val_average_precision"), (0, "val_average_precision")], default=1)
def test_a_rare_class_is_ranked_and_its_absence_from_predictions_is_reported(
    rare: int, metric: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = rare_graph(rare, (1 + np.arange(400) % 3).astype(np.int8))
    keys = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", **BARE}
    trainer = {"max_epochs": 60, "lr": 0.05}
    good = gnnkit.train(graph, folder=tmp_path / "good", model="sage", trainer=trainer, **keys)
    assert good["best_value"] == pytest.approx(good[metric])
    lazy = gnnkit.train(graph, folder=tmp_path / "lazy", model=Constant, trainer=trainer, **keys)
    common = ("no", "yes")[1 - rare]
    assert lazy["one_class"].startswith(f"the model predicts the class {common} for every node of the splits, 95.0 %")
    assert f"gnnkit: warning: {lazy['one_class']}" in capfd.readouterr().err


@pytest.mark.slow
def test_a_rare_class_without_validation_nodes_is_not_ranked(tmp_path: Path) -> None:
    split = np.where(np.arange(400) < 20, 1, 1 + np.arange(400) % 3).astype(np.int8)
    keys = {"strategy": "vertex_centric", "model": "sage", "workers": 1, "comm": "threads", **BARE}
    result = gnnkit.train(rare_graph(1, split), folder=tmp_path / "run", trainer={"max_epochs": 10}, **keys)
    assert result["best_value"] == pytest.approx(result["val_accuracy"])


@pytest.mark.parametrize(
    ("train", "test", "warns"),
    [([[5, 0], [2, 0]], [[4, 0], [1, 0]], True), ([[5, 0], [2, 0]], [[4, 0], [0, 1]], False),
     ([[5, 0], [0, 0]], [[4, 0], [0, 0]], False)],
)  # fmt: skip
def test_one_class_is_reported_if_the_nodes_have_two(train: Any, test: Any, warns: bool) -> None:
    confusion = {"classes": ["a", "b"], "train": train, "test": test}
    assert (figures._single_class(confusion, "node") is not None) == warns
    assert figures._single_class(None, "node") is None
