from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import gnnkit
from gnnkit import job, plugins
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.launch.processes import launch

STRATEGY = "strategy=vertex_centric"


class Runs(list[dict[str, Any]]):
    """The jobs that were started, and what each of them does."""

    action: Callable[[], dict[str, Any]] = dict


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Records jobs instead of running them."""
    runs = Runs()

    def run(config: dict[str, Any], folder: Path, **given: Any) -> dict[str, Any]:
        runs.append({"config": config, "folder": folder, **given})
        return runs.action()

    module = types.ModuleType("gnnkit.training.run")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gnnkit.training.run", module)
    return runs


def test_help_lists_plugins_jobs_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for kind in plugins.KINDS:
        assert all(name in text for name in plugins.options(kind))
    assert all(word in text for word in ("train|verify|plan|partition", "Exit codes:", "outputs/<date>/<time>/"))


def test_version_and_configuration_can_be_asked_for(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gnnkit ")
    assert main(["--cfg", STRATEGY, "model.hidden=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["hidden"] == 3
    assert not any(empty_folder.iterdir())


@pytest.mark.parametrize("spelling", [STRATEGY, f"+{STRATEGY}"])
def test_a_run_gets_a_settled_configuration_and_keeps_it(runs: Runs, spelling: str, empty_folder: Path) -> None:
    assert main([spelling, "partition=2d", "workers=2", "comm.timeout=9"]) == 0
    (run,) = runs
    config, folder = run["config"], run["folder"]
    assert (config["workers"], config["comm"]["name"], config["comm"]["timeout"]) == (2, "gloo", 9)
    assert config["threads"] >= 1
    assert folder.parent.parent == empty_folder / "outputs"
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "strategy is missing: choose one with strategy=NAME"),
        ([STRATEGY, "modle=gcn"], "modle is not known: did you mean model?"),
        ([STRATEGY, "model=gcnn"], "model=gcnn is not known: did you mean gcn?"),
        ([STRATEGY, "trainer.max_epoch=3"], "trainer.max_epoch is not known: did you mean trainer.max_epochs?"),
        ([STRATEGY, "+trainer.max_epoch=3"], "trainer.max_epoch is not known: did you mean max_epochs?"),
        ([STRATEGY, "+foo=3"], "foo is not known"),
        ([STRATEGY, "model=3"], "model=3 is not known"),
        ([STRATEGY, "~model"], "model is missing"),
        ([STRATEGY, "workers=0"], "workers=0 must be auto or a whole number of at least 1"),
        ([STRATEGY, "workers=1.5"], "workers=1.5 must be"),
        ([STRATEGY, "threads=true"], "threads=True must be"),
        ([STRATEGY, "seed=-1"], "seed=-1 must be a whole number"),
        ([STRATEGY, "job=trian"], "job=trian is not known: did you mean train?"),
        ([STRATEGY, "comm.timeout=0"], "comm.timeout=0 must be a positive number of seconds"),
        ([STRATEGY, "trainer.lr=fast"], "trainer.lr=fast must be a positive number"),
        ([STRATEGY, "trainer.lr=nan"], "trainer.lr=nan must be a positive number"),
        ([STRATEGY, "trainer.precision=16"], "trainer.precision=16 must be 32 or 64"),
        ([STRATEGY, "partition.nodes=hahs"], "partition.nodes=hahs is not known: did you mean hash?"),
        ([STRATEGY, "partition.grid=[4,1,1]", "workers=6"], "partition.grid=[4,1,1] needs 4 workers, got workers=6"),
        ([STRATEGY, "partition.border=min"], "partition.border=min is not known: did you mean min_words?"),
        ([STRATEGY, "seed"], "cannot read 'seed': write KEY=VALUE"),
        ([STRATEGY, "--multirun"], "unrecognized arguments: --multirun"),
        ([STRATEGY, "--config-dir", "none"], "--config-dir none is not a folder"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_two(
    runs: Runs, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str, empty_folder: Path
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"gnnkit: error: {expected}")
    assert (out, err.count("\n"), runs) == ("", 1, [])
    assert not any(empty_folder.iterdir()), "nothing is written before the configuration is checked"


def test_errors_of_the_data_end_with_two(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("dataset.root=x: features[3, 1] is nan")

    runs.action = fail
    assert main([STRATEGY]) == 2
    assert capsys.readouterr().err == "gnnkit: error: dataset.root=x: features[3, 1] is nan\n"


def test_a_folder_that_cannot_be_written_ends_with_two(
    runs: Runs, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder / "outputs").write_text("a file")
    assert main([STRATEGY]) == 2
    assert "cannot make a run folder in" in capsys.readouterr().err


def test_a_failed_rank_speaks_for_itself_and_our_own_mistakes_show_a_traceback(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        return {"x": 1 / 0}

    runs.action = lambda: launch(fail, 1)
    assert main([STRATEGY]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gnnkit: error: rank 0 failed: ZeroDivisionError")
    assert "launcher.py" not in error
    runs.action = fail
    assert main([STRATEGY]) == 1
    assert capsys.readouterr().err.startswith("Traceback")


def test_a_verification_that_fails_ends_with_one(runs: Runs) -> None:
    runs.action = lambda: {"verified": False}
    assert main([STRATEGY, "job=verify"]) == 1
    runs.action = lambda: {"verified": True}
    assert main([STRATEGY, "job=verify"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_become_exit_codes(runs: Runs, number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def interrupted() -> dict[str, Any]:
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError

    runs.action = interrupted
    try:
        assert main([STRATEGY]) == 128 + number
    finally:
        signal.signal(signal.SIGTERM, before)


def test_run_folders_are_never_shared() -> None:
    with ThreadPoolExecutor(20) as pool:
        folders = list(pool.map(lambda _: job.new_run_folder(), range(100)))
    assert len(set(folders)) == 100


def test_secrets_are_not_kept() -> None:
    config = {"dataset": {"name": "x", "options": {"api_key": "abc", "hosts": [{"password": "abc"}]}}, "token": None}
    text = job.to_yaml(config)
    assert "abc" not in text
    assert yaml.safe_load(text)["token"] is None


def test_workers_are_the_gpus_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(gpus: int, *overrides: str) -> tuple[int, str]:
        monkeypatch.setattr(job, "num_gpus", lambda: gpus)
        config = job.settle(compose([STRATEGY, *overrides]))
        return config["workers"], config["comm"]["name"]

    assert settled(0) == (4, "gloo")
    assert settled(1) == (4, "gloo")
    assert settled(8) == (8, "nccl")
    assert settled(1, "workers=1") == (1, "nccl")
    assert settled(2, "workers=3") == (3, "gloo")
    assert settled(8, "comm=threads") == (8, "threads")


def test_python_takes_the_same_keys(runs: Runs, empty_folder: Path) -> None:
    keys: dict[str, Any] = {"workers": 2, "trainer": {"max_epochs": 3}, "partition": {"name": "2d", "nodes": "hash"}}
    gnnkit.train(strategy="vertex_centric", model={"name": "sage", "hidden": 5}, overrides=["seed=7"], **keys)
    config = runs[0]["config"]
    assert (config["workers"], config["seed"], config["trainer"]["max_epochs"]) == (2, 7, 3)
    assert (config["partition"]["nodes"], config["partition"]["grid"]) == ("hash", "2d")
    assert (config["model"]["name"], config["model"]["hidden"]) == ("sage", 5)
    assert (runs[0]["graph"], runs[0]["model"]) == (None, None)
    with pytest.raises(ValueError, match="wrokers is not known: did you mean workers"):
        gnnkit.train(strategy="vertex_centric", wrokers=3)


def test_python_takes_a_graph_and_a_model(runs: Runs, empty_folder: Path) -> None:
    def two_layers(in_features: int, num_classes: int) -> Any: ...

    graph: Any = object()
    gnnkit.train(graph, strategy="vertex_centric", model=two_layers, folder=empty_folder / "run")
    assert (runs[0]["graph"], runs[0]["model"], runs[0]["folder"]) == (graph, two_layers, empty_folder / "run")
    assert runs[0]["config"]["model"] == {"name": "two_layers"}
    assert runs[0]["config"]["dataset"] == {"name": "graph"}
    with pytest.raises(ValueError, match="graph and dataset are given"):
        gnnkit.train(graph, strategy="vertex_centric", dataset="npz")
    with pytest.raises(ValueError, match=r"cannot make the run folder .*run: File exists"):
        gnnkit.train(graph, strategy="vertex_centric", folder=empty_folder / "run")


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "gnnkit", "strategy=x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gnnkit: error: strategy=x is not known")


@pytest.mark.parametrize("job", ["plan", "partition"])
def test_jobs_of_one_process_run_once_where_ranks_were_started(
    runs: Runs, job: str, monkeypatch: pytest.MonkeyPatch, empty_folder: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in (2, 0):
        monkeypatch.setenv("RANK", str(rank))
        assert main([STRATEGY, f"job={job}"]) == 0
    (run,) = runs
    assert run["config"]["workers"] == 3
    assert len(list(empty_folder.glob("outputs/*/*"))) == 1
