"""What a run hands back."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import gnnkit
from gnnkit.result.result import Result


def test_the_folder_of_a_result_is_the_leaders(tmp_path: Path) -> None:
    assert Result("train", {}, run_folder=tmp_path).folder == tmp_path
    with pytest.raises(gnnkit.UserError, match=r"^the run folder is the leader's: read the result of rank 0"):
        Result("train", {}).folder  # noqa: B018


@pytest.mark.parametrize(("folder", "reason"), [(None, "read the result of rank 0"), (Path("run"), "there are loss")])
def test_a_figure_that_is_not_there_is_a_key_error_with_the_reason(folder: Path | None, reason: str) -> None:
    result = Result("train", {"loss": 1.0}, run_folder=folder)
    with pytest.raises(KeyError, match=f"test_accuracy is no figure of job=train here: {reason}"):
        result["test_accuracy"]
    assert result.get("test_accuracy") is None


@pytest.mark.slow
def test_a_program_may_name_the_class_of_results() -> None:
    assert gnnkit.Result is Result
    with pytest.raises(AttributeError, match="has no attribute 'Results'"):
        gnnkit.Results  # noqa: B018
    light = "import gnnkit, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


def test_a_notebook_shows_a_line_that_opens_to_a_table(tmp_path: Path) -> None:
    result = Result("train", {"test_accuracy": 0.81234, "model": "<b>", "why": "long"}, run_folder=tmp_path)
    text = result._repr_html_()
    assert text.startswith(f"<details><summary>job=train: test_accuracy 0.8123</summary><div>{tmp_path}</div>")
    assert "&lt;b&gt;</td></tr>" in text
    assert "<b>" not in text
    assert "long" not in text
    assert repr(result).splitlines()[1:] == ["  test_accuracy      0.8123", "  model              <b>"]


def test_a_line_names_the_figure_of_the_task_and_the_best_epoch() -> None:
    main = {"name": "val_rmse", "lower_is_better": True}
    result = Result("train", {"val_rmse": 0.5, "test_rmse": 0.75, "main_figure": main, "best_epoch": 7, "epochs": 9})
    assert result.line() == "val_rmse 0.5  test_rmse 0.75  best_epoch 7  epochs 9"
    assert Result("plan", {"x": 1}, "2 rows").line() == "2 rows"
    assert "main_figure" not in result.table()


def test_a_plot_of_curves_joins_the_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    lines = [{"epoch": epoch, "train_loss": 1.0} for epoch in range(6)]
    lines += [{"epoch": epoch, "figures": {"val_accuracy": 0.1 * epoch}} for epoch in (1, 4)]
    (tmp_path / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(pandas.DataFrame, "plot", property(lambda frame: frame))
    axes_ = Result("train", {}, run_folder=tmp_path).curves[["val_accuracy"]].plot["val_accuracy"]
    assert list(axes_.isna()) == [True, False, False, False, False, True]
    assert axes_[3] == pytest.approx(0.2)


def test_curves_are_a_data_frame_by_epoch(tmp_path: Path) -> None:
    lines = [
        {"epoch": 0, "train_loss": 2.0},
        {"epoch": 1, "figures": {"val_accuracy": 0.5}},
        {"epoch": 1, "train_loss": 1.5},
        {"epoch": 1, "train_loss": 1.0},  # done twice, by a resumed run
    ]
    (tmp_path / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = Result("train", {}, run_folder=tmp_path).curves
    assert list(curves.index) == [1, 2]
    assert list(curves["train_loss"]) == [2.0, 1.0]
    assert curves["val_accuracy"][2] == 0.5
    assert curves["val_accuracy"].isna()[1]
    assert pickle.loads(pickle.dumps(curves)).equals(curves)
    with pytest.raises(gnnkit.UserError, match=r"job=plan trained nothing in epochs"):
        Result("plan", {}, run_folder=tmp_path / "none").curves  # noqa: B018
