"""The model computes what scikit-learn does, on any number of workers, in every job."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_boosting import Boosting, trees
from gnnkit_boosting.rounds import COLUMNS_AT_ONCE, make_boosters, splittable
from gnnkit_boosting.trees import GrowingSums, pack, sum_trees

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task import LabelFacts
from gnnkit.testing import check_model
from tests.cases import few

ensemble = pytest.importorskip("sklearn.ensemble")
N = 240
QUICK: dict[str, Any] = {"comm": "threads", "cache": False, "report": False}


class Stub:
    """A task with label statistics only."""

    def __init__(self, loss: str = "squared", **facts: Any) -> None:
        self.loss, self._facts = loss, LabelFacts(**facts)

    def facts(self) -> LabelFacts:
        return self._facts


def table(kind: str) -> Graph:
    """Draws nodes whose label depends on a column and on the neighbours' mean."""
    rng = np.random.default_rng(1)
    x, ends = rng.normal(size=(N, 4)).astype(np.float32), rng.integers(0, N, (2, 6 * N))
    near = np.bincount(ends[1], x[ends[0], 0], N) / np.maximum(np.bincount(ends[1], minlength=N), 1)
    bits = np.stack([x[:, 1] > 0, near > 0, x[:, 2] > 9], 1)
    labels = {
        "classes": bits[:, 0] + bits[:, 1].astype(np.int64),
        "two classes": bits[:, 1].astype(np.int64),
        "sets": bits,
        "numbers": 1000 * (x[:, 1] + 3 * near),
        "columns of numbers": np.stack([x[:, 1], np.where(x[:, 0] > 1, np.nan, near)], 1),
    }[kind]
    edges = rng.normal(size=(6 * N, 2)).astype(np.float32)
    split = 1 + (np.arange(N) % 3).astype(np.int8)
    return Graph.from_edges(*ends, N, features=x, labels=labels, split=split, edge_features=edges)


def train(graph: Graph, folder: Path, **keys: Any) -> Any:
    model = {"name": "boosting", "trees": 30, **keys.pop("model", {})}
    trainer = {"progress_bar": False, "check_val_every_n_epoch": 1, **keys.pop("trainer", {})}
    keys = {**QUICK, "strategy": "vertex_centric", "workers": 1, "logger": "none", **keys}
    return gnnkit.train(graph, model=model, trainer=trainer, folder=folder, **keys)


@pytest.mark.parametrize("kind", ["two classes", "three classes", "numbers", "absolute"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_equal_those_of_scikit_learn(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(400, 6)).round(2).astype(np.float32)  # many equal values, as at thresholds
    rows[rng.random(rows.shape) < 0.1] = np.nan
    score = np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1]) ** 2
    classes = "classes" in kind
    labels = np.digitize(score, [0.5, 2] if kind.startswith("three") else [0.5]) if classes else score
    model = Boosting(6, 3 if kind.startswith("three") else 1 + classes, trees=40, leaves=15).to(dtype)
    task = Stub("absolute" if kind == "absolute" else "squared")
    (booster,) = make_boosters(model, rows, labels, task, 0)
    booster.grow(model, 0, 40)
    model.size.fill_(40)
    outputs = model.base.double() + sum_trees(model.forest, torch.from_numpy(rows).to(dtype))
    name = "HistGradientBoostingClassifier" if classes else "HistGradientBoostingRegressor"
    options = {} if classes else {"loss": f"{task.loss}_error"}
    theirs = getattr(ensemble, name)(max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=0, **options)
    theirs.fit(rows, labels)
    if classes:
        margins = theirs.decision_function(rows).reshape(400, -1)
        np.testing.assert_allclose(outputs[:, -margins.shape[1] :], margins, atol=2e-6)
        np.testing.assert_allclose(outputs.softmax(1), theirs.predict_proba(rows), atol=1e-6)
        np.testing.assert_array_equal(outputs.argmax(1), theirs.predict(rows))
    else:
        np.testing.assert_allclose(outputs[:, 0], theirs.predict(rows), rtol=1e-6, atol=1e-6)


def test_a_value_next_to_a_threshold_goes_the_way_it_goes_in_float64() -> None:
    rows = np.array([[1.0], [np.nextafter(np.float32(1), np.float32(2))]] * 40, np.float32)  # no number between them
    model = ensemble.HistGradientBoostingRegressor(max_iter=1, early_stopping=False).fit(rows, [0.0, 1.0] * 40)
    packed = pack(model._predictors[0][0].nodes, torch.float32, np.arange(1))
    values = model._baseline_prediction.item() + sum_trees(packed[None, None], torch.from_numpy(rows))
    np.testing.assert_allclose(values[:, 0], model.predict(rows), atol=1e-6)
    assert values[0] != values[1]


