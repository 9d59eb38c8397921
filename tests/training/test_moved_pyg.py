"""A script of PyG with NeighborLoader, moved to gnnkit in two ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
import torch_geometric.typing
from torch_geometric.data import Data

from tests.cases import exhaustive
from tests.pages import change, scripts, section

HEADING = "### A script with NeighborLoader"
COMPILED = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE


def groups() -> Data:
    """Makes a graph of three groups, whose members know mostly each other."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 400)
    src, dst = rng.integers(0, 400, (2, 12000))
    is_kept = (group[src] == group[dst]) | (rng.random(12000) < 0.1)
    x = torch.from_numpy(rng.normal(size=(400, 8)) + np.eye(3, 8)[group]).float()
    masks = {f"{name}_mask": torch.arange(400) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    return Data(x, torch.from_numpy(np.stack([src[is_kept], dst[is_kept]])), y=torch.from_numpy(group), **masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("PyG", marks=pytest.mark.skipif(not COMPILED, reason="needs pyg-lib or torch-sparse")),
        "gnnkit's loader",
        exhaustive("gnnkit trains"),
    ],
)
def test_each_form_of_the_script_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda *_: [groups()])
    assert accuracy(scripts(HEADING)[name]) > 0.85


@pytest.mark.slow
def test_the_script_of_pyg_learns_with_a_changed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda *_: [groups()])
    script = scripts(HEADING)["PyG"]
    theirs, ours = "from torch_geometric.loader import NeighborLoader", "from gnnkit.pyg import NeighborLoader"
    assert theirs in script
    assert accuracy(script.replace(theirs, ours)) > 0.85


def accuracy(script: str) -> float:
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(script, "script", "exec"), names)
    return float(names["accuracy"])


def test_the_page_says_how_many_lines_are_new() -> None:
    forms = scripts(HEADING)
    for name in ("gnnkit's loader", "gnnkit trains"):
        assert change(forms["PyG"], forms[name]) in section(HEADING).replace("\n", " ")
