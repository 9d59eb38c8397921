"""The run folder: refused, gone on with, or replaced where a run is there already."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.jobs.folder import new_folder
from tests.cases import exhaustive
from tests.farm import COMMAND, PLAIN, Farm


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def run(*keys: str) -> None:
    assert main([*COMMAND, *keys]) == 0


@pytest.mark.slow
def test_a_folder_with_a_run_is_refused_and_left_as_it_is(
    here: Path, capsys: pytest.CaptureFixture[str], finished_run: Farm
) -> None:
    finished_run.copy("command", here / "run")
    before = {name: (here / "run" / name).read_bytes() for name in files(here / "run")}
    assert main([*COMMAND, "trainer.max_epochs=1", "output=run", "seed=1"]) == 2
    error = capsys.readouterr().err
    assert "it holds a run: choose another folder, on_exists=resume" in error
    assert {name: (here / "run" / name).read_bytes() for name in files(here / "run")} == before


@pytest.mark.slow
@pytest.mark.parametrize("on_exists", ["refuse", "resume", "replace"])
def test_a_folder_with_anything_else_is_never_written_to(
    on_exists: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine").mkdir()
    (here / "mine/thesis.tex").write_text("x")
    assert main([*COMMAND, "trainer.max_epochs=1", "output=mine", f"on_exists={on_exists}"]) == 2
    assert "it holds files that are not a run's" in capsys.readouterr().err
    assert files(here / "mine") == {"thesis.tex"}


@pytest.mark.slow
def test_an_empty_folder_is_taken(here: Path) -> None:
    (here / "empty").mkdir()
    run("job=partition", "output=empty")
    assert (here / "empty/result.json").is_file()


@pytest.mark.slow
def test_replace_deletes_what_a_run_wrote_and_nothing_else(here: Path, finished_run: Farm) -> None:
    everything = "write=[predictions,logits,probabilities,embeddings]"
    run("trainer.max_epochs=1", "output=run", everything, "inputs=learned")
    run("trainer.max_epochs=2", "output=run", everything, "inputs=learned", "on_exists=resume")
    mine = {"notes.txt", "csv/plot.py", "checkpoints/best.safetensors", "earlier-1/notes.txt"}
    for name in mine:
        (here / "run" / name).write_text("mine")
    run("job=partition", "output=run", "on_exists=replace")
    fresh = finished_run("command that partitions")
    assert files(here / "run") == files(fresh) | mine
    assert json.loads((here / "run/result.json").read_text()) == json.loads((fresh / "result.json").read_text())


@pytest.mark.slow
def test_replace_deletes_what_wandb_and_mlflow_keep_and_resume_leaves_it(here: Path, finished_run: Farm) -> None:
    finished_run.copy("command", here / "run")
    for name in ("wandb/run-1/files", "wandb/run-1/tmp/code", "mlflow/1/metrics", "mlflow/.trash"):
        (here / "run" / name).mkdir(parents=True)
    for name in ("wandb/run-1/files/output.log", "mlflow/1/metrics/loss"):
        (here / "run" / name).write_text("1")
    (here / "run/wandb/latest-run").symlink_to("run-1")
    run("trainer.max_epochs=2", "output=run", "on_exists=resume", *PLAIN)
    assert (here / "run/wandb/latest-run/files/output.log").exists()
    run("job=partition", "output=run", "on_exists=replace")
    fresh = finished_run("command that partitions")
    assert {path.name for path in (here / "run").iterdir()} == {path.name for path in fresh.iterdir()}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_replace_knows_every_file_of_every_job(here: Path, finished_run: Farm) -> None:
    """The files of all jobs are brought into one folder."""
    (here / "mine.txt").write_text("x")
    for name in ("command with page", "command for a program", "command that partitions"):
        shutil.copytree(finished_run(name), here / "run", dirs_exist_ok=True)
    for job in ("plan", "verify"):
        run(f"job={job}", f"output={job}")
        shutil.copytree(here / job, here / "run", dirs_exist_ok=True)
    run("job=partition", "output=run", "on_exists=replace")
    assert files(here / "run") == files(finished_run("command that partitions"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_resume_goes_on_as_an_unbroken_run(here: Path, finished_run: Farm) -> None:
    finished_run.copy("command with three epochs", here / "broken")
    run("trainer.max_epochs=6", "output=broken", "on_exists=resume", *PLAIN)
    folders = (here / "broken", finished_run("command with six epochs"))
    broken, whole = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(np.array_equal(broken[name], whole[name]) for name in whole)
    assert json.loads((here / "broken/result.json").read_text())["epochs"] == 3
    assert json.loads((here / "broken/earlier-1/result.json").read_text())["epochs"] == 3
    assert (here / "broken/earlier-1/csv/metrics.csv").is_file()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_resume_without_the_newest_checkpoint_goes_on_from_the_one_before(here: Path, finished_run: Farm) -> None:
    finished_run.copy("command with six epochs", here / "broken")
    (here / "broken/checkpoints/last.json").unlink()
    run("trainer.max_epochs=6", "output=broken", "on_exists=resume", *PLAIN)
    assert json.loads((here / "broken/result.json").read_text())["epochs"] == 1


@pytest.mark.slow
def test_resume_of_another_configuration_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], finished_run: Farm
) -> None:
    finished_run.copy("command", here / "run")
    assert main([*COMMAND, "trainer.max_epochs=2", "output=run", "on_exists=resume", "trainer.lr=0.5"]) == 2
    assert "trainer.lr=0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_resume_without_a_checkpoint_begins_anew(here: Path, finished_run: Farm) -> None:
    shutil.rmtree(finished_run.copy("command", here / "run") / "checkpoints")
    for name in ("run", "new"):
        run("trainer.max_epochs=2", f"output={name}", "on_exists=resume", *PLAIN)
        assert json.loads((here / name / "result.json").read_text())["epochs"] == 2


@pytest.mark.slow
def test_a_run_keeps_configuration_and_overrides_as_hydra_does(here: Path) -> None:
    run("job=partition", "hydra.run.dir=runs/${now:%Y}-${seed}", "seed=5")
    (folder,) = (here / "runs").iterdir()
    assert folder.name.endswith("-5")
    plain = (folder / ".hydra/config.yaml").read_text()
    assert "#" not in plain
    assert yaml.safe_load(plain) == yaml.safe_load((folder / "config.yaml").read_text())
    kept = yaml.safe_load((folder / ".hydra/overrides.yaml").read_text())
    assert kept == [*COMMAND, "job=partition", "seed=5"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_configuration_in_a_run_folder_makes_the_same_run_again(here: Path) -> None:
    run("trainer.max_epochs=1", "seed=5", "partition=2d", "output=first", *PLAIN)
    assert main(["--config-dir", "first", "--config-name", "config"]) == 0
    (again,) = (here / "outputs").glob("*/*")
    for name in ("model.safetensors", "predictions.npy"):
        assert (here / "first" / name).read_bytes() == (again / name).read_bytes(), name
    kept = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (here / "first", again)]
    assert kept[0] == {**kept[1], "output": "first"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [pytest.param([], id="together"), exhaustive(pytest.param(["strategy.local_iterations=2"], id="supersteps"))],
)
def test_a_run_killed_after_its_last_step_gets_its_results(here: Path, keys: list[str], finished_run: Farm) -> None:
    keys = [*keys, *PLAIN]
    if keys == PLAIN:
        finished_run.copy("command with three epochs", here / "run")
    else:
        run("trainer.max_epochs=3", "output=run", *keys)
    kept = {name: (here / "run" / name).read_bytes() for name in ("model.safetensors", "predictions.npy")}
    before = json.loads((here / "run/result.json").read_text())
    state = (here / "run/checkpoints/last.json").read_bytes()
    for name in ("result.json", "model.safetensors", "predictions.npy"):
        (here / "run" / name).unlink()
    run("trainer.max_epochs=3", "output=run", "on_exists=resume", *keys)
    assert {name: (here / "run" / name).read_bytes() for name in kept} == kept
    assert (here / "run/checkpoints/last.json").read_bytes() == state
    after = json.loads((here / "run/result.json").read_text())
    assert {name: after[name] for name in after if name.startswith("test_")} == {
        name: before[name] for name in before if name.startswith("test_")
    }
    run("trainer.max_epochs=4", "output=run", "on_exists=resume", *keys)


@pytest.mark.slow
def test_resume_of_a_finished_run_leaves_its_results(
    here: Path, capsys: pytest.CaptureFixture[str], finished_run: Farm
) -> None:
    finished_run.copy("command", here / "run")
    before = {name: (here / "run" / name).read_bytes() for name in files(here / "run")}
    assert main([*COMMAND, "trainer.max_epochs=1", "output=run", "on_exists=resume"]) == 2
    told = capsys.readouterr().err
    assert f"the run in {here / 'run'} is finished and its results stay: trainer.max_epochs=1: the checkpoint" in told
    assert "has done 1 epochs, ask for more to go on, or choose on_exists=replace" in told
    assert main([*COMMAND, "trainer.max_epochs=2", "output=run", "on_exists=resume", "trainer.lr=0.5"]) == 2
    after = {name: (here / "run" / name).read_bytes() for name in files(here / "run")}
    assert {name: after[name] for name in before} == before


def test_runs_of_one_second_have_folders_of_their_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: form.replace("%", ""))
    made = [new_folder(Path("outputs")).name for _ in range(3)]
    assert made == ["H-M-S", "H-M-S-1", "H-M-S-2"]
    (here / "file").touch()
    with pytest.raises(UserError, match=rf"cannot make a run folder in {here}/file/Y-m-d: Not a directory"):
        new_folder(Path("file"))