def test_sums_of_a_growing_forest_are_those_of_the_whole_one() -> None:
    rng, growing = np.random.default_rng(3), GrowingSums()
    rows = rng.normal(size=(2, 90, 3)).astype(np.float32)
    model = Boosting(3, 1, trees=30)
    (booster,) = make_boosters(model, rows[0], rows[0, :, 0] * rows[0, :, 1], Stub(), 0)
    booster.grow(model, 0, 30)
    for size in (10, 20, 30, 20):
        for part in torch.from_numpy(rows):
            torch.testing.assert_close(
                growing(model.forest[:size], part), sum_trees(model.forest[:size], part), rtol=0, atol=0
            )
    model.forest[..., -1] *= 2  # other values of leaves
    torch.testing.assert_close(growing(model.forest, part), sum_trees(model.forest, part), rtol=0, atol=0)


def test_columns_that_no_split_divides_are_left_out_and_change_nothing() -> None:
    rng = np.random.default_rng(4)
    rare, rows = rng.random((400, 300)) < 0.02, rng.normal(size=(400, 5)).astype(np.float32)
    rare[:20, :2] = True  # just enough rows of a leaf
    rows = np.concatenate([rare.astype(np.float32), rows, np.full((400, 1), np.nan, np.float32)], 1)  # one is empty
    rows[20:40, 304] = np.nan
    candidates = splittable(rows)
    assert {0, 1, *range(300, 305)} <= set(candidates.tolist())
    assert len(candidates) < 20
    model, labels = Boosting(rows.shape[1], 1, trees=25), rows[:, 300] + rows[:, 0] * rows[:, 301]
    (booster,) = make_boosters(model, rows, labels, Stub(), 0)
    booster.grow(model, 0, 25)
    theirs = ensemble.HistGradientBoostingRegressor(max_iter=25, early_stopping=False, random_state=0)
    outputs = model.base.double() + sum_trees(model.forest, torch.from_numpy(rows))
    np.testing.assert_allclose(outputs[:, 0], theirs.fit(rows[:, :-1], labels).predict(rows[:, :-1]), atol=1e-5)


@pytest.mark.parametrize("value", [0, np.nan])
def test_a_table_without_a_split_gets_the_constant_of_scikit_learn(value: float) -> None:
    model, labels = Boosting(3, 2, trees=20), np.arange(90) % 3 // 2
    (booster,) = make_boosters(model, np.full((90, 3), value, np.float32), labels, Stub(), 0)
    booster.grow(model, 0, 20)
    outputs = model.base + sum_trees(model.forest, torch.zeros(90, 3))
    torch.testing.assert_close(outputs.softmax(1), torch.tensor([[2 / 3, 1 / 3]]).expand(90, 2).double())


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_trees_of_a_wide_table_choose_from_a_few_columns_and_depend_on_the_seed_only(kind: str) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(120, 3 * COLUMNS_AT_ONCE)).astype(np.float32)
    labels = rows[:, :20].sum(1)
    labels = np.digitize(labels, [-2, 2]) if kind == "classes" else labels

    def grown(seed: int, *sizes: int) -> Boosting:
        model = Boosting(rows.shape[1], 3 if kind == "classes" else 1, trees=30)
        (booster,) = make_boosters(model, rows, labels, Stub(), seed)
        for first, size in zip((0, *sizes), sizes, strict=False):
            booster.grow(model, first, size)
        outputs = model.base.double() + sum_trees(model.forest, torch.from_numpy(rows))
        np.testing.assert_allclose(booster.estimator.outputs, outputs, atol=1e-5)  # what the next trees start from
        return model

    model = grown(0, 10, 20, 30)
    read = [set(trees[..., 0][trees[..., 3] > 0].long().tolist()) for trees in model.forest.split(10)]
    assert len(set.union(*read)) > len(read[0])
    assert all(len(columns) <= COLUMNS_AT_ONCE for columns in read)
    np.testing.assert_array_equal(model.forest, grown(0, 30).forest)  # as a resumed run grows them
    assert not torch.equal(model.forest, grown(1, 30).forest)


