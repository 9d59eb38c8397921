"""Runs whose seeds see the edges before their own times, in training and evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.graph import Graph, Relation, SparseFeatures
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.result.result import Result
from gnnkit.strategy.fetched_batches import Draw
from gnnkit.task import evaluation, labelled_edges
from gnnkit.task.evaluation import TimedEvaluation
from gnnkit.training import monitor
from gnnkit.training.module import TrainingModule
from gnnkit.utils.checks import Array
from tests.cases import exhaustive, few, in_turn
from tests.runs import BARE
from tests.task.test_temporal_links import conversations

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_core")]
N = 240  # targets, and reporters of their labels
CUT = 500  # time of the first validation node
SMALL = {"name": "sage", "hidden": 8}
PLACES: dict[str, dict[str, Any]] = {
    "shared": {"name": "individual_sample"},
    "features": {"name": "individual_sample", "features": "partitioned"},
    "topology": {"name": "individual_sample", "topology": "partitioned"},
    "joint": {"name": "joint_sample"},
}
OTHERS = ["joint", "topology", exhaustive("features")]


def reported(seed: int = 0, after: int | None = None, typed: bool = False) -> Graph:
    """Returns targets whose labels only later events tell.

    A node that appears after the target has the target's label as a feature. Other
    edges are noise.

    Args:
        seed: Seed of the graph.
        after: Time from which all edges and features are drawn anew. None: none are.
        typed: Whether reporters are of another type.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, N)
    time = np.sort(rng.integers(0, 1000, N))
    later = time + rng.integers(1, 40, N)
    node_time = np.append(time, later)
    features = rng.normal(size=(2 * N, 3))
    features[N:, 0] = 2 * labels - 1
    features[:N, 0] = 0
    src, dst = rng.integers(0, N, 6 * N), rng.integers(0, 2 * N, 6 * N)  # only reporters tell labels
    edge_time = np.append(later, rng.integers(0, 1000, 6 * N))
    src, dst = np.append(np.arange(N, 2 * N), src), np.append(np.arange(N), dst)
    types = np.append(np.zeros(N, int), np.where(dst[N:] < N, 1, 2))
    if after is not None:
        other = np.random.default_rng(seed + 1)
        scrambled = np.flatnonzero(edge_time >= after)
        src[scrambled] = np.where(src[scrambled] < N, 0, N) + other.integers(0, N, len(scrambled))
        features[node_time >= after] = other.normal(size=(int((node_time >= after).sum()), 3))
    fields: dict[str, Any] = {"features": features.astype(np.float32), "edge_time": edge_time, "node_time": node_time}
    if typed:
        ends = [("reporter", "target"), ("target", "target"), ("target", "reporter")]
        fields["relations"] = [Relation(a, f"r{i}", b) for i, (a, b) in enumerate(ends)]
        fields |= {"edge_types": types, "node_types": [("target", N), ("reporter", N)]}
    graph = Graph.from_edges(src, dst, 2 * N, labels=np.append(labels, np.full(N, -1)), **fields)
    return graph.split_by_time(borders=[CUT, 750])


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Result]:
    def run(graph: Graph | None, time: str = "strict", *overrides: str, **options: Any) -> Result:
        sampler = {"name": "neighbor", "fanouts": [4, 3], "time": time} | options.pop("sampler", {})
        trainer = {"max_epochs": 2, "precision": 64} | options.pop("trainer", {})
        workers, place = options.pop("workers", 1), options.pop("place", "shared")
        options = {"model": SMALL, "output": str(tmp_path / "run"), "on_exists": "replace", **BARE, **options}
        return gnnkit.train(
            graph,
            *overrides,
            strategy={"batch_size": 48 // workers} | PLACES[place],
            sampler=sampler,
            trainer=trainer,
            workers=workers,
            comm="threads",
            launcher="threads",
            **options,
        )

    return run


@few(
    ("typed", "place"),
    [(False, "shared"), (True, "shared"), (False, "joint"), (False, "topology"), exhaustive((False, "features"))],
    default=[(True, "shared"), (False, "topology")],
)
def test_labels_that_only_the_future_tells_are_not_learned(
    typed: bool, place: str, train: Callable[..., Result]
) -> None:
    model = {"name": "rgcn", "hidden": 8} if typed else SMALL
    options: dict[str, Any] = {"trainer": {"max_epochs": 16, "lr": 0.05, "check_val_every_n_epoch": 8}, "model": model}
    aucs = {time: train(reported(typed=typed), time, place=place, **options)["val_roc_auc"] for time in TIMES[place]}
    assert aucs.get("none", 1) > 0.9
    assert 0.3 < aucs["strict"] < 0.7


TIMES = {place: ["none", "strict"] if place == "shared" else ["strict"] for place in PLACES}


def logits(result: Result) -> Array:
    assert result.run_folder is not None
    return np.array(np.load(result.run_folder / "logits.npy"))


@few("typed", [False, True], default=[True])
def test_what_comes_after_a_node_changes_no_output(typed: bool, train: Callable[..., Result]) -> None:
    options: dict[str, Any] = {"write": ["logits"], "trainer": {"max_epochs": 2, "monitor": None}}
    options |= {"model": {"name": "rgcn", "hidden": 8}} if typed else {}
    before = np.flatnonzero(np.asarray(reported().node_time)[:N] <= CUT)
    base = train(reported(typed=typed), **options)
    rows, loss = logits(base), base["train_loss"]
    scrambled = train(reported(after=CUT, typed=typed), **options)
    np.testing.assert_array_equal(logits(scrambled)[before], rows[before])
    assert not np.array_equal(logits(scrambled)[:N], rows[:N])
    assert scrambled["train_loss"] == loss


@few("pick", ["uniform", "last"], default=["last"])
def test_workers_and_evaluation_batches_change_no_figure(pick: str, train: Callable[..., Result]) -> None:
    names = ("train_loss", "val_loss", "test_loss", "val_roc_auc", "test_roc_auc")
    options: dict[str, Any] = {"sampler": {"fanouts": [3, 3], "pick": pick}, "write": ["logits"]}
    base = train(reported(), **options)
    rows = logits(base)
    for workers, memory in ((1, 0.001), (4, 0.01)):
        other = train(reported(), workers=workers, trainer={"evaluation_memory": memory}, **options)
        np.testing.assert_allclose(logits(other), rows, rtol=0, atol=1e-10)
        assert {name: other[name] for name in names} == pytest.approx({name: base[name] for name in names}, abs=1e-10)


@pytest.mark.parametrize(("time", "splits"), [("strict", {"val"}), ("none", {"train", "val", "test"})])
def test_evaluations_by_time_during_training_measure_validation_nodes(
    time: str, splits: set[str], train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "MIN_STEPS", 1)  # so that an evaluation compares training nodes with chance
    judged = []
    monkeypatch.setattr(monitor, "learned_nothing", lambda task, measured, *_: judged.append(measured))
    result = train(reported(), time)
    lines = map(json.loads, (result.folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines())
    evaluations = [line["figures"] for line in lines if "figures" in line]
    assert evaluations
    assert all({name.partition("_")[0] for name in figures} == splits for figures in evaluations)
    assert {"train_accuracy", "test_accuracy"} <= result.keys()
    assert len(judged) == 1
    assert "train_accuracy" in judged[0]


class Sums(nn.Module):
    """Sums rows of whole numbers, which are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(2):
            x = x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return x[:, :2] + 0 * self.unused


@few("task", ["nodes", "edges", "links"], default=["nodes"])
def test_evaluation_batches_of_any_size_have_the_same_bits(
    task: str, train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = TASKS[task]
    graph = make()
    graph = graph.evolve(features=np.rint(4 * np.asarray(graph.features)))
    options = options | ({"task": {"name": "edge_classification", "width": 2}} if task == "edges" else {})
    options |= {"trainer": {"max_epochs": 1}, "write": ["logits"] if task == "nodes" else []}
    measured: list[dict[str, Any]] = []
    for size in (1, 7, 200):

        def split(rows: Array, *_: Any, size: int = size) -> list[Array]:
            return np.split(rows, range(size, len(rows), size))

        monkeypatch.setattr(evaluation, "chunks", split)
        result = train(graph, **options | {"model": Sums()})
        figures = {name: value for name, value in result.items() if name.startswith(("val_", "test_"))}
        rows = logits(result) if options["write"] else None
        measured.append({**figures, "bits": None if rows is None else rows.tobytes()})
    assert "test_roc_auc" in measured[0]
    assert measured[0] == measured[1] == measured[2]


@pytest.mark.parametrize("is_typed", [False, True])
def test_evaluation_memory_counts_the_numbers_that_rows_store(
    is_typed: bool, train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, outputs, costs, draws = [], TimedEvaluation._outputs, Draw.costs, []
    monkeypatch.setattr(TimedEvaluation, "_outputs", lambda self, *args: chunks.append(1) or outputs(self, *args))
    monkeypatch.setattr(Draw, "costs", lambda self, nodes: draws.append(1) or costs(self, nodes))
    graph = reported(typed=is_typed)
    wide = np.pad(np.asarray(graph.features), [(0, 0), (0, 4000)])
    model = {"name": "rgcn" if is_typed else "gcn", "hidden": 8} | ({"project": True} if is_typed else {})
    train(graph.evolve(features=SparseFeatures.of(wide)), model=model, trainer={"evaluation_memory": 16})
    assert len(chunks) == 3  # two validations and a test, of one chunk each
    assert len(draws) <= 2  # trees are counted once for each evaluation, not at each epoch


def test_the_rule_is_printed_and_data_without_times_are_refused(
    train: Callable[..., Result], capfd: pytest.CaptureFixture[str]
) -> None:
    train(reported(), "inclusive")
    assert "sampler.time=inclusive: each node sees the edges up to its own time" in capfd.readouterr().out
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "features": np.ones((9, 2)),
        "labels": rng.integers(0, 2, 9),
        "split": np.repeat([1, 2, 3], 3),
    }
    untimed = Graph.from_edges(np.arange(8), np.arange(1, 9), 9, **fields)
    with pytest.raises(gnnkit.UserError, match=r"sampler.time=strict: neither edges nor nodes have times"):
        train(untimed)
    missing = Graph.from_edges(np.arange(8), np.arange(1, 9), 9, node_time=[1, np.nan, *range(7)], **fields)
    with pytest.raises(gnnkit.UserError, match=r"sampler.time=strict: 1 of 9 nodes in the split have no time"):
        train(missing)


def test_other_jobs_draw_the_same(train: Callable[..., Result], tmp_path: Path) -> None:
    result = train(reported(), write=["logits"])
    rows, folder = logits(result), tmp_path / "run"
    assert result["evaluation"] == "fresh"
    for place in ("disk", "mapped"):
        other = train(reported(), write=["logits"], features={"place": place}, output=str(tmp_path / place))
        np.testing.assert_array_equal(logits(other), rows)
    options: dict[str, Any] = {"write": ["logits"], "workers": 2, "comm": "threads", "launcher": "threads"}
    tested = gnnkit.predict(folder, reported(), job="test", folder=tmp_path / "test", **options)
    np.testing.assert_allclose(logits(tested), rows, atol=1e-5)
    assert tested["evaluation"] == "fresh"
    later = gnnkit.predict(folder, reported(after=CUT), folder=tmp_path / "predict", **options)
    before = np.flatnonzero(np.asarray(reported().node_time)[:N] <= CUT)
    np.testing.assert_allclose(logits(later)[before], rows[before], atol=1e-5)
    half = str(tmp_path / "half")
    train(reported(), trainer={"max_epochs": 1}, output=half)
    resumed = train(reported(), write=["logits"], trainer={"resume": half}, output=str(tmp_path / "resumed"))
    np.testing.assert_array_equal(logits(resumed), rows)


@few("place", ["shared", *OTHERS], default=["topology"])
def test_a_run_resumed_within_an_epoch_has_the_same_bits(
    place: str, train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"place": place, "workers": 2, "write": ["logits"]}
    expected = logits(train(reported(), **options))
    steps, step = list[int](), TrainingModule.training_step

    def break_off(module: TrainingModule, batch: Any, batch_idx: int) -> Any:
        steps.append(module.current_epoch)
        if len(steps) > 2 * 4:
            raise RuntimeError("lost in the second epoch")
        return step(module, batch, batch_idx)

    half = str(tmp_path / "half")
    monkeypatch.setattr(TrainingModule, "training_step", break_off)
    with pytest.raises(RuntimeError, match="lost in the second epoch"):
        train(reported(), trainer={"checkpoint_every_n_steps": 1}, output=half, **options)
    monkeypatch.setattr(TrainingModule, "training_step", step)
    assert steps.count(1) > 1, "an epoch has three steps on each of two workers"
    resumed = train(reported(), trainer={"resume": half, "checkpoint_every_n_steps": 1}, **options)
    np.testing.assert_array_equal(logits(resumed), expected)


def test_outputs_at_a_time_are_not_computed_on_all_edges(train: Callable[..., Result], tmp_path: Path) -> None:
    train(reported(), trainer={"max_epochs": 1})
    overrides = ["sampler.time=none"]
    options: dict[str, Any] = {"workers": 1, "comm": "threads", "launcher": "threads"}
    with pytest.raises(gnnkit.UserError, match=r"was trained with sampler.time=strict, and this job reads all edges"):
        gnnkit.predict(tmp_path / "run", reported(), overrides=overrides, folder=tmp_path / "predict", **options)
    with pytest.raises(gnnkit.UserError, match=r"was trained with sampler.time=strict, and this job reads all edges"):
        gnnkit.explain(tmp_path / "run", [0], reported(), overrides=overrides, folder=tmp_path / "explain")


@few(
    ("typed", "sampler"),
    [
        (False, {"fanouts": [-1, -1]}),
        (True, {"fanouts": [3, 2], "pick": "last"}),
        (False, {"fanouts": [-1, -1], "time": "window", "window": 300}),
    ],
    default=1,
)
def test_explained_outputs_are_those_at_each_nodes_time(
    typed: bool, sampler: dict[str, Any], train: Callable[..., Result], tmp_path: Path
) -> None:
    model = {"name": "rgcn", "hidden": 8} if typed else SMALL
    run = train(reported(typed=typed), model=model, sampler=sampler, trainer={"max_epochs": 1}, write=["probabilities"])
    expected, node_time = np.load(run.folder / "probabilities.npy"), np.asarray(reported().node_time)
    nodes = [0, N // 3, 200]
    rows = []
    for name, after in (("plain", None), ("changed", int(node_time[200]) + 1)):
        folder = gnnkit.explain(run.folder, nodes, reported(after=after, typed=typed), folder=tmp_path / name).folder
        tables = [pyarrow.csv.read_csv(folder / f"explained_{part}.csv") for part in ("nodes", "neighbours")]
        rows.append([table.to_pydict() for table in tables])
    scores, classes = rows[0][0]["score"], rows[0][0]["class"]
    np.testing.assert_allclose(scores, expected[nodes, np.asarray(classes, int)], atol=1e-5)
    assert rows[1] == rows[0]
    neighbours = rows[0][1]
    ends = zip(neighbours["id"], neighbours["neighbour"], neighbours["time"], strict=True)
    assert all(time == node_time[neighbour] for _, neighbour, time in ends)
    assert len(neighbours["id"]) > len(nodes)
    pages = [(tmp_path / name / "report.html").read_text().partition("Fidelity")[2] for name in ("plain", "changed")]
    assert pages[0] == pages[1], "no future edge is drawn"


@few("norm", ["none", "batch"], default=["batch"])
def test_workers_take_the_steps_of_one_process(norm: str, train: Callable[..., Result]) -> None:
    options: dict[str, Any] = {"model": {"name": "sage", "hidden": 8, "norm": norm}, "sampler": {"fanouts": [3, 3]}}
    result = train(reported(), job="verify", workers=3, **options)
    assert result["verified"], result
    assert result["reference"] == "one rank with the whole graph"


def test_steps_on_labelled_edges_are_verified(train: Callable[..., Result]) -> None:
    result = train(told_later(), job="verify", task="edge_classification", workers=3, sampler={"fanouts": [3, 3]})
    assert result["verified"], result


def told_later(seed: int = 0) -> Graph:
    """Returns labelled edges whose labels a later edge into the destination tells."""
    rng, n, m = np.random.default_rng(seed), 120, 300
    time, label = np.sort(rng.integers(0, 1000, m)), rng.integers(0, 2, m)
    features = np.zeros((n + 2 * m, 3), np.float32)
    features[:n, 1:] = rng.normal(size=(n, 2))
    features[n : n + m, 0] = 2 * label - 1
    events = n + m + np.arange(m)
    src, dst = np.append(rng.integers(0, n, m), n + np.arange(m)), np.append(events, events)
    times, labels = np.append(time, time + rng.integers(1, 40, m)), np.append(label, np.full(m, -1))
    graph = Graph.from_edges(src, dst, n + 2 * m, features=features, edge_time=times, edge_labels=labels)
    return graph.split_by_time(borders=[500, 750])


@pytest.mark.exhaustive
def test_labelled_edges_are_predicted_as_of_their_own_times(train: Callable[..., Result]) -> None:
    options: dict[str, Any] = {"task": "edge_classification", "sampler": {"fanouts": [3, 3]}}
    long: dict[str, Any] = {"trainer": {"max_epochs": 16, "lr": 0.05, "check_val_every_n_epoch": 16}}
    leaking = train(told_later(), "none", **options, **long)
    assert leaking["evaluation"] == "frozen"
    assert leaking["train_loss"] < 0.5
    assert train(told_later(), **options, **long)["train_loss"] > 0.65
    names = ("train_loss", "val_loss", "test_loss", "test_roc_auc")
    base = train(told_later(), **options)
    assert base["evaluation"] == "fresh"
    other = train(told_later(), workers=3, **options, trainer={"evaluation_memory": 0.01})
    assert {name: other[name] for name in names} == pytest.approx({name: base[name] for name in names}, abs=1e-10)


def test_edges_without_a_time_are_predicted_as_of_the_newest_edge(train: Callable[..., Result]) -> None:
    graph = told_later()
    times, unlabelled = np.array(graph.edge_time), np.flatnonzero(np.asarray(graph.edge_labels) < 0)
    times[unlabelled[:20]], times[unlabelled[20:40]] = ALWAYS, NEVER
    graph = graph.evolve(edge_time=times)
    options: dict[str, Any] = {"task": "edge_classification", "write": ["logits"]}
    rows = {
        age: logits(train(graph, **options, sampler={"fanouts": [-1, -1]} | sampler))
        for age, sampler in ((None, {}), (2000, WINDOW | {"window": 2000}), (50, WINDOW | {"window": 50}))
    }
    np.testing.assert_array_equal(rows[2000], rows[None])
    untimed = np.asarray(graph.edge_positions)[unlabelled[:40]]
    assert not np.array_equal(rows[50][untimed], rows[None][untimed])
    options |= {"sampler": {"fanouts": [-1, -1]} | WINDOW | {"window": 50}, "place": "topology", "workers": 3}
    np.testing.assert_allclose(logits(train(graph, **options)), rows[50], atol=1e-12)


def test_the_head_counts_the_edges_in_the_window_in_every_job(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    windows, count = [], labelled_edges._count_visible
    monkeypatch.setattr(labelled_edges, "_count_visible", lambda *args: windows.append(args[3]) or count(*args))
    sampler = WINDOW | {"window": 50}
    options: dict[str, Any] = {"task": "edge_classification", "write": ["logits"], "sampler": sampler}
    rows = logits(train(told_later(), **options))
    again = gnnkit.predict(tmp_path / "run", told_later(), folder=tmp_path / "again", **BARE, write=["logits"])
    np.testing.assert_allclose(logits(again), rows, atol=1e-5)
    line = "sampler.time=window sampler.window=60: the model was trained with sampler.time=window sampler.window=50"
    assert line not in capfd.readouterr().out
    folder, overrides = tmp_path / "other", ["sampler.window=60"]
    gnnkit.predict(tmp_path / "run", told_later(), folder=folder, overrides=overrides, **BARE)
    assert line in capfd.readouterr().out
    assert windows.pop() == 60
    store = {"name": "store", "root": str(tmp_path / "store")}
    train(told_later(), job="partition", output=store["root"], **options)
    assert windows
    assert set(windows) == {50}
    np.testing.assert_array_equal(logits(train(None, dataset=store, **options)), rows)
    with pytest.raises(gnnkit.UserError, match=r"sampler.window=60: the store .* was cut with sampler.window=50"):
        train(None, dataset=store, **options | {"sampler": WINDOW | {"window": 60}})


PATH = {"time_bound": "path"}
TASKS: dict[str, tuple[Callable[[], Graph], dict[str, Any]]] = {
    "nodes": (reported, {"sampler": {"pick": "last"}, "model": {"name": "gcn", "hidden": 8}}),
    "window": (reported, {"sampler": {"time": "window", "window": 150}, "model": {"name": "gcn", "hidden": 8}}),
    "typed": (lambda: reported(typed=True), {"model": {"name": "rgcn", "hidden": 8}}),
    "path": (lambda: reported(typed=True), {"model": {"name": "rgcn", "hidden": 8}, "sampler": PATH}),
    "path, gcn": (reported, {"model": {"name": "gcn", "hidden": 8}, "sampler": PATH | {"pick": "last"}}),
    "edges": (told_later, {"task": "edge_classification"}),
    "links": (conversations, {"task": {"name": "link_prediction", "eval_negatives": 10}}),
}


def test_paths_bound_what_neighbours_see(
    train: Callable[..., Result], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "sampler": {"fanouts": [-1, -1]},
        "model": {"name": "gcn", "hidden": 8},
        "write": ["logits"],
    }
    seed = logits(train(reported(), **options))
    options["sampler"] |= PATH
    run = train(reported(), **options)
    assert not np.allclose(logits(run), seed)
    for overrides in ([], ["sampler.time_bound=seed"]):
        folder = tmp_path / f"predicted{len(overrides)}"
        gnnkit.predict(tmp_path / "run", reported(), folder=folder, overrides=overrides, **BARE)
        told = (
            "sampler.time=strict sampler.time_bound=seed: the model was trained with sampler.time=strict "
            "sampler.time_bound=path"
        )
        assert (told in capfd.readouterr().out) == bool(overrides)
    options |= {"sampler": options["sampler"] | {"name": "weighted"}, "output": str(tmp_path / "weighted")}
    np.testing.assert_allclose(logits(train(reported(), **options)), logits(run), atol=1e-12)
    with pytest.raises(gnnkit.UserError, match=r"sampler.time_bound=path: job=explain names"):
        gnnkit.explain(tmp_path / "run", [0], reported(), folder=tmp_path / "explain")
    with pytest.raises(gnnkit.UserError, match=r"sampler.time_bound=path needs times: use sampler.time=strict"):
        train(reported(), "none", **options)


@pytest.mark.parametrize("typed", [False, exhaustive(True)])
def test_a_window_of_all_times_is_strict_and_a_short_one_is_not(typed: bool, train: Callable[..., Result]) -> None:
    model = {"name": "rgcn" if typed else "gcn", "hidden": 8}
    losses = {
        age: train(reported(typed=typed), sampler=sampler, model=model)["test_loss"]
        for age, sampler in ((None, {}), (2000, WINDOW | {"window": 2000}), (150, WINDOW | {"window": 150}))
    }
    assert losses[2000] == losses[None] != losses[150]


WINDOW = {"time": "window"}


@few(
    "task,place",
    [
        *in_turn(TASKS, ["joint", "topology", "features"]),
        *((task, "topology") for task in ("nodes", "path", "edges", "links")),
        ("typed", "joint"),
    ],
    default=[("nodes", "joint"), ("window", "topology"), ("path", "joint")],
)
def test_owners_train_and_evaluate_as_one_process_does(task: str, place: str, train: Callable[..., Result]) -> None:
    make, options = TASKS[task]
    options = {"sampler": {}} | options
    options["sampler"] = {"fanouts": [3, 3]} | options["sampler"]
    if place == "joint" and "path" in task:
        with pytest.raises(
            gnnkit.UserError, match=r"strategy=joint_sample with sampler.time_bound=path: .* use sampler.t"
        ):
            train(make(), workers=3, place=place, **options)
        return
    base = train(make(), **options)
    names = [name for name in base if name.startswith(("train_", "val_", "test_")) and isinstance(base[name], float)]
    assert "test_roc_auc" in names
    for workers in (1, 3):
        other = train(make(), workers=workers, place=place, **options)
        assert {name: other[name] for name in names} == pytest.approx({name: base[name] for name in names}, abs=1e-12)
        assert other["evaluation"] == "fresh"


class Ages(nn.Module):
    """Sums neighbours with weights that fall with the age of their edge."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_age: Tensor | None = None) -> Tensor:
        assert edge_age is not None
        source, weight = edge_index[0], torch.exp(-edge_age.nan_to_num(0) / 100)[:, None]
        for _ in range(2):
            x = x + torch.zeros_like(x).index_add(0, edge_index[1], x[source] * weight)
        out: Tensor = self.lin(x)
        return out


@pytest.mark.parametrize("place", OTHERS)
def test_owners_know_the_ages_of_edges(place: str, train: Callable[..., Result]) -> None:
    graph = reported()
    times = np.array(graph.node_time)
    times[N::3] = ALWAYS  # predicted as of the newest edge, which few owners hold
    graph = graph.evolve(node_time=times)

    def run(**options: Any) -> Result:
        torch.manual_seed(0)
        return train(graph, model=Ages(), sampler={"fanouts": [4, 4]}, write=["logits"], **options)

    base = run()
    rows = logits(base)
    for workers in (1, 3):
        other = run(workers=workers, place=place)
        np.testing.assert_allclose(logits(other), rows, rtol=1e-12)
        assert other["train_loss"] == pytest.approx(base["train_loss"], abs=1e-12)


@few("place", ["shared", "joint"], default=["joint"])
@pytest.mark.parametrize("task", [exhaustive("nodes"), exhaustive("edges"), "links"])
def test_runs_from_a_store_are_those_of_the_data(
    task: str, place: str, train: Callable[..., Result], tmp_path: Path
) -> None:
    make, options = TASKS[task]
    options = {**options, "workers": 2, "place": place}
    base = train(make(), **options)
    store = {"name": "store", "root": str(tmp_path / "store")}
    train(make(), job="partition", output=store["root"], **options)
    other = train(None, dataset=store, **options)
    assert {name: other[name] for name in ("train_loss", "test_roc_auc")} == {
        name: base[name] for name in ("train_loss", "test_roc_auc")
    }
    with pytest.raises(gnnkit.UserError, match=r"sampler.time=none: the store .* as for sampler.time=strict: use this"):
        train(None, "none", dataset=store, **{**options, "sampler": {}})
