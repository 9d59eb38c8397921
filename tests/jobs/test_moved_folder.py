"""A run folder is read from any working directory, moved, and never written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

import gnnkit
from gnnkit.__main__ import main
from tests.cases import few
from tests.folders import digests_of
from tests.runs import within_process

NODES = 30
TRAIN = ["strategy=vertex_centric", "workers=2", "comm=threads", "logger=none", "trainer.max_epochs=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `run` that was trained on the relative path `data`."""
    home = tmp_path_factory.mktemp("home")
    rng, data = np.random.default_rng(0), home / "data"
    data.mkdir()
    rows = [f"{node},{rng.normal()},{rng.normal()},{'ab'[node % 2]}" for node in range(NODES)]
    (data / "nodes.csv").write_text("\n".join(["id,p,q,label", *rows]) + "\n")
    ends = rng.integers(0, NODES, (100, 2))
    (data / "edges.csv").write_text("\n".join(["src,dst", *(f"{src},{dst}" for src, dst in ends)]) + "\n")
    with pytest.MonkeyPatch.context() as patch, within_process():
        patch.chdir(home)
        patch.setenv("PWD", str(home))
        patch.setenv("HOME", str(home))
        keys = ["dataset=edges", "dataset.root=data", "dataset.symmetrize=true", "dataset.split=[0.6,0.2,0.2]"]
        assert main([*TRAIN, *keys, "output=run"]) == 0
    return home / "run"


@pytest.fixture
def moved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder in another place, seen from `/` without PWD and HOME."""
    folder = tmp_path / "elsewhere" / "copy"
    shutil.copytree(trained, folder)
    monkeypatch.chdir("/")
    for name in ("PWD", "OLDPWD", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def predict(run: Path, out: Path) -> None:
    assert main(["job=predict", f"checkpoint={run}", f"output={out}", "comm=threads", "report=false"]) == 0
    assert (np.load(out / "predictions.npy") == np.load(run / "predictions.npy")).all()


def score(run: Path, out: Path) -> None:
    assert main(["job=test", f"checkpoint={run}", f"output={out}", "comm=threads", "report=false"]) == 0
    scores, known = (json.loads((folder / "result.json").read_text()) for folder in (out, run))
    assert scores["test_accuracy"] == known["test_accuracy"]


def report(run: Path, out: Path) -> None:
    assert main(["job=report", f"runs={run}", f"output={out}"]) == 0
    assert (out / "report.html").is_file()


def export(run: Path, out: Path) -> None:
    gnnkit.export(run, out.with_suffix(".pt2"))
    assert out.with_suffix(".pt2").is_file()


def load(run: Path, out: Path) -> None:
    assert gnnkit.load(run).training is False


def repeat(run: Path, out: Path) -> None:
    assert main(["--config-dir", str(run), "--config-name", "config", f"output={out}"]) == 0
    assert (np.load(out / "predictions.npy") == np.load(run / "predictions.npy")).all()


def resume(run: Path, out: Path) -> None:
    shutil.copytree(run, out)
    keys = ["--config-dir", str(out), "--config-name", "config", "trainer.max_epochs=3"]
    assert main([*keys, f"output={out}", "on_exists=resume"]) == 0
    assert len((out / "epochs.jsonl").read_text().splitlines()) >= 1


@pytest.mark.slow
@few("job", [predict, score, report, export, load, repeat, resume], default=[predict, load, repeat])
def test_a_moved_run_folder_is_read_from_anywhere_and_stays_as_it_is(
    job: Callable[[Path, Path], None], moved: Path, tmp_path: Path
) -> None:
    before = digests_of(moved)
    job(moved, tmp_path / "out")
    assert digests_of(moved) == before


@pytest.mark.slow
def test_the_files_of_a_run_name_paths_and_no_variables(trained: Path) -> None:
    texts = [path for kind in ("*.yaml", "*.json", "*.html") for path in trained.rglob(kind)]
    assert [path.name for path in texts if "oc.env" in path.read_text(encoding="utf-8")] == []
    for name in ("config.yaml", ".hydra/config.yaml"):
        kept = yaml.safe_load((trained / name).read_text(encoding="utf-8"))
        assert kept["dataset"]["root"] == str(trained.parent / "data")
        assert kept["output"] == "run"
