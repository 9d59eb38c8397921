from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gnnkit_plan import Plan

import gnnkit
from gnnkit import config, plugins
from gnnkit.__main__ import main
from gnnkit.command import _parser
from gnnkit.config import compose, keys
from gnnkit.errors import UserError
from gnnkit.jobs import Order, builtin, to_yaml
from gnnkit.jobs.folder import new_folder
from gnnkit.jobs.job import OnRanks, Run
from gnnkit.launch.processes import launch
from gnnkit.launch.progress import progress
from gnnkit.result.result import Result
from gnnkit.testing import example_graphs
from tests.cases import exhaustive
from tests.runs import compose_once

STRATEGY = "strategy=vertex_centric"


class Runs(list[Order]):
    """The jobs that were started, and the action of each."""

    action: Callable[[], dict[str, Any]] = dict


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "compose", compose_once)
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Records jobs instead of running jobs."""
    runs = Runs()

    def work(job: Run, order: Order) -> Result:
        runs.append(order)
        return Result(order.settings.job.name, runs.action())

    for kind in (OnRanks, Plan, builtin.Partition):
        monkeypatch.setattr(kind, "work", work)
    return runs


def test_help_lists_plugins_keys_of_the_run_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for kind in plugins.KINDS:
        assert all(name in text for name in plugins.options(kind))
    words = ("max_epochs", "threads=auto", "train verify", "Exit codes:", "outputs/<date>/<time>/")
    assert [word for word in words if word not in text] == []
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("section", [*plugins.KINDS, "trainer"])
def test_help_of_a_section_lists_every_key_with_default_and_meaning(
    section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", section]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for name in plugins.options(section):
        assert f"{section}={name}\n" in text
        for key in keys.read(section, name).keys:
            assert key.comment or key.name in ("nodes", "grid"), f"{section}={name}: {key.name} has no comment"
            assert f"{section}.{key.name}=" in text


def test_help_of_an_option_lists_its_keys_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "model=gat"]) == 0
    assert "    model.negative_slope=0.2      negative slope of the attention's leaky ReLU\n" in capsys.readouterr().out
    assert main(["--help", "dataset=npz"]) == 0
    text = capsys.readouterr().out
    assert "    dataset.root=VALUE            the file; must be set\n" in text
    assert "pystdlib" not in text


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("modle", "did you mean model?"), ("model=gcnn", "model=gcnn is not known: did you mean gcn?")],
)
def test_help_of_what_does_not_exist_ends_with_two(
    topic: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", topic]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_version_and_configuration_can_be_asked_for(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gnnkit ")
    assert main(["--cfg", STRATEGY, "model.hidden=3"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == compose([STRATEGY, "model.hidden=3"])
    assert "  hidden: 3  # width of the hidden layers\n" in text
    assert not any(empty_folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("spelling", [STRATEGY, exhaustive(f"+{STRATEGY}")])
def test_a_run_gets_a_settled_configuration_and_keeps_it(runs: Runs, spelling: str, empty_folder: Path) -> None:
    assert main([spelling, "partition=2d", "workers=2", "comm.timeout=9"]) == 0
    (run,) = runs
    settings, folder = run.settings, run.run_folder
    assert (settings.workers, settings.comm.name, settings.timeout) == (2, "gloo", 9)
    assert settings.threads >= 1
    assert folder.parent.parent == empty_folder / "outputs"
    text = (folder / "config.yaml").read_text()
    assert yaml.safe_load(text) == settings.composed
    assert "max_epochs: 100  # passes over the training nodes\n" in text


# Cases that test_config.py also has are exhaustive.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        exhaustive(([STRATEGY, "modle=gcn"], "modle is not known: did you mean model?")),
        exhaustive(([STRATEGY, "model=gcnn"], "model=gcnn is not known: did you mean gcn?")),
        exhaustive(
            ([STRATEGY, "trainer.max_epoch=3"], "trainer.max_epoch is not known: did you mean trainer.max_epochs?")
        ),
        exhaustive(
            ([STRATEGY, "+trainer.max_epoch=3"], "trainer.max_epoch is not known: did you mean trainer.max_epochs?")
        ),
        exhaustive(([STRATEGY, "+foo=3"], "foo is not known")),
        exhaustive(([STRATEGY, "model=3"], "model=3 is not known")),
        ([STRATEGY, "~model"], "model is missing"),
        ([STRATEGY, "workers=0"], "workers=0 must be null, auto or a whole number from 1 to 65536"),
        ([STRATEGY, "workers=1.5"], "workers=1.5 must be"),
        ([STRATEGY, "threads=true"], "threads=True must be"),
        ([STRATEGY, "seed=-1"], "seed=-1 must be a whole number"),
        ([STRATEGY, "job=trian"], "job=trian is not known: did you mean train?"),
        ([STRATEGY, "comm.timeout=0"], "comm.timeout=0 must be a number above 0"),
        ([STRATEGY, "trainer.lr=fast"], "trainer.lr=fast must be a number above 0"),
        ([STRATEGY, "trainer.lr=nan"], "trainer.lr=nan must be a number above 0"),
        exhaustive(([STRATEGY, "lr=0.1"], "lr is not known: did you mean trainer.lr?")),
        exhaustive(([STRATEGY, "+lr=0.1"], "lr is not known: did you mean trainer.lr?")),
        ([STRATEGY, "trainer.precision=16"], "trainer.precision=16 must be 32 or 64 or bf16-mixed"),
        ([STRATEGY, "partition.nodes=hahs"], "partition.nodes=hahs is not known: did you mean hash?"),
        (
            [STRATEGY, "partition.grid=[4,1,1]", "workers=6"],
            "partition.grid=[4,1,1] needs 4 workers, got workers=6: use workers=4",
        ),
        exhaustive(([STRATEGY, "partition.border=min"], "partition.border=min is not known: did you mean min_words?")),
        exhaustive(([STRATEGY, "seed"], "cannot read 'seed': write KEY=VALUE")),
        ([STRATEGY, "--multirn"], "--multirn is not an option: did you mean --multirun?"),
        ([STRATEGY, "--epochs", "10"], "--epochs is not an option: write trainer.max_epochs=10; see"),
        exhaustive(
            (
                [STRATEGY, "--learning-rate=0.1", "seed=1"],
                "--learning-rate=0.1 is not an option: write trainer.lr=0.1; see",
            )
        ),
        ([STRATEGY, "--gpus", "seed=1"], "--gpus is not an option: write workers=VALUE; see"),
        ([STRATEGY, "--nonsense"], "--nonsense is not an option: write keys as KEY=VALUE; see"),
        (["train", STRATEGY], "cannot read 'train': write KEY=VALUE, as in job=train"),
        (["predict"], "cannot read 'predict': write KEY=VALUE, as in job=predict"),
        (["GAT", STRATEGY], "cannot read 'GAT': write KEY=VALUE, as in model=gat"),
        (["model=GraphSAGE"], "model=GraphSAGE is not known: did you mean sage?"),
        exhaustive(([STRATEGY, "gpus=2"], "gpus is not known: did you mean workers?")),
        exhaustive(([STRATEGY, "device=cuda"], "device is not known: did you mean comm?")),
        exhaustive(
            (
                [STRATEGY, "batch_size=32"],
                "batch_size is not known: strategy.batch_size needs strategy=individual_sample or strategy=joint_sample",
            )
        ),
        (
            [STRATEGY, "model.num_heads=2"],
            "model.num_heads is not known: model.heads needs model=gat or model=hgt or model=rgat or model=simple_hgn or model=tgat: choose it, or remove",
        ),
        exhaustive(([STRATEGY, "seed=range(3)"], "seed=range(3) is a sweep over 3 values: add -m (--multirun)")),
        (
            [STRATEGY, "hydra.job.chdir=true"],
            "hydra.job.chdir cannot be changed: the supported Hydra settings are hydra.",
        ),
        ([STRATEGY, "hydra/job_logging=x"], "hydra/job_logging cannot be changed"),
        ([STRATEGY, "hydra.run.dir=a", "output=b"], "output and hydra.run.dir both name the run folder"),
        ([STRATEGY, "hydra.run.dir=${eval:1}"], "override 'hydra.run.dir=${eval:1}': resolvers other than"),
        ([STRATEGY, "hydra.verbose=3"], "hydra.verbose=3 must be true, false, a name"),
        ([STRATEGY, "on_exists=keep"], "on_exists=keep is not known: there are: refuse, replace, resume"),
        ([STRATEGY, "on_exists=resume", "job=partition"], "on_exists=resume: job=partition has no checkpoint"),
        ([STRATEGY, "on_exists=resume", "trainer.resume=x"], "on_exists=resume and trainer.resume exclude each other"),
        ([STRATEGY, "--config-name", "mine"], "--config-name mine: no such file in any --config-dir"),
        ([STRATEGY, "-m", "--cfg"], "--cfg shows the configuration of one job"),
        ([STRATEGY, "--cfg=yaml"], "argument --cfg: invalid choice: 'yaml'"),
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


def test_what_the_user_can_mend_in_the_data_ends_with_two_in_one_line(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> dict[str, Any]:
        raise UserError("dataset.root=x\n: features[3, 1] is nan\n")

    runs.action = fail
    assert main([STRATEGY]) == 2
    assert capsys.readouterr().err == "gnnkit: error: dataset.root=x : features[3, 1] is nan\n"


def test_a_value_error_of_anybody_else_keeps_its_traceback(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.action = lambda: {"x": np.zeros(3).reshape(2, 2)}
    assert main([STRATEGY]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert "cannot reshape array" in error


@pytest.mark.slow
def test_a_value_error_on_a_rank_keeps_its_traceback(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def work(*_: Any) -> dict[str, Any]:
        return {"x": np.zeros(3).reshape(2, 2)}

    runs.action = lambda: launch(work, 1)[0]
    assert main([STRATEGY]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gnnkit: error: rank 0 failed: ValueError: cannot reshape array")
    assert "Traceback" in error


@pytest.mark.slow
def test_a_user_error_on_a_rank_is_one_line(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def work(*_: Any) -> dict[str, Any]:
        raise UserError("sampler.fanouts has 3 hops")

    runs.action = lambda: launch(work, 1)[0]
    assert main([STRATEGY]) == 2
    assert capsys.readouterr().err == "gnnkit: error: sampler.fanouts has 3 hops\n"


def test_a_folder_that_cannot_be_written_ends_with_two(
    runs: Runs, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder / "outputs").write_text("a file")
    assert main([STRATEGY]) == 2
    assert "cannot make a run folder in" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_rank_speaks_for_itself_and_our_own_mistakes_show_a_traceback(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        return {"x": 1 / 0}

    runs.action = lambda: launch(fail, 1)[0]
    assert main([STRATEGY]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gnnkit: error: rank 0 failed: ZeroDivisionError")
    assert "gnnkit/launch" not in error
    runs.action = fail
    assert main([STRATEGY]) == 1
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.slow
def test_a_verification_that_fails_ends_with_one(runs: Runs) -> None:
    runs.action = lambda: {"verified": False}
    assert main([STRATEGY, "job=verify"]) == 1
    runs.action = lambda: {"verified": True}
    assert main([STRATEGY, "job=verify"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_become_exit_codes(runs: Runs, number: signal.Signals) -> None:
    def interrupted() -> dict[str, Any]:
        os.kill(os.getpid(), number)
        progress("the next step")
        raise AssertionError

    runs.action = interrupted
    assert main([STRATEGY]) == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_says_how_to_go_on(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], runs: Runs, empty_folder: Path
) -> None:
    def interrupted() -> dict[str, Any]:
        if number == signal.SIGTERM:  # after a checkpoint
            (empty_folder / "run" / "checkpoints").mkdir()
            (empty_folder / "run" / "checkpoints" / "last.json").touch()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)

    runs.action = interrupted
    assert main([STRATEGY, "output=run"]) == 128 + number
    message = {
        signal.SIGINT: f"interrupted: no checkpoint was written to {empty_folder}/run yet",
        signal.SIGTERM: f"keeps the last checkpoint: gnnkit {STRATEGY} output={empty_folder}/run on_exists=resume goes on",
    }
    assert message[number] in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_that_goes_on_has_the_folders_of_configuration_too(
    capsys: pytest.CaptureFixture[str], runs: Runs, empty_folder: Path
) -> None:
    def interrupted() -> dict[str, Any]:
        (empty_folder / "run" / "checkpoints").mkdir()
        (empty_folder / "run" / "checkpoints" / "last.json").touch()
        raise KeyboardInterrupt

    (empty_folder / "my conf/experiment").mkdir(parents=True)
    (empty_folder / "my conf/experiment/mine.yaml").write_text("# @package _global_\nseed: 3\n")
    arguments = ["--config-dir", "my conf", "+experiment=mine", STRATEGY]
    assert main([*arguments, "output=done"]) == 0
    runs.action = interrupted
    assert main([*arguments, "output=run"]) == 130
    again = f"gnnkit '--config-dir={empty_folder}/my conf' +experiment=mine {STRATEGY} output="
    assert f"{again}{empty_folder}/run on_exists=resume goes on" in capsys.readouterr().err
    assert runs[0].command(runs[0].overrides) == f"{again}done"


@pytest.mark.slow
def test_run_folders_are_never_shared() -> None:
    with ThreadPoolExecutor(20) as pool:
        folders = list(pool.map(lambda _: new_folder(Path("outputs")), range(100)))
    assert len(set(folders)) == 100


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_run_folder_can_be_named_and_must_be_new(
    runs: Runs, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert main([STRATEGY, "output=results/first"]) == 0
    assert runs[0].run_folder == empty_folder / "results" / "first"
    assert (runs[0].run_folder / "result.json").is_file()
    assert main([STRATEGY, "output=results/first"]) == 2
    assert len(runs) == 1
    assert "cannot make the run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key",
    ["token", "hf_token", "apiKey", "api_key", "password", "dbpasswd", "pwd", "auth", "authToken", "access_key", "aws.access_key",
     "private_key", "PRIVATE-KEY", "client_secret", "credentials", "authorization", "tokens"],
)  # fmt: skip
def test_values_of_keys_that_look_like_secrets_are_not_kept(key: str) -> None:
    config = {"dataset": {"name": "x", "options": {"hosts": [{key: "abc"}], key: "abc"}}, key: None}
    text = to_yaml(config)
    assert "abc" not in text
    assert yaml.safe_load(text)[key] is None, "what is not set is no secret"


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_tokens", 512), ("max_tokens", 7), ("author", "Kipf"), ("keys", "k"), ("tokenizer", "bpe"), ("monkey", "m"),
     ("root", "https://host/path?split=3#top"), ("root", "git@host:path")],
)  # fmt: skip
def test_what_is_no_secret_is_kept(key: str, value: object) -> None:
    assert yaml.safe_load(to_yaml({"dataset": {key: value}})) == {"dataset": {key: value}}


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://me:abc@host/data", "https://***@host/data"),
        ("s3://abc@bucket", "s3://***@bucket"),
        ("https://host/x?split=3&token=abc&y=1", "https://host/x?split=3&token=***&y=1"),
        ("https://host/x?X-Api-Key=abc", "https://host/x?X-Api-Key=***"),
    ],
)
def test_credentials_in_urls_are_not_kept(url: str, kept: str) -> None:
    assert yaml.safe_load(to_yaml({"dataset": {"root": url, "mirrors": [url]}})) == {
        "dataset": {"root": kept, "mirrors": [kept]}
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_python_takes_the_same_keys(runs: Runs, empty_folder: Path) -> None:
    keys: dict[str, Any] = {"workers": 2, "trainer": {"max_epochs": 3}, "partition": {"name": "2d", "nodes": "hash"}}
    gnnkit.train(strategy="vertex_centric", model={"name": "sage", "hidden": 5}, overrides=["seed=7"], **keys)
    settings = runs[0].settings
    assert (settings.workers, settings.seed, settings.trainer.max_epochs) == (2, 7, 3)
    assert (settings.partition.nodes.name, settings.partition.grid) == ("hash", "2d")
    assert (settings.model.name, settings.model.arguments["hidden"]) == ("sage", 5)
    assert (runs[0].graph, runs[0].model) == (None, None)
    with pytest.raises(ValueError, match="wrokers is not known: did you mean workers"):
        gnnkit.train(strategy="vertex_centric", wrokers=3)


@pytest.mark.slow
def test_python_takes_a_graph_and_a_model(runs: Runs, empty_folder: Path) -> None:
    def two_layers(in_features: int, num_classes: int) -> Any: ...

    graph = example_graphs()[0]
    gnnkit.train(graph, strategy="vertex_centric", model=two_layers, folder=empty_folder / "run")
    assert (runs[0].graph, runs[0].model, runs[0].run_folder) == (graph, two_layers, empty_folder / "run")
    config = runs[0].settings.composed
    assert (config["model"], config["dataset"]) == ({"name": "two_layers"}, {"name": "graph"})
    with pytest.raises(ValueError, match="graph and dataset are given"):
        gnnkit.train(graph, strategy="vertex_centric", dataset="npz")
    for of_model in list[dict[str, Any]]([{}, {"model": "sage"}, {"model": two_layers}]):
        with pytest.raises(ValueError, match=r"^graph=None: expected a graph .*return it\?\), or dataset=NAME"):
            gnnkit.train(None, **of_model)
    gnnkit.train(
        None,
        strategy="vertex_centric",
        model=two_layers,
        dataset={"name": "saved", "root": "x"},
        folder=empty_folder / "named",
    )
    gnnkit.train(strategy="vertex_centric", model=two_layers, folder=empty_folder / "bundled")
    with pytest.raises(ValueError, match=r"cannot make the run folder .*run: it holds a run"):
        gnnkit.train(graph, strategy="vertex_centric", folder=empty_folder / "run")


@pytest.mark.slow
def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "gnnkit", "strategy=x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gnnkit: error: strategy=x is not known")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("reader", ["| head -1; exit ${PIPESTATUS[0]}", ">&- 2>&- <&-"])
def test_a_result_is_kept_whoever_reads_the_output(reader: str, empty_folder: Path) -> None:
    keys = "strategy=vertex_centric dataset=synthetic dataset.num_nodes=50 dataset.num_edges=90 workers=2 comm=threads report=false"
    command = f"{sys.executable} -m gnnkit {keys} logger=none trainer.max_epochs=1 output=run {reader}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((empty_folder / "run/result.json").read_text())["epochs"] == 1
    assert "Error" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("job", ["plan", "partition"])
def test_jobs_of_one_process_run_once_where_ranks_were_started(
    runs: Runs, job: str, monkeypatch: pytest.MonkeyPatch, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in (2, 0):
        monkeypatch.setenv("RANK", str(rank))
        assert main([STRATEGY, f"job={job}"]) == 0
        out = capsys.readouterr().out
        assert (out == f"rank {rank}: job={job} runs on rank 0 only\n") == (rank > 0)
    (run,) = runs
    assert run.settings.workers == 3
    assert len(list(empty_folder.glob("outputs/*/*"))) == 1


@pytest.mark.parametrize("topic", ["hydra", "experiment"])
def test_help_lists_settings_of_hydra_and_experiments(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", topic]) == 0
    text = capsys.readouterr().out
    reference = {"hydra": ("hydra.sweep.dir=null", "hydra/sweeper=optuna\n", "hydra.sweeper.n_trials=20", "hydra.launcher.n_jobs=-1"),
                "experiment": ("experiment=cora_gcn\n", "published 81.5 %", "    trainer.max_epochs=200")}  # fmt: skip
    joined = re.sub(r"\s+", " ", text)
    assert [word for word in reference[topic] if word not in text and word not in joined] == []
    assert max(map(len, text.splitlines())) <= 80


def test_every_option_of_the_command_is_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    options = {option for action in _parser()._actions for option in action.option_strings}
    assert [option for option in options if option not in text] == []


@pytest.mark.slow
def test_the_configuration_is_shown_with_and_without_hydra(capsys: pytest.CaptureFixture[str]) -> None:
    output = {}
    for topic in ("job", "hydra", "all"):
        assert main(["--cfg", topic, STRATEGY, "hydra.sweep.dir=x", "hydra/sweeper=optuna"]) == 0
        text = capsys.readouterr().out
        output[topic] = yaml.safe_load(text)
    assert output["job"] == compose([STRATEGY])
    assert output["all"] == {**output["job"], **output["hydra"]}
    assert (output["hydra"]["hydra"]["sweep"]["dir"], output["hydra"]["hydra"]["sweeper"]["n_trials"]) == ("x", 20)
    assert "    n_trials: 20  # number of jobs\n" in text
    assert main([STRATEGY, "--cfg"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == output["job"]


@pytest.mark.slow
def test_info_names_versions_plugins_and_folders(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main(["--info", STRATEGY, "model=sage", "--config-dir", str(empty_folder)]) == 0
    text = capsys.readouterr().out
    reference = (
        "gnnkit ",
        "torch ",
        "  model=gcn  gnnkit.model.gcn:GCN of gnnkit",
        "hydra/sweeper=optuna",
    )
    assert [word for word in (*reference, f"{empty_folder}  --config-dir") if word not in text] == []
    assert main(["--info", "searchpath"]) == 0
    assert "model=" not in capsys.readouterr().out
    assert main(["--info"]) == 0
    assert "searchpath:" in capsys.readouterr().out


@pytest.mark.slow
def test_the_configuration_of_a_run_repeats_the_run(
    runs: Runs, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [
        "partition=2d",
        "partition.nodes=hash",
        "workers=2",
        "model=sage",
        "model.hidden=5",
        "output=first",
        "seed=3",
    ]
    assert main([STRATEGY, *keys]) == 0
    repeat = ["--config-dir", "first", "--config-name", "config"]
    assert main(repeat) == 0
    assert main([*repeat, "-cd", "first", "model=gin", "seed=4"]) == 0
    first, second, third = ({**run.settings.composed, "output": None} for run in runs)
    assert second == first
    assert (third["model"]["name"], third["seed"], third["partition"]) == ("gin", 4, first["partition"])
    assert runs[1].run_folder != runs[0].run_folder
    assert main([*repeat, "job=predict", "checkpoint=first"]) == 2
    assert "checkpoint and --config-name both name" in capsys.readouterr().err


@pytest.mark.slow
def test_a_secret_of_the_environment_is_not_kept_and_the_run_can_be_repeated(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef")
    monkeypatch.setenv("DATA_HOST", "example.org")
    path = "/mnt/me:${oc.env:HF_TOKEN}@${oc.env:DATA_HOST}/x?token=${oc.env:HF_TOKEN}"
    assert main([STRATEGY, "dataset=npz", f"dataset.root='{path}'", "output=first"]) == 0
    folder = runs[0].run_folder
    assert runs[0].settings.dataset.arguments["root"] == "/mnt/me:hf_abcdef@example.org/x?token=hf_abcdef"
    for path in ("config.yaml", ".hydra/config.yaml", ".hydra/overrides.yaml"):
        assert "abcdef" not in (folder / path).read_text(), path
    assert "@example.org" in (folder / "config.yaml").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_key_that_comes_from_the_environment_repeats(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "abcdef123")
    assert main([STRATEGY, "dataset=npz", "dataset.root=${oc.env:MY_API_KEY}/x", "output=first"]) == 0
    assert (
        yaml.safe_load((runs[0].run_folder / "config.yaml").read_text())["dataset"]["root"] == "${oc.env:MY_API_KEY}/x"
    )
    assert main(["--config-dir", "first", "-cn", "config"]) == 0
    assert runs[1].settings.dataset.arguments["root"] == "abcdef123/x"


@pytest.mark.slow
def test_verbosity_is_that_of_the_named_loggers(runs: Runs) -> None:
    before = {name: logging.getLogger(name).level for name in ("", "some.logger")}
    try:
        assert main([STRATEGY, "hydra.verbose=[some.logger]"]) == 0
        assert logging.getLogger("some.logger").level == logging.DEBUG
        assert logging.getLogger().level == before[""]
        assert main([STRATEGY, "hydra.verbose=true"]) == 0
        assert logging.getLogger().level == logging.DEBUG
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
