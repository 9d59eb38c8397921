"""job=init looks at data, and what it writes runs as it is."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from gnnkit_init.trials import Trials
from gnnkit_plan import init
from gnnkit_plan.init import KeyChoice, _as_script, by_evidence, choose, recommended

import gnnkit
from gnnkit import config, plugins
from gnnkit.__main__ import main
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task.node_classification import NodeClassification
from tests.cases import few
from tests.graphs import random_graph

pytestmark = pytest.mark.usefixtures("one_core")
QUICK = ["trainer.max_epochs=2", "comm=threads", "cache=false", "report=false", "logger=none"]


def tables(folder: Path) -> Path:
    """Writes two CSV files: names as ids and classes, no split."""
    rng, folder = np.random.default_rng(0), folder / "my data"
    folder.mkdir()
    rows = [f"n{i},{('cat', 'dog')[i % 2]},{i % 2 + rng.normal()},{rng.normal()}" for i in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,a,b", *rows]) + "\n")
    edges = [f"n{u},n{v}" for u, v in rng.integers(0, 60, (200, 2))]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]) + "\n")
    return folder


def choices(graph: Graph, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """What is chosen for a saved graph."""
    graph.save(tmp_path / "graph")
    given = ["dataset=saved", f"dataset.root={tmp_path}/graph", "strategy=auto", "job=init", *overrides]
    return {each.key: each.value for each in choose(settle(config.compose(given)), graph)}


@pytest.mark.slow
def test_two_tables_become_a_configuration_and_a_script_that_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, new = tables(tmp_path), tmp_path / "new one"
    monkeypatch.chdir(tmp_path)
    assert main(["job=init", "dataset=edges", "dataset.root='my data'", f"output='{new}'", "init.minutes=0"]) == 0
    told = capsys.readouterr().out
    assert f"gnnkit --config-dir '{new}' +experiment=mine" in told
    assert sorted(path.name for path in new.rglob("*")) == ["experiment", "mine.yaml", "train.py"]
    written = yaml.safe_load((new / "experiment/mine.yaml").read_text())
    assert written["dataset"] == {"root": str(data), "symmetrize": True, "split": [0.6, 0.2, 0.2]}
    quick = [*QUICK, "output=run"]
    assert main(["--config-dir", str(new), "+experiment=mine", *quick]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "run/predictions.parquet")
    assert table["id"].to_pylist() == [f"n{i}" for i in range(60)]
    assert set(table["class"].to_pylist()) <= {"cat", "dog"}
    script = (new / "train.py").read_text().replace("'max_epochs': 300", "'max_epochs': 2")
    (new / "train.py").write_text(script)
    capsys.readouterr()
    runpy.run_path(str(new / "train.py"), run_name="__main__")
    assert "has the trained model, predictions and figures" in capsys.readouterr().out


def test_a_warning_about_the_split_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{node},{node % 2},2024-01-{1 + node % 28:02}" for node in range(60)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,day", *rows]) + "\n")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    keys = ["dataset=edges", f"dataset.root={tmp_path}", "init.minutes=0", f"output={tmp_path}/new"]
    assert main(["job=init", *keys]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "the split is drawn at random" in line]
    assert [line.partition(": the split")[0] for line in lines] == ["gnnkit: warning: dataset=edges"]


@pytest.mark.slow
def test_what_the_data_lack_is_chosen(tmp_path: Path) -> None:
    whole = random_graph()
    found = choices(whole, tmp_path)
    assert found["task"] == "node_classification"
    assert found["strategy"] == "vertex_centric"
    assert found["trainer.monitor"] == "auto"
    assert not {"inputs", "dataset.split", "write_format", "features.scale"} & set(found)
    assert choices(replace(whole, features=100 * whole.features), tmp_path)["features.scale"] == "standard"
    bare = replace(whole, features=np.empty((40, 0), np.float32), split=np.zeros(40, np.int8))
    found = choices(bare, tmp_path)
    assert (found["inputs"], found["dataset.split"]) == ("learned", [0.6, 0.2, 0.2])
    unlabelled = choices(replace(bare, labels=np.full(40, -1)), tmp_path)
    assert unlabelled["task"] == "link_prediction"
    assert not {"dataset.split", "trainer.monitor"} & set(unlabelled)
    assert choices(replace(whole, labels=np.linspace(0, 1, 40)), tmp_path)["task"] == "regression"
    assert choices(replace(whole, labels=np.eye(40, 3, dtype=bool)), tmp_path)["task"] == "multilabel"
    joined = replace(whole, class_names=("a;b", "a", "b"), node_ids=np.arange(40) + 1)
    found = choices(joined, tmp_path)
    assert (found["task"], found["write_format"]) == ("multilabel", "parquet")
    assert choices(whole, tmp_path, "dataset.symmetrize=true")["dataset.symmetrize"] is True


@pytest.mark.slow
def test_names_of_columns_and_tables_stay_where_files_have_these_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("employee", "calls.csv", "my data"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    given = ["dataset=edges", "dataset.root='my data'", "dataset.edges=calls.csv", "dataset.id=employee", "job=init"]
    graph = Graph.from_edges([0, 1], [1, 0])
    found = {each.key: each for each in choose(settle(config.compose([*given, "strategy=auto"])), graph)}
    assert found["dataset.root"].value == str(tmp_path / "my data")
    assert (found["dataset.edges"].value, found["dataset.id"].value) == ("calls.csv", "employee")
    assert found["task"].why.endswith(
        "so edges are predicted. Set dataset.label=COLUMN or dataset.edge_label=COLUMN for labels of nodes or edges"
    )


@pytest.mark.slow
def test_edges_that_run_one_way_but_for_a_few_are_read_both_ways(tmp_path: Path) -> None:
    given = ["dataset=edges", f"dataset.root={tmp_path}", "strategy=auto", "job=init"]
    nodes = np.arange(1000)
    one_way = Graph.from_edges([*nodes[:-1], *nodes[1:3]], [*nodes[1:], *nodes[:2]], labels=nodes % 2)
    found = {each.key: each for each in choose(settle(config.compose(given)), one_way)}["dataset.symmetrize"]
    assert found.value is True
    assert found.why.startswith("0.4 % of 1,001 edges have a reverse edge: messages then flow both ways. false: from")
    for keys, graph in (([], one_way.symmetrize()), (["dataset.symmetrize=false"], one_way)):
        found = {each.key: each.value for each in choose(settle(config.compose([*given, *keys])), graph)}
        assert found.get("dataset.symmetrize") is (False if keys else None)


@pytest.mark.parametrize(
    ("num_reversed", "given", "tried"),
    [
        (0, [], [1998, 999]),
        (150, [], [1998, 1149]),
        (500, [], [1499, 1998]),
        (950, [], [1949]),
        (150, ["dataset.symmetrize=false"], [1149]),
    ],
    ids=["one way", "some", "half", "most", "decided"],
)
def test_trials_add_reverse_edges_unless_most_edges_have_one(
    num_reversed: int, given: list[str], tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, asked = np.arange(1000), list[Any]()
    ends = np.r_[nodes[:-1], nodes[1 : num_reversed + 1]], np.r_[nodes[1:], nodes[:num_reversed]]
    graph = Graph.from_edges(*ends, labels=nodes % 2, split=1 + nodes % 3)

    def run(settings: Any, graph: Any, keys: Any, configs: Any, figure: Any, symmetric: bool, other: Any) -> Trials:
        asked.extend([symmetric, graph, *([] if other is None else [other()])])
        return Trials(NodeClassification(), "val_accuracy", (), 0)

    monkeypatch.setattr("gnnkit_init.trials.run", run)
    by_evidence(settle(config.compose(["dataset=edges", "dataset.root=.", "strategy=auto", "job=init", *given])), graph)
    assert [each.num_edges for each in asked[1:]] == tried, "the usual graph, and the other one"
    assert asked[0] is (num_reversed < 500 and not given)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "rgcn"])
def test_types_are_read_by_the_model_where_nodes_have_labels(model: str, tmp_path: Path) -> None:
    graph = random_graph()
    typed = replace(graph, edge_types=np.arange(graph.num_edges) % 2, edge_type_names=("a", "b"))
    found = choices(typed, tmp_path)
    assert (found["model"], found["types"], found["model.hidden"]) == ("rgat", "read", 8)
    unlabelled = choices(replace(typed, labels=np.full(40, -1), split=np.zeros(40, np.int8)), tmp_path / "links")
    assert (unlabelled["model"], unlabelled["types"]) == ("sage", "ignore")
    assert "types" not in choices(graph, tmp_path / "plain")
    script = _as_script([KeyChoice("model", model), KeyChoice("types", "read" if model == "rgcn" else "ignore")])
    assert "types='ignore'," in script


def test_a_large_graph_gets_mini_batches(tmp_path: Path) -> None:
    many = Graph.from_edges([0], [1], 200_001, features=np.zeros((200_001, 1), np.float32))
    assert choices(many, tmp_path)["strategy"] == "individual_sample"


@pytest.mark.slow
@few("form", ["links", "numbers", "sets", "bare"], default=["bare"])
def test_every_form_of_labels_runs_as_it_is(tmp_path: Path, form: str) -> None:
    graph = random_graph()
    changes: dict[str, Any] = {
        "links": {"labels": np.full(40, -1), "split": np.zeros(40, np.int8)},
        "numbers": {"labels": np.linspace(0, 1, 40)},
        "sets": {"labels": np.eye(40, 3, dtype=bool)},
        "bare": {"features": np.empty((40, 0), np.float32), "split": np.zeros(40, np.int8)},
    }
    replace(graph, **changes[form]).save(tmp_path / "graph")
    assert (
        main(
            ["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", f"output={tmp_path}/new", "init.minutes=0"]
        )
        == 0
    )
    quick = [*QUICK, f"output={tmp_path}/run"]
    assert main(["--config-dir", f"{tmp_path}/new", "+experiment=mine", *quick]) == 0


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (
            np.arange(40) % 2 * 1.0,
            "labels are numbers, all of them whole: task=node_classification if they are classes",
        ),
        (np.where(np.arange(40) % 4 > 0, np.arange(40) % 2, np.nan), "all of them whole: task=node_classification"),
        (np.linspace(0, 1, 40), "labels are numbers"),
        (np.arange(40) % 4 - 1, "labels are 3 classes, and 10 of 40 nodes have none (-1 or empty)"),
        (np.arange(40) % 2, "labels are 2 classes"),
    ],
    ids=["whole", "whole with gaps", "fractions", "a class of -1", "classes"],
)
def test_the_reason_of_a_task_says_how_else_labels_may_be_read(labels: Any, reason: str, tmp_path: Path) -> None:
    labelled = ~np.isnan(labels) & (labels != -1)
    graph = replace(random_graph(), labels=labels, split=np.where(labelled, np.arange(40) % 3 + 1, 0).astype(np.int8))
    graph.save(tmp_path / "graph")
    given = ["dataset=saved", f"dataset.root={tmp_path}/graph", "strategy=auto", "job=init"]
    settings = settle(config.compose(given))
    (choice,) = (choice for choice in choose(settings, settings.dataset.create().load()) if choice.key == "task")
    assert choice.why == reason or (reason.startswith("all") and choice.why.endswith("if they are classes"))


def test_the_users_task_and_inputs_are_written_as_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.random.default_rng(0).lognormal(size=40)
    replace(random_graph(), labels=labels).save(tmp_path / "graph")
    named = ["task=regression", "task.loss=absolute", "task.scale=log", "inputs=degree", "init.minutes=0"]
    command = ["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", f"output={tmp_path}/new"]
    assert main([*command, *named]) == 0
    written = yaml.safe_load((tmp_path / "new/experiment/mine.yaml").read_text())
    assert written["task"] == {"loss": "absolute", "scale": "log"}
    assert written["inputs"] == "degree"
    assert {"override /task": "regression"} in written["defaults"]
    assert len(capsys.readouterr().out.splitlines()) <= 8  # the reasons are in the file


@pytest.mark.slow
def test_what_init_cannot_do_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job=init", "dataset=saved", "model=gat", f"output={tmp_path}/new"]) == 2
    assert "model: job=init reads the data, task, inputs and threads, and chooses the rest" in capsys.readouterr().err
    assert main(["job=init"]) == 2
    assert "job=init needs output=FOLDER" in capsys.readouterr().err
    assert main(["job=init", "dataset=edges", f"dataset.root={tmp_path}/none", f"output={tmp_path}/new"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    random_graph().save(tmp_path / "graph")
    assert main(["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", f"output={tmp_path}"]) == 2
    assert "cannot make the folder: File exists: name a new one" in capsys.readouterr().err
    blocked = f"output={tmp_path}/graph/meta.json/new"
    assert main(["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", blocked]) == 2
    assert capsys.readouterr().err.endswith("cannot make the folder: Not a directory: name a new one\n")
    replacing = ["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", "init.minutes=0"]
    assert main([*replacing, f"output={tmp_path}", "on_exists=replace"]) == 2
    assert "on_exists=replace replaces only what job=init wrote" in capsys.readouterr().err
    assert main([*replacing, f"output={tmp_path}/new", "on_exists=resume"]) == 2
    assert "job=init cannot resume: choose refuse or replace" in capsys.readouterr().err
    assert main([*replacing, f"output={tmp_path}/new"]) == 0
    assert main([*replacing, f"output={tmp_path}/new", "on_exists=replace", "threads=2"]) == 0
    assert "threads: 2  # as you chose" in (tmp_path / "new/experiment/mine.yaml").read_text()
    with pytest.raises(UserError, match="give dataset=NAME in place of a graph"):
        gnnkit.train(random_graph(), strategy="auto", job="init", folder=tmp_path / "new")


def test_many_edges_get_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = choices(random_graph(), tmp_path)
    assert (few["workers"], few["threads"]) == (1, 1)
    monkeypatch.setattr("gnnkit_plan.init.SMALL_EDGES", 10)
    assert "threads" not in choices(random_graph(), tmp_path)
    monkeypatch.setattr("gnnkit_plan.init.FEW_EDGES", 10)
    monkeypatch.setattr("gnnkit_plan.init.num_cores", lambda: 3)
    assert choices(random_graph(), tmp_path)["workers"] == 3


@pytest.mark.slow
def test_labels_without_a_split_need_one(tmp_path: Path) -> None:
    bare = replace(random_graph(), split=np.zeros(random_graph().num_nodes, np.int8))
    assert choices(bare, tmp_path)["dataset.split"] == [0.6, 0.2, 0.2]
    settings = settle(config.compose(["dataset=graphsaint", "dataset.root=x", "strategy=auto", "job=init"]))
    with pytest.raises(UserError, match="dataset=graphsaint has labels, but no split: add a split to the data"):
        list(choose(settings, bare))


@pytest.mark.parametrize(("rows", "columns", "fill"), [(1, 2, "mean"), (9, 1, "drop"), (9, 2, "zero")])
def test_empty_cells_are_filled_by_how_many_there_are(rows: int, columns: int, fill: str, tmp_path: Path) -> None:
    missing = [[row, column] for row in range(rows) for column in range(columns)]
    table = Graph.from_edges([0, 1], [1, 0], 10, features=np.zeros((10, 2), np.float32), missing=missing)
    assert choices(table, tmp_path)["features.fill"] == fill


@pytest.mark.slow
@pytest.mark.parametrize(("header", "prefix"), [("user,item", ""), ("src,dst", "n")])
def test_users_and_items_are_recommended_for(
    header: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers may be ids of both in columns of users and items, and nowhere else."""
    rng = np.random.default_rng(0)
    chosen = np.unique(rng.integers(0, (40, 30), (400, 2)), axis=0)
    first_prefix, second_prefix = (prefix and f"{prefix}{end}" for end in "ui")
    rows = [f"{first_prefix}{user},{second_prefix}{number}" for user, number in chosen]
    (tmp_path / "edges.csv").write_text("\n".join([header, *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["job=init", "dataset=edges", "dataset.root=.", "output=new"]) == 0
    written = yaml.safe_load((tmp_path / "new/experiment/mine.yaml").read_text())
    assert written["task"]["loss"] == "softmax"
    assert written["write"] == ["predictions", "vectors"]
    assert ("bipartite" in written["dataset"]) == (header == "src,dst")
    assert "are two node types, and no node has a label" in capsys.readouterr().out
    assert main(["--config-dir", "new", "+experiment=mine", *QUICK, "output=run"]) == 0
    top = pyarrow.parquet.read_table(tmp_path / "run/topk.parquet").to_pydict()
    first, _, second, _ = top
    assert (first, second) == tuple(header.split(","))
    pairs = {(str(user), str(number)) for user, number in zip(top[first], top[second], strict=True)}
    assert not pairs & {tuple(row.split(",")) for row in rows}
    assert {user for user, _ in pairs} == {row.partition(",")[0] for row in rows}
    script = (tmp_path / "new/train.py").read_text().replace("'max_epochs': 100", "'max_epochs': 2")
    (tmp_path / "new/train.py").write_text(script)
    runpy.run_path(str(tmp_path / "new/train.py"), run_name="__main__")
    assert "has the trained model, predictions and figures" in capsys.readouterr().out


def test_data_with_times_are_split_by_time(tmp_path: Path) -> None:
    ends, by_time = ([0, 1, 2, 3, 4], [1, 2, 3, 4, 0]), {"by": "time", "shares": [0.6, 0.2, 0.2]}
    events = Graph.from_edges(*ends, edge_time=range(5))
    assert choices(events, tmp_path)["dataset.split"] == by_time
    assert "dataset.split" not in choices(events.split_by_time(borders=[3, 4]), tmp_path)
    labels = {"labels": [0, 1, 0, 1, 0], "features": np.eye(5)}
    assert choices(Graph.from_edges(*ends, node_time=range(5), **labels), tmp_path)["dataset.split"] == by_time
    assert choices(Graph.from_edges(*ends, edge_time=range(5), **labels), tmp_path)["dataset.split"] == [0.6, 0.2, 0.2]


def test_a_split_by_time_of_nodes_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, by_time = tables(tmp_path), "dataset.split={by: time, shares: [0.6,0.2,0.2]}"
    rows = (data / "edges.csv").read_text().splitlines()[1:]
    lines = [f"{row},{place}" for place, row in enumerate(rows)]
    (data / "edges.csv").write_text("\n".join(["src,dst,time", *lines]) + "\n")
    keys = ["job=init", "dataset=edges", f"dataset.root='{data}'", f"output='{tmp_path / 'new'}'", "init.minutes=0"]
    assert main([*keys, by_time]) == 2
    cure = "nodes have no times, and dataset.split is by time: dataset.split=[0.6,0.2,0.2]"
    assert cure in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main([*keys, by_time, "task=link_prediction"]) == 0
    assert main([*keys, "dataset.split=[0.6,0.2,0.2]", "on_exists=replace"]) == 0
    assert "a split by time needs times of nodes" in capsys.readouterr().err


def test_labelled_edges_with_times_name_the_sampler_of_recent_edges(tmp_path: Path) -> None:
    keys = ["dataset=edges", f"dataset.root={tmp_path}", "strategy=auto", "job=init"]
    for times in (None, range(5)):
        graph = Graph.from_edges([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], edge_labels=[0, 1, 0, 1, 0], edge_time=times)
        (why,) = (choice.why for choice in choose(settle(config.compose(keys)), graph) if choice.key == "task")
        assert ("model=gin with sampler.time=window" in why) == (times is not None)


@pytest.mark.parametrize(("columns", "time"), [(["day"], "day"), (["day", "due"], None)])
def test_the_only_dates_of_labelled_edges_are_their_times(
    tmp_path: Path, columns: list[str], time: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise, a model would train on the future of what it is tested on."""
    data = tmp_path / "data"
    data.mkdir()
    dates = [f"2024-{edge % 12 + 1:02}-{edge % 28 + 1:02}" for edge in range(90)]
    lines = [
        f"{edge % 9},{(edge * 7 + 1) % 9},{'ab'[edge % 2]}" + f",{dates[edge]}" * len(columns) for edge in range(90)
    ]
    (data / "edges.csv").write_text("\n".join([",".join(["src,dst,mark", *columns]), *lines]))
    new = tmp_path / "new"
    keys = ["job=init", "dataset=edges", f"dataset.root='{data}'", "dataset.edge_label=mark", "init.minutes=0"]
    assert main([*keys, f"output='{new}'"]) == 0
    written = yaml.safe_load((new / "experiment" / "mine.yaml").read_text())
    assert written["dataset"].get("time") == time
    assert isinstance(written["dataset"]["split"], dict) == (time is not None)
    warned = "the split is drawn at random, and column 'day' holds times" in capsys.readouterr().err
    assert warned == (time is None)


@pytest.mark.parametrize(("task", "delay"), [(None, 0), ("edge_regression", 0), ("link_prediction", None)])
def test_a_task_on_edges_that_the_user_names_reads_earlier_labels_too(
    tmp_path: Path, task: str | None, delay: int | None
) -> None:
    """Whole ratings are classes unless the user names the other task."""
    settings = settle(config.compose(["dataset=edges", f"dataset.root={tmp_path}", "strategy=auto", "job=init"]))
    labels, times = np.arange(60) % 5, np.arange(60)
    graph = Graph.from_edges(np.roll(times, 1), times, edge_labels=labels, edge_time=times)
    named = [] if task is None else [init.KeyChoice("task", task, "as you chose")]
    found = {choice.key: choice.value for choice in choose(settings, graph, named)}
    assert found["task"] == (task or "edge_classification")
    assert found.get("task.label_delay") == delay
    if delay is not None:
        kept = choose(settings, graph, [*named, init.KeyChoice("task.label_delay", 7, "as you chose")])
        assert {choice.key: choice.value for choice in kept}["task.label_delay"] == 7


def test_calls_from_python_recommend_by_the_same_keys() -> None:
    assert plugins.load("planner", "recommended") is recommended


def test_labels_of_nodes_and_edges_are_both_split() -> None:
    rng, graph = np.random.default_rng(0), random_graph()
    labels, split = rng.integers(0, 2, graph.num_edges), np.zeros(graph.num_edges, np.int8)
    graph = replace(graph, split=np.zeros(graph.num_nodes, np.int8), edge_labels=labels, edge_split=split)
    settings = settle(config.compose(["dataset=saved", "dataset.root=x", "strategy=auto", "job=init"]))
    divided = init._with_split(settings, graph)
    for rows in (divided.split, divided.edge_split):
        assert set(np.asarray(rows).tolist()) == {1, 2, 3}
    of_nodes = init._with_split(settings, divided.evolve(edge_split=split))
    assert np.array_equal(of_nodes.split, divided.split), "a split of nodes is kept"
    assert set(np.asarray(of_nodes.edge_split).tolist()) == {1, 2, 3}
    values = {"task": "edge_classification", "strategy": "vertex_centric"}
    assert not init._why_no_trials(settings, divided, values)