def test_no_layout_changes_the_outputs() -> None:
    check_model(lambda width, classes: Boosting(width, classes, edge_width=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("sets", "classes", "two classes", "columns of numbers")), "numbers"]
)  # fmt: skip
def test_workers_jobs_and_a_loaded_model_agree(kind: str, tmp_path: Path) -> None:
    task = {"sets": "multilabel", "numbers": "regression", "columns of numbers": "regression"}
    graph, keys = table(kind), {"task": task.get(kind, "node_classification"), "write": ["predictions", "logits"]}
    runs = [train(graph, tmp_path / str(workers), workers=workers, **keys) for workers in (1, 2)]
    name = next(name for name in ("val_mae", "val_micro_f1", "val_accuracy") if runs[0].get(name) is not None)
    assert [run[name] for run in runs] == pytest.approx([runs[0][name]] * 2)
    logits = [np.load(run.folder / "logits.npy") for run in runs]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
    loaded = gnnkit.load(runs[0].folder)(graph).detach().numpy()
    expected = logits[0] if name != "val_mae" else np.load(runs[0].folder / "predictions.npy").reshape(N, -1)
    np.testing.assert_allclose(loaded, expected, rtol=1e-4, atol=1e-4)  # numbers are in the labels' unit
    tested = gnnkit.predict(runs[0].folder, graph, job="test", folder=tmp_path / "tested", **QUICK)
    assert tested[name.replace("val", "test")] == pytest.approx(runs[0][name.replace("val", "test")])
    predicted = gnnkit.predict(runs[1].folder, graph, folder=tmp_path / "predicted", **QUICK)
    first, second = (np.load(run.folder / "predictions.npy") for run in (runs[0], predicted))
    np.testing.assert_allclose(first, second, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
@pytest.mark.exhaustive
def test_workers_that_are_processes_train_the_same_trees(workers: int, tmp_path: Path) -> None:
    graph = table("two classes")
    runs = [train(graph, tmp_path / comm, workers=workers, comm=comm) for comm in ("threads", "gloo")]
    assert runs[0]["val_loss"] == pytest.approx(runs[1]["val_loss"], rel=1e-5)


@pytest.mark.slow
def test_a_resumed_run_has_the_trees_of_an_unbroken_one(tmp_path: Path) -> None:
    graph = table("numbers")
    keys = {"task": "regression", "write": ["logits"]}
    whole = train(graph, tmp_path / "whole", **keys)
    train(graph, tmp_path / "half", trainer={"max_epochs": 1}, **keys)
    resumed = train(graph, tmp_path / "rest", trainer={"resume": str(tmp_path / "half")}, **keys)
    logits = [np.load(run.folder / "logits.npy") for run in (whole, resumed)]
    np.testing.assert_array_equal(*logits)
    assert resumed["stopped"] == "ended after epoch 3: all trees have grown, model.trees=30"


@pytest.mark.slow
def test_validation_selects_the_number_of_trees(tmp_path: Path) -> None:
    graph = table("two classes")
    noisy = np.where(np.random.default_rng(3).random(N) < 0.3, 1 - graph.labels, graph.labels)
    graph = replace(graph, labels=noisy)
    run = train(
        graph, tmp_path / "run", model={"trees": 100}, trainer={"monitor": "val_loss"}
    )  # the best is an early one
    assert run["epochs"] == 10
    assert int(gnnkit.load(run.folder).size) == 10 * run["best_epoch"] < 100


@pytest.mark.slow
def test_served_predictions_of_new_nodes_are_those_of_the_extended_graph(tmp_path: Path) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    graph = replace(table("classes"), edge_features=None)
    run = train(graph, tmp_path / "run")
    client = testclient.TestClient(gnnkit.serve(run.folder, graph))
    row = graph.features[3].tolist()
    response = client.post("/predict_new", json={"nodes": [{"id": N, "features": row}], "edges": [[5, N], [N, 5]]})
    assert response.status_code == 200, response.text
    ends = np.append(graph.csc.indices, [5, N]), np.append(np.repeat(np.arange(N), np.diff(graph.csc.indptr)), [N, 5])
    x = torch.from_numpy(np.concatenate([graph.features, graph.features[[3]]]))
    expected = gnnkit.load(run.folder)(x, torch.from_numpy(np.stack(ends).astype(np.int64))).argmax(1)[N]
    assert str(response.json()["predictions"][0]["class"]) == str(int(expected))


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("classes", {"strategy": {"name": "individual_sample"}, "sampler": {"name": "neighbor", "fanouts": [5]}},
         "model=boosting: this strategy samples edges"),
        ("classes", {"label_inputs": 0.5, "model": {"neighbours": False}}, "label_inputs needs model.neighbours=true"),
        ("classes", {"inputs": "learned"}, "model=boosting: inputs=learned trains rows by gradients"),
        ("classes", {"task": "link_prediction"}, "model=boosting has no embeddings"),
        ("classes", {"model": {"trees": 0}}, "model.trees=0"),
    ],
)  # fmt: skip
def test_what_trees_cannot_do_is_refused(kind: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        train(table(kind), tmp_path / "run", **keys)


@pytest.mark.slow
@few("grid", ["1d", pytest.param([2, 1, 1], marks=pytest.mark.exhaustive), [1, 2, 1]], default=["1d"])
def test_labels_of_neighbours_are_read_and_no_label_of_the_node_itself(grid: Any, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(5), 400
    labels = np.arange(n) // 2 % 2  # of pairs of nodes that are joined, and no column determines them
    ends = np.stack([np.tile(np.arange(n), 2), np.append(np.arange(n) ^ 1, np.arange(n))])  # and loops
    features = rng.normal(size=(n, 2)).astype(np.float32)
    split = rng.permuted(np.repeat([1, 2, 3, 1], n // 4)).astype(np.int8)
    graph = Graph.from_edges(*ends, n, features=features, labels=labels, split=split)
    workers = 1 if grid == "1d" else 2
    partition = {"nodes": "contiguous", "grid": grid}
    run = train(graph, tmp_path / "run", workers=workers, partition=partition, label_inputs=0.5, write=["logits"])
    logits, has_label = np.load(run.folder / "logits.npy"), (split == 1)[np.arange(n) ^ 1]
    right = logits.argmax(1) == labels
    assert right[has_label].all()
    held_out = np.where(split == 1, labels, 1 - labels)
    changed = gnnkit.predict(
        run.folder, replace(graph, labels=held_out), folder=tmp_path / "p", write=["logits"], **QUICK
    )
    np.testing.assert_array_equal(np.load(changed.folder / "logits.npy"), logits)
    node = int(np.flatnonzero(split == 1)[0])
    labels = labels.copy()
    labels[node] = 1 - labels[node]
    changed = gnnkit.predict(
        run.folder, replace(graph, labels=labels), folder=tmp_path / "q", write=["logits"], **QUICK
    )
    rows = np.load(changed.folder / "logits.npy")
    assert np.flatnonzero((rows != logits).any(1)).tolist() == [node ^ 1]


@pytest.mark.slow
@few("labels", [None, 0.5], default=[None])
def test_training_evaluates_each_tree_a_few_times(
    labels: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, evaluate = list[int](), trees._sum_few
    monkeypatch.setattr(trees, "_sum_few", lambda forest, rows: (sizes.append(len(forest)), evaluate(forest, rows))[1])
    keys = {"model": {"trees": 200, "leaves": 4}, "label_inputs": labels, "launcher": "inline"}
    assert train(table("classes"), tmp_path / "run", **keys)["epochs"] == 20
    assert sum(sizes) <= 5 * 200


def test_without_scikit_learn_training_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(UserError, match=r"^model=boosting needs scikit-learn to train: pip install 'gnnkit\[init\]'$"):
        train(table("classes"), tmp_path / "run")


@pytest.mark.parametrize(
    ("labels", "outputs", "expected"),
    [
        (np.ones(30, np.int64), 3, [[-27.6310, 0, -27.6310]]),  # one class has all nodes
        (np.repeat([0, 2], 40), 3, [[0, -27.6310, None]]),  # log-odds of two
        (np.tile([[True, False]], (30, 1)), 2, [[np.log(31), -np.log(31)]]),
        (np.full(30, np.nan), 1, [[0.0]]),
    ],
)
def test_labels_without_a_choice_have_constant_outputs(labels: Any, outputs: int, expected: list[Any]) -> None:
    model, rows = Boosting(1, outputs, trees=2), np.linspace(0, 1, len(labels), dtype=np.float32)[:, None]
    for booster in make_boosters(model, rows, labels, Stub(), 0):
        booster.grow(model, 0, 2)
    values = model.base + sum_trees(model.forest, torch.from_numpy(rows))
    for column, value in enumerate(expected[0]):
        if value is None:
            assert len(values[:, column].unique()) > 1
        else:
            np.testing.assert_allclose(values[:, column], value, rtol=1e-5)


def test_numbers_are_standardised_as_the_task_does() -> None:
    rows = np.linspace(0, 1, 600, dtype=np.float32)[:, None]
    labels = np.exp(5 * rows[:, 0]) - 1
    facts = {"mean": (2.0,), "deviation": (1.5,), "logarithm": (1.0,)}
    model = Boosting(1, 1, trees=200)
    (booster,) = make_boosters(model, rows, labels, task := Stub(**facts), 0)
    booster.grow(model, 0, 200)
    outputs = model.base + sum_trees(model.forest, torch.from_numpy(rows))
    assert np.abs(task.facts().in_unit(outputs)[:, 0].numpy() - labels).mean() < 0.1 * labels.std()
