"""From tables with flaws to a good model, by the two commands of job=init."""

from __future__ import annotations

import csv
import json
import runpy
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_init import baselines, trials

from gnnkit.__main__ import main

QUICK = ["comm=threads", "workers=1", "cache=false", "report=false", "logger=none"]


def write(folder: Path, flaws: str) -> None:
    """Writes a folder of 300 nodes. Half of the edges join nodes of one class."""
    rng = np.random.default_rng(7)
    n, num_classes = 300, 2 if "uneven" in flaws else 3
    labels = rng.choice(num_classes, n, p=[0.9, 0.1] if "uneven" in flaws else None)
    same = rng.random(3 * n) < 0.7
    src = rng.integers(0, n, 3 * n)
    dst = np.array([rng.choice(np.flatnonzero(labels == labels[u])) if s else rng.integers(n) for u, s in zip(src, same, strict=True)])  # fmt: skip
    features = rng.normal(size=(n, 6)) + 1.2 * rng.normal(size=(num_classes, 6))[labels]
    scales = np.array([3e-3, 5e6, 1, 40, 0.1, 1e4]) if "scales" in flaws else np.ones(6)
    cells = np.array([[f"{x:.6g}" for x in row] for row in features * scales + 3 * scales], dtype=object)
    if "missing" in flaws:
        cells[rng.random((n, 6)) < 0.15] = ""
    ids = [str(uuid.UUID(int=i + 10**20)) if "uuid" in flaws else str(i) for i in range(n)]
    names = ["ash", "birch", "cedar"] if "text" in flaws else ["0", "1", "2"]
    known = [names[label] for label in labels]
    folder.mkdir()
    with (folder / "nodes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label", *"abcdef"], *([i, y, *row] for i, y, row in zip(ids, known, cells, strict=True))])  # fmt: skip
    both = "oneway" not in flaws
    pairs = [(ids[u], ids[v]) for u, v in zip(src, dst, strict=True) if u != v]
    with (folder / "edges.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["src", "dst"], *pairs, *([v, u] for u, v in pairs if both)])


def accuracy(folder: Path) -> float:
    figures: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return float(figures["test_macro_f1"])


# Each flaw alone, with model=sage, columns and edges as they are: scales 0.18,
# oneway 0.92, missing 0.28, text 0.18, uneven 0.46, uuid 0.30.
BARS = {"scales missing text": 0.9, "scales uneven": 0.9, "oneway uuid": 0.95}
# The plain default and one model, without edges, with class weights, and the first and
# the best with and without reverse edges.
TRIALS = {"scales missing text": 3, "scales uneven": 4, "oneway uuid": 5}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.long("trains until models of three runs are good")
@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("flaws", BARS)
def test_two_commands_make_a_good_model_of_a_table_with_flaws(
    flaws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, new = tmp_path / "data", tmp_path / "new"
    write(data, flaws)
    monkeypatch.setattr(baselines, "is_installed", lambda: False)
    monkeypatch.setitem(trials.LISTS, "table", trials.LISTS["table"][:1])
    for name, value in {"MAX_EPOCHS": 40, "PATIENCE": 15}.items():
        monkeypatch.setattr(trials, name, value)
    assert main(["job=init", "dataset=edges", f"dataset.root={data}", f"output={new}", "init.minutes=9"]) == 0
    assert len((new / "trials.csv").read_text().splitlines()) == 1 + TRIALS[flaws]
    assert main(["--config-dir", str(new), "+experiment=mine", *QUICK, f"output={tmp_path}/run"]) == 0
    assert accuracy(tmp_path / "run") > BARS[flaws]
    if "missing" in flaws:  # by the script, whose model is another one
        monkeypatch.chdir(tmp_path)
        result = runpy.run_path(str(new / "train.py"), run_name="__main__")["result"]
        assert result["test_macro_f1"] > BARS[flaws]
