"""New data is read as the data of the run was, unless the command says otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import config
from gnnkit.__main__ import main
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.prepare.inputs import load
from tests.conftest import Install

OWN = {"name": "edges", "root": "old", "symmetrize": True, "row_normalize": True, "num_nodes": None, "sort_ids": False,
       "split": [0.6, 0.2, 0.2], "seed": 3, "time": None}  # fmt: skip


def taken(folder: Path, *overrides: str, own: Mapping[str, Any] = OWN) -> set[str]:
    """Returns the keys of data that a prediction takes over from a run in `folder`."""
    run = {"model": {"name": "gcn"}, "task": {"name": "node_classification"}, "dataset": own}
    (folder / "config.yaml").write_text(json.dumps(run))
    composed = config.with_run([f"checkpoint='{folder}'", *overrides])
    return {text for text in composed if text.startswith(("dataset", "++dataset"))} - set(overrides)


def write_tables(folder: Path, header: list[str], rows: list[list[Any]], ends: Any) -> None:
    folder.mkdir()
    for name, lines in (("nodes", [header, *rows]), ("edges", [["src", "dst"], *ends])):
        (folder / f"{name}.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


def test_a_data_set_that_is_named_anew_is_read_as_the_one_of_the_run(tmp_path: Path) -> None:
    read = {"++dataset.symmetrize=true", "++dataset.row_normalize=true"}
    found = taken(tmp_path, "job=predict", "dataset=edges", "dataset.root=new")
    assert found == {*read, "++dataset.sort_ids=false"}
    assert taken(tmp_path, "job=test", "dataset='saved'", "dataset.root=new") == read


def test_the_command_may_read_new_data_otherwise(tmp_path: Path) -> None:
    found = taken(tmp_path, "job=predict", "dataset=saved", "dataset.root=new", "dataset.symmetrize=false")
    assert found == {"++dataset.row_normalize=true"}
    arguments = {"root": "new", "row_normalize": True, "symmetrize": False, "split": [1], "seed": 9}
    assert list(config.read_otherwise(tmp_path, "edges", arguments)) == [
        f"dataset.symmetrize=false: the model of {tmp_path} was trained with true"
    ]
    assert config.read_otherwise(tmp_path, "edges", arguments | {"symmetrize": True}) == ()


def test_a_folder_alone_is_read_without_a_split_for_predictions(tmp_path: Path) -> None:
    assert "++dataset.split=null" in taken(tmp_path, "job=predict", "dataset.root=new")
    assert "++dataset.split=null" not in taken(tmp_path, "job=predict")
    assert "++dataset.split=null" not in taken(tmp_path, "job=test", "dataset.root=new")


def test_a_run_of_an_earlier_version_reads_times_as_features(tmp_path: Path) -> None:
    earlier = {key: value for key, value in OWN.items() if key != "time"}
    assert "++dataset.time=[]" in taken(tmp_path, "job=predict", "dataset=edges", "dataset.root=new", own=earlier)
    assert "dataset.time=[]" in taken(tmp_path, "job=test", "dataset.root=new", own=earlier)
    assert "dataset.time=null" in taken(tmp_path, "job=test", "dataset.root=new")


def test_a_generated_graph_takes_over_no_sizes(tmp_path: Path) -> None:
    own = {"name": "synthetic", "num_nodes": 50, "width": 9, "symmetrize": False}
    found = taken(tmp_path, "job=predict", "dataset=synthetic", "dataset.width=7", own=own)
    assert found == {"++dataset.symmetrize=false"}
    assert config.read_otherwise(tmp_path, "synthetic", {"width": 7}) == ()


@pytest.mark.slow
def test_an_installed_data_set_says_which_keys_belong_to_the_data(tmp_path: Path, install: Install) -> None:
    code = """
from gnnkit.dataset.base import Dataset

class Mine(Dataset):
    of_data = (*Dataset.of_data, "year")

    def __init__(self, root: str = "", year: int = 0, hops: int = 1) -> None:
        pass

    def load(self):
        raise NotImplementedError
