"""What a run hands back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gnnkit
from gnnkit.leader.result import Result


def test_the_folder_of_a_result_is_the_leaders(tmp_path: Path) -> None:
    assert Result("train", {}, run_folder=tmp_path).folder == tmp_path
    with pytest.raises(gnnkit.UserError, match=r"^the run folder is the leader's: read the result of rank 0"):
        Result("train", {}).folder  # noqa: B018


def test_a_program_may_name_the_class_of_results() -> None:
    assert gnnkit.Result is Result
    with pytest.raises(AttributeError, match="has no attribute 'Results'"):
        gnnkit.Results  # noqa: B018
    light = "import gnnkit, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


def test_a_notebook_shows_a_line_that_opens_to_a_table(tmp_path: Path) -> None:
    result = Result("train", {"test_accuracy": 0.81234, "model": "<b>", "why": "long"}, run_folder=tmp_path)
    shown = result._repr_html_()
    assert shown.startswith(f"<details><summary>job=train in {tmp_path}: test_accuracy 0.8123</summary>")
    assert "<tr><th>model</th><td>&lt;b&gt;</td></tr>" in shown
    assert "long" not in shown
    assert repr(result).splitlines()[1:] == ["  test_accuracy      0.8123", "  model              <b>"]


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
    with pytest.raises(gnnkit.UserError, match=r"job=plan trained nothing in epochs"):
        Result("plan", {}, run_folder=tmp_path / "none").curves  # noqa: B018
