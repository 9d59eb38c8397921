"""Pages, traces and figures of real runs, and job=report."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import defaultdict
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_report.page import _template

import gnnkit
from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.comm.threads import Threads
from gnnkit.graph import CSC, Graph
from gnnkit.jobs import command
from gnnkit.leader import trace
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.prepare import run_partition
from gnnkit.utils import spans
from tests.jobs.test_train import small_graph
from tests.report.folders import HOSTILE, run_folder

TRAINER = {"max_epochs": 6, "checkpoint": False, "check_val_every_n_epoch": 2}


def train(folder: Path, **keys: Any) -> dict[str, Any]:
    chosen = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "cache": False, "trainer": TRAINER, **keys}
    result: dict[str, Any] = gnnkit.train(small_graph(), folder=folder, **chosen)
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a profiled run on processes."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder, comm="gloo", profile=True)
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.slow
def test_a_run_leaves_a_page_with_its_figures(run: Path) -> None:
    text, result = (run / "report.html").read_text(encoding="utf-8"), result_of(run)
    drawn = "loss figures_accuracy figures_macro_f1 confusion timeline ranks time graph nodes"
    assert re.findall(r'<figure id="(\w+)"', text) == drawn.split()
    for shown in (
        f"{result['test_accuracy']:.4g}",
        "vertex_centric on 2 workers",
        result["device"],
        result["versions"]["torch"],
    ):
        assert shown in text


@pytest.mark.slow
def test_the_parts_of_the_wall_time_add_up(run: Path) -> None:
    result = result_of(run)
    phases = result["phases"]
    assert list(phases) == ["starting", "reading", "partitioning", "cutting", "training", "evaluation"]
    assert all(seconds >= 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(result["seconds_total"])
    assert result["seconds_setup"] == pytest.approx(result["seconds_total"] - phases["training"] - phases["evaluation"])


@pytest.mark.slow
def test_a_result_says_parameters_device_command_and_words_between_ranks(run: Path) -> None:
    result = result_of(run)
    assert result["num_parameters"] == sum(p.numel() for p in gnnkit.load(run).parameters())
    assert "cores" in result["device"]
    assert result["command"].startswith("'gnnkit from Python:' model=gcn strategy=vertex_centric")
    between = np.load(run / "words_between.npy")
    received = sum(
        np.array(result["per_rank"][f"words_{kind}"]) for kind in ("gathered", "reduced", "sliced", "fetched")
    )
    assert np.allclose(between.sum(0), received, atol=4)  # rounded down, each kind by itself
    assert between.sum() > 0
    assert np.trace(between) == 0


@pytest.mark.slow
def test_epochs_have_the_sums_of_the_steps_of_all_workers(run: Path) -> None:
    steps: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for text in (run / "workers.jsonl").read_text().splitlines():
        state = json.loads(text)
        for name in (
            "rows",
            "edges",
            "bytes_sent",
            "seconds_compute",
            "seconds_exchange",
            "seconds_sync",
            "seconds_wait",
        ):
            steps[state["epoch"], state["rank"]][name] += state[name]
    lines = [json.loads(text) for text in (run / "epochs.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "train_loss" in line]
    assert [line["epoch"] for line in epochs] == list(range(6))
    assert [line["epoch"] for line in lines if "figures" in line] == [1, 3, 5]
    for line in epochs:
        for rank in range(2):
            for name, value in steps[line["epoch"], rank].items():
                assert line[name][rank] == pytest.approx(value, abs=1e-6)
    assert epochs[-1]["train_loss"] == result_of(run)["train_loss"]
    assert all(sum(line["bytes_sent"]) > 0 for line in epochs)


@pytest.mark.slow
def test_a_trace_has_every_rank_on_one_clock_and_time_is_counted_once(run: Path) -> None:
    content = json.loads((run / "trace.json").read_text())
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    rows: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        rows[event["pid"], event["cat"]].append((event["ts"], event["ts"] + event["dur"]))
    assert {row for row, _ in rows} == {0, 1}
    assert {name for _, name in rows} == {"step", "compute", "exchange", "sync", "wait"}
    steps = [sorted(rows[rank, "step"]) for rank in range(2)]
    assert [len(each) for each in steps] == [6, 6]
    for (begin, end), (other_begin, other_end) in zip(*steps, strict=True):  # ranks meet in every step
        assert min(end, other_end) > max(begin, other_begin)
    for rank in range(2):
        inside = sum(end - begin for begin, end in rows[rank, "step"])
        parts = sum(end - begin for name in ("compute", "exchange", "sync") for begin, end in rows[rank, name])
        assert parts <= 1.02 * inside + 100  # microseconds
    named = {event["args"].get("name") for event in content["traceEvents"] if event["ph"] == "M"}
    assert {"rank 0", "rank 1", "compute", "exchange"} <= named


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_trace_shows_the_threads_that_draw(tmp_path: Path) -> None:
    sampler = {"name": "neighbor", "fanouts": [3, 3]}
    strategy = {"name": "individual_sample", "batch_size": 4}
    train(tmp_path / "run", strategy=strategy, sampler=sampler, profile=True, threads=2, report=False)
    events = json.loads((tmp_path / "run/trace.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X" and event["cat"].startswith("sampling thread")]
    steps = [event for event in events if event["ph"] == "X" and event["cat"] == "step"]
    assert {event["pid"] for event in drawn} == {0, 1}
    assert sum(event["name"].startswith("draw") for event in drawn) == len(steps)
    assert sum(event["name"].startswith("gather") for event in drawn) == len(steps)
    last = max(event["ts"] + event["dur"] for event in steps)
    assert all(event["ts"] + event["dur"] <= last for event in drawn)
    assert not (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/partition.json").exists()


def test_a_trace_is_bounded_and_says_what_is_left_out() -> None:
    spans.record(3)
    own = spans.active()
    assert own is not None
    spans.stop()
    assert spans.active() is None
    for index in range(5):
        own.add("exchange", "exchange", index, index + 0.5)
    content = trace.to_chrome([trace.Track(1, own.kept, own.dropped, 0.25)])
    assert sum(event["ph"] == "X" for event in content["traceEvents"]) == 3
    assert content["otherData"] == {"clock_offsets_seconds": {"rank 1": 0.25}, "spans_left_out": {"rank 1": 2}}
    assert trace.limit(1) == spans.LIMIT
    assert trace.limit(1000) * 1000 <= trace.MOST


def test_compute_is_what_no_other_track_covers() -> None:
    given = [("step", "s", 0.0, 10.0), ("wait", "w", 0.0, 1.0), ("exchange", "e", 2.0, 4.0), ("exchange", "e", 3.0, 5.0),
             ("sync", "y", 9.0, 12.0), ("step", "t", 12.0, 13.0), ("sampling", "d", 5.0, 6.0)]  # fmt: skip
    assert list(trace.computing(given)) == [
        ("compute", "s", 1.0, 2.0),
        ("compute", "s", 5.0, 9.0),
        ("compute", "t", 12.0, 13.0),
    ]


def test_the_clock_of_another_machine_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    later = 1234.5  # seconds that the clock of rank 1 is ahead

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return real() + (later if rank_of_thread() else 0.0)

    real = trace.time.perf_counter
    ranks: dict[int, int] = {}

    def rank_of_thread() -> int:
        return ranks[__import__("threading").get_ident()]

    def work(comm: Threads) -> list[float]:
        ranks[__import__("threading").get_ident()] = comm.rank
        own = spans.Spans()
        begin = Clock.perf_counter()
        own.add("step", "step", begin, begin + 1)
        with comm.mailbox() as mailbox:
            found = trace.gather(own, mailbox, 2, 10)
        return [track.spans[0][2] for track in found] + [track.offset for track in found]

    monkeypatch.setattr(trace, "time", Clock)
    monkeypatch.setattr(trace, "read_or_empty", lambda _: str(rank_of_thread()))
    first, second, _, offset = Threads.run(work, 2)[0]
    assert offset == pytest.approx(later, abs=0.5)
    assert abs(first - second) < 1


@pytest.mark.slow
def test_one_run_gets_its_page_again_without_training(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy's <b>"
    shutil.copytree(run, folder)
    (folder / "report.html").unlink()
    name = str(folder).replace("'", "\\'")
    assert main(["job=report", f"runs='{name}'"]) == 0
    assert "report.html" in capsys.readouterr().out
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "copy&#39;s &lt;b&gt;" in text
    assert "<b>0." in text  # our own elements are elements


@pytest.mark.slow
def test_several_runs_are_compared_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(run_folder(tmp_path / name, text=HOSTILE)) for name in "ab"]
    assert main(["job=report", f"runs=[{','.join(folders)}]", f"output={tmp_path / 'page'}"]) == 0
    text = (tmp_path / "page/report.html").read_text(encoding="utf-8")
    assert "2 runs compared" in text
    assert text.count("<script") == 1
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"report.html", "table.md", "table.tex"}
    assert "torch" not in sys.modules or capsys.readouterr().out.startswith("2 runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], "job=report needs runs=FOLDER"),
        (["runs=nowhere"], "runs=nowhere: there is no result.json"),
        (["runs=[1,2]"], "runs=1 must be a path"),
        (["runs=x", "job=train"], "runs is read by job=report only: leave the key out"),
        (["report=maybe"], "report=maybe must be true or false"),
        (["report=live"], "use logger=tensorboard during training"),
        (["profile=1"], "profile=1 must be true or false"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(
    keys: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["job=report", *keys] if "job=train" not in keys else ["strategy=vertex_centric", *keys]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_page_that_cannot_be_made_costs_a_line_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> bytes:
        raise RuntimeError("no\nink")

    monkeypatch.setattr("gnnkit_report.page.asset", fail)
    monkeypatch.setattr("gnnkit_report.page._template", _template.__wrapped__)
    result = train(tmp_path / "run")
    assert result_of(tmp_path / "run") == result
    assert "report.html is not written, the results are kept: RuntimeError: no ink" in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_without_the_package_of_the_report_says_what_to_install_and_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    points = plugins._points

    def others(kind: str) -> EntryPoints:
        return EntryPoints(point for point in points(kind) if (kind, point.name) != ("job", "report"))

    monkeypatch.setattr(plugins, "_points", others)
    result = train(tmp_path / "run", trainer={**TRAINER, "progress_bar": True})  # without the terminal's display
    assert result_of(tmp_path / "run") == result
    assert not (tmp_path / "run/report.html").exists()
    reason = "UserError: job=report: the package gnnkit-report is not installed: pip install gnnkit-report"
    assert f"report.html is not written, the results are kept: {reason}\n" in capfd.readouterr().err


def test_secrets_are_no_part_of_the_command_line() -> None:
    text = command(["dataset.api_key=abc", "dataset.root=https://me:pw@host/x?token=t&a=1", "model=gcn"])
    assert text == "gnnkit 'dataset.api_key=***' 'dataset.root=https://***@host/x?token=***&a=1' model=gcn"


def test_the_picture_of_a_large_graph_is_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 5000, (2, 40_000))
    graph = Graph(
        CSC.from_edges(src, dst, 5000),
        np.zeros((5000, 1), np.float32),
        np.zeros(5000, np.int64),
        np.ones(5000, np.int8),
    )
    owner = (np.arange(5000) // 2500).astype(np.int32)
    partition = Partition(owner, None, Grid(2, 1, 1))
    whole = run_partition.draw_picture(graph, partition)
    assert whole["counted_edges"] == whole["num_edges"] == graph.num_edges
    assert np.sum(whole["edges"]) == graph.num_edges
    assert whole["cut"] == whole["edges"][0][1] + whole["edges"][1][0]
    assert len(whole["sample"]["rank"]) == run_partition.DRAWN_NODES
    assert whole["sample"]["whole"] is False
    monkeypatch.setattr(run_partition, "COUNTED_EDGES", 4000)
    part = run_partition.draw_picture(graph, partition)
    assert 2000 < part["counted_edges"] < 6000
    assert part["cut"] / part["counted_edges"] == pytest.approx(whole["cut"] / graph.num_edges, abs=0.05)
