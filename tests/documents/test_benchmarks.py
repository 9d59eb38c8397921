"""The parts of the benchmarks that measure nothing, and a short look at the link."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.reads("benchmarks", "gnnkit")
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("link", "runs", "peers", "step", "instructions", "stragglers", "variants", "variants_page", "strategies")
COMMANDS = sorted(path for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _beside_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks import each other, as scripts of one folder do."""
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def runs() -> ModuleType:
    return importlib.import_module("runs")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.stem)
def test_every_benchmark_explains_itself(
    command: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(command), "--help"])
    with pytest.raises(SystemExit) as exits:
        runpy.run_path(str(command), run_name="__main__")
    assert exits.value.code == 0
    first = command.read_text(encoding="utf-8").splitlines()[0].strip('"')
    assert first in capsys.readouterr().out


def state(rank: int, epoch: int, seconds: float) -> dict[str, float]:
    return {
        "rank": rank,
        "epoch": epoch,
        "seconds_wait": 0.0,
        "seconds_compute": seconds,
        "seconds_exchange": 0.5,
        "seconds_sync": 0.5,
        "memory": 100 + rank,
    }


def test_the_time_to_an_accuracy_is_of_the_slowest_worker_without_evaluations(runs: ModuleType, tmp_path: Path) -> None:
    states = [state(rank, epoch, 1.0 + rank) for epoch in (0, 1, 1) for rank in (0, 1)]
    (tmp_path / "workers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in states))
    parts = {"seconds_wait": [0.0, 0.0], "seconds_exchange": [0.5, 0.5], "seconds_sync": [0.5, 0.5]}
    epochs = [{"epoch": epoch, "seconds_compute": [1.0, 2.0]} | parts for epoch in (0, 1, 1)]
    (tmp_path / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs))
    (tmp_path / "csv").mkdir()
    lines = ["epoch,val_accuracy,train_loss", ",,0.1", "0,0.5,", "1,,0.1", "1,0.75,"]
    (tmp_path / "csv/metrics.csv").write_text("\n".join(lines))
    result = {"test_accuracy": 0.7, "bytes_sent": 8, "epochs": 2}
    (tmp_path / "result.json").write_text(json.dumps(result))
    figures = runs.read_figures(tmp_path, 100)
    assert figures == runs.Figures(0.7, 8, 50.0, 6.0, 101, [(3.0, 0.5), (9.0, 0.75)])
    assert [figures.seconds_to(accuracy) for accuracy in (0.5, 0.6, 0.8)] == [3.0, 9.0, None]
    assert runs.seconds_to([figures, figures], 0.6) == "9.00"
    assert runs.seconds_to([figures], 0.8) == "not reached"


def test_a_store_finds_the_runs_of_an_earlier_command(runs: ModuleType, tmp_path: Path) -> None:
    case = runs.Case("exact", "loopback", ("strategy=vertex_centric", "seed=0"))
    figures = runs.Figures(0.7, 8, None, 3.0, 101, [(3.0, 0.5)])
    runs.Store(tmp_path / "deep/runs.jsonl").add(case, figures)
    assert runs.Store(tmp_path / "deep/runs.jsonl").done == {case: figures}


def test_runs_on_several_graphs_are_one_table_of_points_by_seed(runs: ModuleType, tmp_path: Path) -> None:
    for graph, accurate in (("a", (0.8, 0.9)), ("b", (0.5,))):
        store = runs.Store(tmp_path / graph)
        for seed, accuracy in enumerate(accurate):
            for row, lost in (("exact", 0.0), ("preset", 0.01 * (1 + 2 * seed))):
                case = runs.Case(row, "loopback", ("strategy=x", f"seed={seed}"))
                store.add(case, runs.Figures(accuracy - lost, 8, None, 3.0, 101, []))
    runs.Store(tmp_path / "a").add(
        runs.Case("preset", "loopback", ("seed=7",)), runs.Figures(0.1, 8, None, 3.0, 101, [])
    )
    table = importlib.import_module("variants_page")
    output = table.page({graph: table.accuracies(tmp_path / graph) for graph in ("a", "b")})
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines()]
    assert lines[0] == ["variant", "a", "b"]
    assert lines[2:] == [["exact", "85.0 ± 5.0 (2)", "50.0 (1)"], ["preset", "-2.0 ± 1.0 (2)", "-1.0 (1)"]]


def test_a_variant_is_compared_with_the_exact_one_in_points(runs: ModuleType) -> None:
    variants = importlib.import_module("variants")
    exact = [runs.Figures(accuracy, 2_000_000, None, 1.0, 1, [(1.0, 0.9)]) for accuracy in (0.80, 0.82)]
    second = [runs.Figures(accuracy, 1_000_000, None, 1.0, 1, [(1.0, 0.9)]) for accuracy in (0.78, 0.80)]
    measurements = runs.Measurements(
        ["exact", "pipelined"], ["loopback"], {("exact", "loopback"): exact, ("pipelined", "loopback"): second}, 0
    )
    actual = variants.summaries(measurements)
    assert actual["pipelined"].points == pytest.approx(-2.0)
    assert (actual["exact"].within, actual["pipelined"].within) == ("yes", "no")
    assert actual["pipelined"].megabytes == 1.0
    assert actual["exact"].error == pytest.approx(1.0)
    assert measurements.target == pytest.approx(0.891)


def test_slow_steps_are_the_same_in_every_mode_and_as_frequent_as_wanted() -> None:
    delays = importlib.import_module("stragglers").Delays(base=1.0, slowdown=5.0, probability=0.1)
    draws = [[delays.seconds(rank, step) for step in range(500)] for rank in range(4)]
    assert draws == [[delays.seconds(rank, step) for step in range(500)] for rank in range(4)]
    assert 0.08 < sum(each == 5.0 for rank in draws for each in rank) / 2000 < 0.12
    assert delays.bound(4, 500) == pytest.approx(4 / 1.4, rel=0.05)


def test_one_slow_worker_is_slow_in_every_step() -> None:
    delays = importlib.import_module("stragglers").Delays(base=0.1, slowdown=5.0, probability=0.0, always=3)
    assert delays.bound(4, 100) == pytest.approx(3.2)


def test_a_link_has_its_rate_and_leaves_nothing_or_says_what_it_needs() -> None:
    link = importlib.import_module("link")
    network, refused = link.Network(2, link.Shape(gigabits=0.1)), ""
    try:
        with network:
            assert 0.01 < network.measure(size=1 << 20, rounds=5).gigabits < 0.11
            assert min(network.sent()) > 0
    except link.Unavailable as error:
        refused = str(error)
    # The missing right or tool, or the command that failed.
    assert refused.startswith(("needs ", "ip ", "tc ")) or not refused
    assert not list(Path("/sys/class/net").glob(f"{network.name}*"))
    assert not list(Path("/run/netns").glob(f"{network.name}*"))
