"""job=compare: every way is a run of its own, and all are measured alike."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gnnkit_sweep.runner import Runner, SweepJob
from gnnkit_sweep.scheme_table import SchemeRow, SchemeRun, SchemeTable, exposed_seconds, within_noise
from gnnkit_sweep.schemes import parse_schemes

import gnnkit
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task import Task
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression
from tests.runs import BARE

SMALL = ["job=compare", "dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200", "workers=2"]
QUICK = [*SMALL, "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "trainer.checkpoint=false"]
THREADS = [*QUICK, "comm=threads", "logger=none"]
TWO = "compare.ways=[vertex_centric,'preset_workload strategy.halo=none']"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def state(rank: int, epoch: int, seconds: float, memory: int = 100) -> dict[str, Any]:
    parts = dict.fromkeys(("seconds_wait", "seconds_exchange", "seconds_sync"), 0.0)
    return {"rank": rank, "epoch": epoch, "seconds_compute": seconds, "memory": memory, **parts}


def write(folder: Path, states: list[dict[str, Any]], accuracies: dict[int, float], **result: Any) -> None:
    """Writes the files of a run that the comparison reads."""
    folder.mkdir(parents=True)
    (folder / "workers.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in states))
    lines = [{"epoch": epoch, "figures": {"val_accuracy": value}} for epoch, value in accuracies.items()]
    for epoch in sorted({each["epoch"] for each in states}):
        sums = [
            sum(each["seconds_compute"] for each in states if (each["rank"], each["epoch"]) == (rank, epoch))
            for rank in (0, 1)
        ]
        parts = {key: [0.0, 0.0] for key in ("seconds_wait", "seconds_exchange", "seconds_sync")}
        lines.append({"epoch": epoch, "seconds_compute": sums, **parts})
    (folder / "epochs.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    (folder / "result.json").write_text(json.dumps(result))


def run(test: float, curve: dict[float, float], **figures: Any) -> SchemeRun:
    return SchemeRun(test, 3, 0.5, 2e6, 3_000_000, list(curve.items()))


def table(*rows: SchemeRow, task: Task | None = None) -> SchemeTable:
    return SchemeTable(rows, task or NodeClassification())


def test_a_run_is_measured_by_its_slowest_and_its_busiest_worker(tmp_path: Path) -> None:
    states = [state(0, 0, 1.0), state(1, 0, 2.0), state(0, 1, 4.0, 300), state(1, 1, 1.0), state(1, 1, 1.0)]
    write(tmp_path / "run", states, {0: 0.5, 1: 0.75}, test_accuracy=0.7, seconds_per_epoch=3.0, bytes_sent=8)
    found = SchemeRun.read(tmp_path / "run", NodeClassification())
    assert found == SchemeRun(0.7, 2, 3.0, 8, 300, [(2.0, 0.5), (5.0, 0.75)], "val_accuracy", exposed_seconds=0.0)


def test_a_run_names_the_figure_that_judges_it(tmp_path: Path) -> None:
    figures = {"main_figure": {"name": "val_average_precision"}, "test_average_precision": 0.4, "test_accuracy": 0.98}
    (tmp_path / "result.json").write_text(json.dumps(figures))
    found = SchemeRun.read(tmp_path, NodeClassification())
    both = table(SchemeRow("full", [found]))
    assert (found.test, both.figure, both.test) == (0.4, "val_average_precision", "test_average_precision")


def test_a_run_without_a_record_of_steps_has_the_figures_of_its_result(tmp_path: Path) -> None:
    write(tmp_path / "run", [], {}, test_accuracy=0.7, seconds_per_epoch=3.0)
    for name in ("workers.jsonl", "epochs.jsonl"):
        (tmp_path / "run" / name).unlink()
    found = SchemeRun.read(tmp_path / "run", NodeClassification())
    assert (found.test, found.memory, found.curve) == (0.7, None, [])


def test_a_resumed_run_counts_its_earlier_parts(tmp_path: Path) -> None:
    write(tmp_path / "run", [state(0, 2, 1.0)], {2: 0.8}, test_accuracy=0.7)
    write(tmp_path / "run/earlier-10", [state(0, 1, 2.0)], {1: 0.6})
    write(tmp_path / "run/earlier-2", [state(0, 0, 4.0), state(0, 1, 8.0)], {0: 0.5, 1: 0.4})
    found = SchemeRun.read(tmp_path / "run", NodeClassification())
    assert (found.epochs, found.curve) == (3, [(4.0, 0.5), (14.0, 0.6), (15.0, 0.8)])


def test_time_is_to_99_percent_of_the_best_of_the_first_way() -> None:
    first = SchemeRow("full", [run(0.8, {1.0: 0.5, 2.0: 0.8}), run(0.82, {1.0: 0.5, 3.0: 1.0})])
    other = SchemeRow("parts", [run(0.79, {0.5: 0.89, 1.0: 0.95}), run(0.79, {4.0: 0.9})])
    slow = SchemeRow("half", [run(0.5, {1.0: 0.9}), run(0.5, {1.0: 0.2})])
    found = table(first, other, slow)
    assert found.target == pytest.approx(0.99 * 0.9)
    assert [found.times(row) for row in found.rows] == [[3.0], [1.0, 4.0], [1.0]]
    assert found.sentence() == (
        "parts reached val_accuracy 0.891 (99 % of the best of full) first, after 2.5 s of training. "
        "Within noise, parts has the test_accuracy of full."
    )
    (full, parts, half) = found.figures()
    assert (full["test_accuracy"], full["difference"], full["reached_target"]) == (pytest.approx(0.81), 0, 1)
    assert full["deviation"] == pytest.approx(0.02 / 2**0.5)
    assert (parts["difference"], parts["time_to_target"]) == (pytest.approx(-0.02), 2.5)
    assert (half["difference"], half["reached_target"]) == (pytest.approx(-0.31), 1)
    head, row, *_ = found.table().aligned().splitlines()
    assert row.split() == ["full", "2", "0.81", "0.01414", "0", "3", "1", "3", "0", "0.5", "2", "3"]
    assert head.endswith("s to target  runs to target  epochs  approximate  s an epoch  MB sent an epoch  MB of memory")


def test_a_scheme_is_not_credited_with_exact_epochs_without_a_word(tmp_path: Path) -> None:
    states = [state(0, epoch, 1.0) for epoch in range(30)]
    schedule = {"start": 3, "approximate": 21, "finish": 6}
    write(tmp_path / "late", states, {29: 0.8}, test_accuracy=0.8, approximate=["late rows"], schedule=schedule)
    write(tmp_path / "full", states, {29: 0.7}, test_accuracy=0.7, approximate=[], schedule=None)
    write(tmp_path / "bits", states, {29: 0.7}, test_accuracy=0.7, approximate=["bits"], schedule=None)
    rows = [
        SchemeRow(name, [SchemeRun.read(tmp_path / name, NodeClassification())]) for name in ("full", "late", "bits")
    ]
    compared = table(*rows)
    assert [row["epochs"] for row in compared.figures()] == [30, 30, 30]
    assert "Approximate epochs: 21 of 30 of late; the others are exact" in compared.sentence()
    assert [row["approximate_epochs"] for row in compared.figures()] == [0, 21, 30]


def test_seconds_without_computation_are_exposed() -> None:
    kinds = {"seconds_wait": [0.0, 1.0], "seconds_exchange": [1.0, 1.0], "seconds_sync": [0.5, 0.5]}
    lines = [{"seconds_compute": [9.0, 9.0], **kinds}, {"figures": {}}, {"seconds_compute": [9.0, 9.0], **kinds}]
    assert exposed_seconds(lines) == 2.5
    assert exposed_seconds([]) is None


def test_an_error_is_better_where_it_is_less_and_is_no_share() -> None:
    runs = [[run(2.0, {1.0: 4.0, 2.0: 2.0})], [run(2.5, {1.0: 2.01})]]
    found = table(SchemeRow("full", runs[0]), SchemeRow("parts", runs[1]), task=Regression())
    assert found.target == pytest.approx(2.0 / 0.99)
    assert found.sentence().startswith("parts reached val_mae 2.02 (99 % of the best of full) first, after 1 s")
    assert found.figures()[1]["difference"] == 0.5


def test_a_way_without_a_run_is_a_row_that_says_why() -> None:
    found = table(SchemeRow("full", [], "failed no memory"), SchemeRow("parts", [run(0.5, {1.0: 0.5})]))
    assert (found.figures()[0]["error"], found.figures()[0]["test_accuracy"]) == ("failed no memory", None)
    assert found.figures()[1]["difference"] == 0, "the first way that has a run is what others are held to"
    assert found.table().aligned().splitlines()[1].endswith("failed no memory")
    assert table(SchemeRow("full", [], "failed")).sentence() == ""
    assert table(SchemeRow("full", [], "failed")).table().rows[0][0] == "full"


def test_a_target_that_no_way_reached_in_every_run_is_told() -> None:
    early, late = run(0.5, {1.0: 0.9}), run(0.5, {1.0: 0.5})
    found = table(SchemeRow("full", [early, late]), SchemeRow("parts", [late]))
    assert found.sentence().startswith("No scheme reached val_accuracy 0.693 (99 % of the best of full) in every run.")
    bare = table(SchemeRow("full", [SchemeRun(None, 0, None, None, None, [])]))
    assert (bare.target, bare.times(bare.rows[0]), bare.sentence()) == (None, [], "")


def test_one_seed_tells_no_noise() -> None:
    found = table(*(SchemeRow(name, [run(0.5, {1.0: 0.5})]) for name in ("full", "parts")))
    assert found.sentence().endswith("One seed does not show the noise of test_accuracy: use compare.seeds=3.")


def test_means_are_equal_within_noise_by_students_test() -> None:
    assert within_noise([0.80, 0.81, 0.82], [0.79, 0.80, 0.81])
    assert not within_noise([0.80, 0.81, 0.82], [0.70, 0.71, 0.72])
    assert within_noise([0.5, 0.5], [0.5, 0.5])
    assert not within_noise([0.5], [0.5]), "nothing is known of noise"


def test_a_key_of_a_way_stands_in_place_of_the_same_key_of_all() -> None:
    (way,) = parse_schemes(["preset_workload  partition=hash strategy.halo=none"])
    common = ["partition=metis", "partition.k=3", "workers=4", "partitions=1"]
    assert way.over(common, ["seed=1"]) == (
        "workers=4", "partitions=1", "strategy=preset_workload", "partition=hash", "strategy.halo=none", "seed=1",
    )  # fmt: skip
    assert (way.name, way.stem) == (
        "preset_workload partition=hash strategy.halo=none",
        "preset_workload_partition=hash_strategy.halo=none",
    )


def test_ways_whose_folders_would_have_one_name_are_numbered() -> None:
    assert [way.stem for way in parse_schemes(["a b=1/2", "a b=1?2", "a"])] == ["a_b=1_2-0", "a_b=1_2-1", "a"]


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        (["a", "b x=1 y=2", "b y=2 x=1"], "compare.ways: b y=2 x=1 occurs twice"),
        ([" "], "compare.ways: '' must begin with the name of a strategy"),
        (["strategy=a"], "compare.ways: 'strategy=a' must begin with the name of a strategy"),
        (["a b"], "compare.ways: a b: b must be KEY=VALUE"),
        (["a seed=3"], "compare.ways: a seed=3: seed must be the same for all ways"),
        (
            ["a dataset.num_nodes=3"],
            "compare.ways: a dataset.num_nodes=3: dataset.num_nodes must be the same for all ways",
        ),
        (["a compare.seeds=3"], "compare.ways: a compare.seeds=3: compare.seeds must be the same for all ways"),
    ],
)
def test_a_way_that_cannot_be_one_is_refused(ways: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_schemes(ways)
    assert str(caught.value).startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["compare.ways=[]"], "compare.ways=[] must name at least one strategy"),
        (["compare.ways=[vertex_centric,vertex_centric]"], "compare.ways: vertex_centric occurs twice"),
        (["compare.ways=[vertex_centrik]"], "compare.ways: vertex_centrik: strategy=vertex_centrik is not known: did"),
        (
            ["compare.ways=['vertex_centric strategy.halo=none']"],
            "compare.ways: vertex_centric strategy.halo=none: strategy.halo is not known",
        ),
        (["compare.ways=['vertex_centric sampler=neighbor']"], "sampler=neighbor: strategy=vertex_centric does not sample"),
        (["compare.seeds=0"], "compare.seeds=0 must be a whole number"),
        (["compare.seed=2"], "compare.seed is not known: did you mean"),
        (["strategy=vertex_centric"], "strategy=vertex_centric: job=compare runs the strategies of compare.ways"),
        (["model=pagerank"], "job=compare trains, and model=pagerank is a program"),
        (["trainer.resume=x"], "trainer.resume: the runs of job=compare start from the beginning"),
        (["-m", "model.hidden=8,16"], "job=compare starts its own runs: remove -m"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_starts(
    keys: list[str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*THREADS, *keys]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"gnnkit: error: {expected}"), err
    assert (out, err.count("\n"), list(here.iterdir())) == ("", 1, [])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ways_have_a_folder_each_and_one_table(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*QUICK, "comm=gloo", "logger=none", TWO, "compare.seeds=2", "output=all"]
    assert main(asked) == 0
    stems = ["vertex_centric", "preset_workload_strategy.halo=none"]
    order = [row["folder"] for row in json.loads((here / "all/results.json").read_text())]
    assert order == [str(here / f"all/{stem}-seed{seed}") for seed in (0, 1) for stem in stems], "runs take turns"
    result = json.loads((here / "all/result.json").read_text())
    assert [row["way"] for row in result["ways"]] == ["vertex_centric", "preset_workload strategy.halo=none"]
    assert (result["figure"], result["failed"], result["seeds"]) == ("val_accuracy", 0, [0, 1])
    for row, stem in zip(result["ways"], stems, strict=True):
        runs = [json.loads((here / f"all/{stem}-seed{seed}/result.json").read_text()) for seed in (0, 1)]
        assert row["test_accuracy"] == pytest.approx(np.mean([each["test_accuracy"] for each in runs]))
        assert row["bytes_sent"] == np.mean([each["bytes_sent"] for each in runs])
        assert all(each["best_epoch"] in (1, 2) for each in runs), "the model of the best validation is kept"
        assert (row["runs"], row["epochs"]) == (2, 2)
    overrides = yaml.safe_load((here / f"all/{stems[1]}-seed1/.hydra/overrides.yaml").read_text())
    assert overrides == [
        *QUICK[1:], "comm=gloo", "logger=none", "strategy=preset_workload", "strategy.halo=none", "seed=1",
    ]  # fmt: skip
    page = (here / "all/report.html").read_text()
    assert "4 runs compared" in page
    assert result["summary"] in page.replace("&#39;", "'")
    out = capsys.readouterr().out
    assert re.search("scheme  runs  test_accuracy  deviation", out)
    assert result["summary"] in out
    assert "4 of 4 runs done" in out
    assert main(asked) == 2, "the folder holds a comparison"
    assert main([*asked, "on_exists=resume"]) == 0
    assert capsys.readouterr().out.count("done before") == 4
    alone = [text for text in overrides if text != "seed=1"]
    assert main([*alone, "seed=1", "output=alone"]) == 0
    arrays = [np.load(here / folder / "predictions.npy") for folder in ("alone", f"all/{stems[1]}-seed1")]
    assert np.array_equal(*arrays)


def test_an_interrupted_comparison_has_a_page_of_the_runs_that_ended(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_first(runner: Runner, jobs: Sequence[SweepJob]) -> None:
        runner.runs += [job.row() for job in jobs]
        if len(runner.runs) > 1:
            raise KeyboardInterrupt
        write(jobs[0].folder, [state(0, 1, 1.0)], {1: 0.5}, test_accuracy=0.5, world_size=1)
        runner.record(jobs[0].ended(0))

    monkeypatch.setattr(Runner, "run", run_first)
    assert main([*THREADS, TWO, "output=all"]) == 130
    assert "1 of 2 runs done" in capsys.readouterr().out
    page = (here / "all/report.html").read_text()
    assert "1 done, 1 not finished" in page
    assert "vertex_centric" in page
    assert not (here / "all/result.json").exists()


@pytest.mark.slow
def test_a_way_that_is_refused_and_one_that_fails_are_rows_that_say_why(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = "vertex_centric,'vertex_centric sampler=neighbor','individual_sample model=gine'"
    code = main([*THREADS, f"compare.ways=[{ways}]", "report=false", "output=all"])
    result = json.loads((here / "all/result.json").read_text())
    first, refused, failed = result["ways"]
    assert (code, result["failed"]) == (1, 2)
    assert (first["error"], first["runs"]) == (None, 1)
    assert refused["error"].startswith("failed sampler=neighbor: strategy=vertex_centric does not sample")
    assert (refused["test_accuracy"], failed["runs"]) == (None, 0)
    assert failed["error"].startswith("failed ")
    assert "1 of 3 runs done" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_link_is_a_key_of_every_run_and_changes_no_figure(here: Path) -> None:
    asked = [*THREADS, "compare.ways=[vertex_centric]", "report=false"]
    assert main([*asked, "output=plain"]) == 0
    assert main([*asked, "comm=slow_link", "comm.milliseconds=5", "output=slow"]) == 0
    plain, slow = (json.loads((here / name / "result.json").read_text())["ways"][0] for name in ("plain", "slow"))
    assert slow["test_accuracy"] == plain["test_accuracy"]
    assert slow["seconds_per_epoch"] > 0.02, "two exchanges or more, and a sum of two rounds"
    kept = yaml.safe_load((here / "slow/vertex_centric-seed0/config.yaml").read_text())
    assert (kept["comm"]["name"], kept["comm"]["milliseconds"]) == ("slow_link", 5)
    repeat = ["--config-dir", "slow/vertex_centric-seed0", "--config-name", "config", "output=again"]
    assert main(repeat) == 0
    again = json.loads((here / "again/result.json").read_text())
    assert again["test_accuracy"] == plain["test_accuracy"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_graph_and_a_model_from_python_are_compared(here: Path) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        *rng.integers(0, 40, (2, 160)),
        40,
        features=rng.normal(size=(40, 5)),
        labels=rng.integers(0, 3, 40),
        split=1 + np.arange(40) % 3,
    )
    result = gnnkit.train(
        graph,
        job="compare",
        compare={"ways": ["vertex_centric", "individual_sample strategy.batch_size=8"]},
        workers=2,
        comm="threads",
        model={"name": "sage", "hidden": 8},
        trainer={"max_epochs": 2, "check_val_every_n_epoch": 1, "monitor": "val_loss"},
        folder=here / "all",
        **BARE,
    )
    assert [row["way"] for row in result["ways"]] == ["vertex_centric", "individual_sample strategy.batch_size=8"]
    assert [(row["error"], row["runs"], row["epochs"]) for row in result["ways"]] == [(None, 1, 2)] * 2
    kept = yaml.safe_load((here / "all/vertex_centric-seed0/config.yaml").read_text())
    assert (kept["trainer"]["monitor"], kept["model"]["name"]) == ("val_loss", "sage")
    assert result.folder == here / "all"


@pytest.mark.slow
def test_keys_of_a_comparison_are_refused_in_other_jobs() -> None:
    with pytest.raises(UserError, match=r"^compare\.seeds is read by job=compare only: leave the key out$"):
        settle(compose(["strategy=vertex_centric", "compare.seeds=3"]))