"""
    install("mine", {"gnnkit.dataset": {"mine": "mine_data:Mine"}}, {"mine_data.py": code})
    own = {"name": "mine", "options": {"hops": 4, "year": 1999}}
    assert taken(tmp_path, "job=predict", "dataset=mine", own=own) == {"++dataset.hops=4"}
    assert taken(tmp_path, "job=predict", "dataset=mine", "dataset.options.hops=2", own=own) == set()
    lines = config.read_otherwise(tmp_path, "mine", {"hops": 2})
    assert lines == (f"dataset.hops=2: the model of {tmp_path} was trained with 4",)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_a_table_in_another_order_without_labels_is_predicted_as_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    values = dict(zip("abc", rng.random((3, 20)) * [[1], [10], [100]], strict=True))
    ends = rng.integers(0, 20, (60, 2))
    for name, order, labels in (("old", "abc", True), ("new", "cab", False)):
        rows = [[i, *(values[key][i] for key in order), *([i % 2] if labels else [])] for i in range(20)]
        write_tables(tmp_path / name, ["id", *order, *(["label"] if labels else [])], rows, ends)
    own = ["dataset=edges", "dataset.root=old", "dataset.symmetrize=true", "dataset.row_normalize=true"]
    own += ["dataset.split=[0.6,0.2,0.2]", "trainer.max_epochs=2", "output=run"]
    fast = ["comm=threads", "workers=1", "write=[logits]", "report=false", "logger=none"]
    assert main(["strategy=vertex_centric", *fast, *own]) == 0
    capfd.readouterr()
    for name, keys in (("root", []), ("named", ["dataset=edges"]), ("told", ["dataset.symmetrize=false"])):
        assert main(["job=predict", "checkpoint=run", "dataset.root=new", *keys, *fast, f"output={name}"]) == 0
        error = capfd.readouterr().err
        alike = np.array_equal(np.load(tmp_path / name / "logits.npy"), np.load(tmp_path / "run/logits.npy"))
        assert (error == "") == alike == (name != "told")
    assert error == "gnnkit: warning: dataset.symmetrize=false: the model of run was trained with true\n"


def test_a_column_that_the_model_reads_is_not_ignored_to_predict(tmp_path: Path) -> None:
    write_tables(tmp_path / "data", ["id", "day"], [[0, "03/04/2021"], [1, "05/06/2021"]], np.array([[0, 1], [1, 0]]))
    settings = settle(config.compose(["strategy=auto", "dataset=edges", f"dataset.root='{tmp_path / 'data'}'"]))
    with pytest.raises(UserError, match=r"'03/04/2021', .*: write dates as .*dataset\.ignore=\[day\]"):
        load(settings)
    with pytest.raises(UserError, match=r"leaves the column out, but not if the model of run reads it$"):
        load(replace(settings, checkpoint="run"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
@pytest.mark.exhaustive
def test_a_class_that_has_another_name_in_the_model_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ends, splits = rng.integers(0, 20, (60, 2)), ["train", "val", "test"]
    tables = {"names": ["cat", "dog", "eel"], "numbers": ["0", "1", "2"], "fewer": ["cat", "dog", "cat"]}
    tables |= {"others": ["cat", "eel", "eel"], "few numbers": ["0", "1", "1"]}
    for name, classes in tables.items():
        rows = [[i, i / 20, classes[i // 3 % 3], splits[i % 3]] for i in range(20)]
        write_tables(tmp_path / name, ["id", "a", "label", "split"], rows, ends)
    fast = ["comm=threads", "workers=1", "write=[]", "report=false", "logger=none", "dataset=edges"]
    for name in ("names", "numbers"):
        own = [f"dataset.root={name}", "dataset.symmetrize=true", "trainer.max_epochs=1", f"output=of_{name}"]
        assert main(["strategy=vertex_centric", *fast, *own]) == 0
    fitting = [("names", "names"), ("names", "fewer"), ("numbers", "numbers"), ("numbers", "few numbers")]
    others = [("names", "numbers"), ("names", "others"), ("numbers", "names"), ("numbers", "fewer")]
    for model, data in fitting + others:
        capfd.readouterr()
        keys = [f"checkpoint=of_{model}", f"dataset.root='{data}'", f"output=test_{model}_{data.replace(' ', '_')}"]
        fits = (model, data) in fitting
        assert main(["job=test", *keys, *fast]) == (0 if fits else 2), (model, data)
        assert ("other class names" in capfd.readouterr().err) != fits
