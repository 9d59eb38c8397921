"""What `check_job` and a run find in a job that is written wrongly."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gnnkit_template.job import Hubs

from gnnkit import plugins, testing
from gnnkit.__main__ import main
from gnnkit.result.result import Result

Change = Callable[[str, str], None]  # replaces a text in the YAML file


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    folder = tmp_path / "conf"
    source = next(path for path in plugins.conf_folders() if (path / "jobs/hubs.yaml").is_file())
    shutil.copytree(source, folder)
    folders = [path if path != source else folder for path in plugins.conf_folders()]
    monkeypatch.setattr("gnnkit.plugins.conf_folders", lambda: folders)
    monkeypatch.setattr("gnnkit.config.keys.conf_folders", lambda: folders)
    monkeypatch.setattr(sys.modules["gnnkit.config.compose"], "conf_folders", lambda: folders)

    def replaced(old: str, new: str) -> None:
        path = folder / "jobs/hubs.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return replaced


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  count: 10  # number of nodes", "  more: 3  # unread", "has .*hubs.more.*, and `keys` .*hubs.count"),
        ("count: 10", "count: 2000", "hubs.count=2000 must be a whole number from 1 to 1000"),
        ("count: 10", "count: x", "hubs.count='?x'? must be a whole number"),
        ("  # number of nodes", "", "must have a comment"),
        ("# @package _global_\n", "", "the first line of hubs.yaml must be # @package _global_"),
    ],
)
def test_a_wrong_file_of_keys_is_found(old: str, new: str, message: str, change: Change) -> None:
    change(old, new)
    with pytest.raises(AssertionError, match=message):
        testing.check_job(Hubs)


def test_a_name_that_is_not_the_entry_points_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Hubs, "name", "hub")
    assert main(["job=hubs"]) == 2
    assert "job=hubs: gnnkit_template.job.Hubs must have name='hubs', not 'hub'" in capsys.readouterr().err


@pytest.mark.slow
def test_figures_of_numpy_are_numbers_and_a_job_without_a_result_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["job=hubs", "dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200"]
    figures = {"count": np.int64(3), "degrees": np.arange(2), "mean": np.float32(np.nan), "by": {"type": np.arange(2)}}
    monkeypatch.setattr(Hubs, "work", lambda job, order: Result("hubs", figures))
    assert main([*quick, f"output={tmp_path}/run"]) == 0
    assert Result("hubs", figures).to_dict() == {"count": 3, "degrees": [0, 1], "mean": None, "by": {"type": [0, 1]}}
    assert main([*quick, f"output={tmp_path}/run"]) == 2
    assert "choose another folder, or on_exists=replace" in capsys.readouterr().err
    monkeypatch.setattr(Hubs, "work", lambda job, order: {"count": 3})
    assert main([*quick, f"output={tmp_path}/other"]) == 1
    assert "job=hubs: work returned dict, expected a Result" in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    quick = ["dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200"]
    assert main(["job=hubs", *quick, f"output={run}"]) == 0
    assert main(["job=predict", f"checkpoint={run}", f"output={tmp_path}/predicted"]) == 2
    assert "there is no model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "predicted").exists()
