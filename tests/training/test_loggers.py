"""Loggers: several at once, on the leader, with settings and few curves."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check
from gnnkit.training.logger import ExistingLogger, MLflow, Wandb, _rows
from tests.cases import exhaustive
from tests.jobs.test_train import small_graph

CURVES = {
    *("epoch", "step", "train_loss", "work_max_over_mean", "memory", "rows_per_second"),
    *(f"seconds/{part}" for part in ("wait", "compute", "exchange", "sync")),
    *(f"{split}_{figure}" for split in ("train", "val", "test") for figure in ("accuracy", "macro_f1")),
    *("val_loss", "test_loss"),
}


def run(folder: Path, **keys: Any) -> Any:
    trainer = {"max_epochs": 4, "check_val_every_n_epoch": 2}
    keys = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "comm": "threads", "trainer": trainer} | keys
    return gnnkit.train(small_graph(), folder=folder, report=False, **keys)


def curves(path: Path) -> dict[str, list[int]]:
    """Returns the steps of each curve of a CSV."""
    results: dict[str, list[int]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    results.setdefault(name, []).append(int(row["step"]))
    return results


@pytest.mark.slow
@pytest.mark.exhaustive
def test_curves_are_few_and_begin_at_the_same_step(tmp_path: Path) -> None:
    """However many workers there are. TensorBoard has the same ones."""
    run(tmp_path / "run", workers=3)
    actual = curves(tmp_path / "run/csv/metrics.csv")
    assert set(actual) == CURVES
    assert actual["train_loss"] == actual["seconds/compute"] == [0, 1, 2, 3]
    assert actual["val_loss"] == [1, 3]
    for folder in ("csv", "tensorboard"):
        settings = yaml.safe_load((tmp_path / "run" / folder / "hparams.yaml").read_text())
        assert settings["model"]["name"] == "gcn"
        assert settings["trainer"]["max_epochs"] == 4
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == CURVES - {"step"}
    assert {name: events.Scalars(name)[0].step for name in ("train_loss", "memory")} == {"train_loss": 0, "memory": 0}


@pytest.mark.slow
def test_loggers_are_chosen_by_name_or_given(tmp_path: Path) -> None:
    run(tmp_path / "none", logger="none")
    assert not [path for path in (tmp_path / "none").iterdir() if path.name in ("csv", "tensorboard")]
    assert (tmp_path / "none/workers.jsonl").stat().st_size > 0
    run(tmp_path / "run", logger=["csv", CSVLogger(tmp_path, "", "mine"), CSVLogger(tmp_path, "", "more")])
    assert not (tmp_path / "run/tensorboard").exists()
    texts = {path.read_text() for path in (tmp_path / "run/csv/metrics.csv", tmp_path / "mine/metrics.csv")}
    assert len(texts) == 1
    assert texts == {(tmp_path / "more/metrics.csv").read_text()}
    named = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["logger"]
    assert list(named) == ["csv", "CSVLogger", "CSVLogger 2"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
def test_a_run_is_kept_offline_for_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, although the process of the leader ends without `atexit`."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = run(tmp_path / "run", comm="gloo", logger={"name": "wandb", "project": "mine"})
    (stored,) = (tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    for text in (b"train_loss", b"val_accuracy", b"mine", b"vertex_centric"):
        assert text in content, text
    assert result["epochs"] == 4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow")
def test_a_run_is_kept_in_a_folder_by_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert MLflow().make(tmp_path / "first").experiment  # MLflow puts the folder into the environment
    result = run(tmp_path / "run", logger=["csv", {"name": "mlflow", "experiment": "mine"}])
    (folder,) = (path.parent for path in (tmp_path / "run/mlflow").glob("*/*/metrics"))
    lines = [line.split() for line in (folder / "metrics/train_loss").read_text().splitlines()]
    assert [int(step) for _, _, step in lines] == [0, 1, 2, 3]
    assert float(lines[-1][1]) == pytest.approx(result["train_loss"])
    assert (folder / "params/trainer/max_epochs").read_text() == "4"
    assert "name: mine" in (folder.parent / "meta.yaml").read_text()


@pytest.mark.slow
def test_a_package_that_is_missing_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wandb, "module", "no_such_module")
    settings = settle(compose(["strategy=vertex_centric", "logger=[csv,wandb]"]))
    with pytest.raises(UserError, match=r"^logger=wandb: the package wandb is not installed: pip install wandb$"):
        check(Order(settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["logger=tensorbord"], "logger=tensorbord is not known: did you mean tensorboard?"),
        (["logger=[csv,tensorbord]"], "logger=tensorbord is not known: did you mean tensorboard?"),
        (["logger.wandb.project=x"], "logger.wandb.project needs logger=wandb, which is not chosen"),
        (["logger=wandb", "logger.wandb.projct=x"], "logger.wandb.projct is not known: did you mean"),
        (["logger=wandb", "logger.wandb.project=3"], "logger.wandb.project=3 must be text"),
        (
            ["callback=summary", "callback.summary.options.depth=0"],
            "callback.summary.options.depth=0 must be a whole number",
        ),
        (["model=pagerank", "callback=summary"], "callback=summary: model=pagerank is iterated, not trained"),
        exhaustive((["model=pagerank", "logger=wandb"], "logger=wandb: model=pagerank is iterated, not trained")),
        (["model=pagerank", "profile=true"], "profile=true: model=pagerank is iterated, not trained"),
        (["job=verify", "callback=summary"], "callback=summary: job=verify does not train: leave it out"),
        exhaustive((["job=plan", "logger=wandb"], "logger=wandb: job=plan does not train: leave it out")),
        (["job=partition", "profile=true"], "profile=true: job=partition does not train: leave it out"),
        (["job=report", "runs=x", "leader.rebalance=true"], "leader.rebalance=true: job=report does not train"),
        exhaustive((["job=init", "callback=[summary]"], "callback=summary: job=init does not train: leave it out")),
    ],
    ids=str,
)
def test_mistakes_name_the_key(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        check(Order(settle(compose(["strategy=vertex_centric", *overrides]))))
    assert told in str(caught.value)


def test_a_logger_from_python_is_finished_where_it_can_be() -> None:
    finished: list[bool] = []
    online: Any = SimpleNamespace(experiment=SimpleNamespace(finish=lambda: finished.append(True)))
    plain: Any = SimpleNamespace()
    for logger in (online, plain):
        ExistingLogger(logger).close(logger)
    assert finished == [True]


def test_the_first_start_of_a_run_has_no_rows_to_go_on_from(tmp_path: Path) -> None:
    assert _rows(tmp_path / "metrics.csv") == []
    (tmp_path / "metrics.csv").write_text("step,loss,val\n1,0.5,\n2,,0.25\n")
    assert _rows(tmp_path / "metrics.csv") == [{"step": "1", "loss": "0.5"}, {"step": "2", "val": "0.25"}]
