"""From file to shard, the values of features are checked twice at most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.prepare import cut
from gnnkit.prepare.facts import Needs, Preparation
from gnnkit.utils import checks

N, M = 40, 300
FULL = "strategy=vertex_centric"
CASES: dict[str, list[str]] = {
    "as they are": [FULL],
    "standardised and filled": [FULL, "features.scale=standard", "features.fill=mean"],
    "divided by sums": [FULL, "dataset.row_normalize=true", "features.fill=zero"],
    "in both directions": [FULL, "dataset.symmetrize=true", "dataset.duplicates=sum", "features.fill=zero"],
    "rounded": [FULL, "features.dtype=int8", "features.fill=mean"],
    "with degrees": [FULL, "features.degree=true", "features.fill=mean"],
    "split at random": [FULL, "dataset.split=[.6,.2,.2]", "features.fill=mean"],
    "split by time": [FULL, "dataset.split={by: time, shares: [.7,.15,.15]}", "features.fill=mean"],
    "links": [FULL, "task=link_prediction", "features.fill=mean"],
    "links in time": [FULL, "task=link_prediction", "dataset.split={by: time, shares: [.7,.15,.15]}"],
    "sampled in time": ["strategy=individual_sample", "sampler.time=strict", "features.fill=zero"],
    "numbers to predict": [FULL, "task=regression", "dataset.label=price", "features.fill=drop"],
}


def write_tables(folder: Path, *, gaps: bool, splits: bool) -> None:
    rng = np.random.default_rng(0)
    pairs = {"src": rng.integers(0, N, M), "dst": rng.integers(0, N, M)}
    pairs |= {"time": rng.integers(0, 1000, M), "length": rng.random(M)}
    age = np.where((np.arange(N) % 9 == 4) & gaps, np.nan, rng.normal(size=N))
    nodes = {"id": np.arange(N), "label": rng.integers(0, 3, N)}
    nodes |= {"split": rng.choice(["train", "val", "test"], N)} if splits else {}
    nodes |= {
        "time": rng.integers(0, 1000, N),
        "age": age,
        "price": rng.normal(size=N),
        "hue": rng.choice(["red", "blue"], N),
    }
    pd.DataFrame(pairs).to_csv(folder / "edges.csv", index=False)
    pd.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)


def count_scans(folder: Path, run: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Prepares a run. Returns how often all rows of nodes and edges were checked."""
    scans: Counter[str] = Counter()
    check = checks.check_finite

    def counted(name: str, values: Any, **keys: Any) -> None:
        scans[name] += 1
        check(name, values, **keys)

    monkeypatch.setattr(checks, "check_finite", counted)
    usual = ["workers=2", "dataset=edges", f"dataset.root={folder}", "cache=false"]
    settings = settle(compose([*usual, *overrides]))
    cut.prepare(Preparation(settings, Needs(True, False, False), run))
    return scans


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_features_are_checked_twice_from_file_to_shard(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    run.mkdir()
    fills, splits = "features.fill" in str(overrides), "dataset.split" in str(overrides)
    write_tables(data, gaps=fills, splits=not splits)
    scans = count_scans(data, run, overrides, monkeypatch)
    assert 1 <= scans["features"] <= 2
    assert 1 <= scans["edge_features"] <= 2
