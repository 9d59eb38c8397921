"""A script of PyG with NeighborLoader, moved to gnnkit in two ways, in the documents."""

from __future__ import annotations

import difflib
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
import torch_geometric.typing
from torch_geometric.data import Data

PAGE = Path(__file__).resolve().parents[2] / "docs/coming-from.md"
COMPILED = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE


def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition("### A script with NeighborLoader\n")[2].partition("\n### ")[0]


def scripts() -> dict[str, str]:
    """Returns the script of each tab."""
    tabs = re.findall(r'^=== "([^"]*)"\n\n    ```py\n(.*?)^    ```$', section(), re.MULTILINE | re.DOTALL)
    return {name: textwrap.dedent(script) for name, script in tabs}


def new_lines(before: str, after: str) -> int:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line.startswith("+ ") and line.strip() != "+" for line in lines)


def groups() -> Data:
    """Makes a graph of three groups, whose members know mostly each other."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 400)
    src, dst = rng.integers(0, 400, (2, 12000))
    kept = (group[src] == group[dst]) | (rng.random(12000) < 0.1)
    x = torch.from_numpy(rng.normal(size=(400, 8)) + np.eye(3, 8)[group]).float()
    masks = {f"{name}_mask": torch.arange(400) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    return Data(x, torch.from_numpy(np.stack([src[kept], dst[kept]])), y=torch.from_numpy(group), **masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("PyG", marks=pytest.mark.skipif(not COMPILED, reason="needs pyg-lib or torch-sparse")),
        "gnnkit's loader",
        "gnnkit trains",
    ],
)
def test_each_form_of_the_script_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda *_: [groups()])
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(scripts()[name], name, "exec"), names)
    assert names["accuracy"] > 0.85


def test_the_page_says_how_many_lines_are_new() -> None:
    forms = scripts()
    text = section().replace("\n", " ")
    for name in ("gnnkit's loader", "gnnkit trains"):
        lines = sum(bool(line) for line in forms[name].splitlines())
        assert f"{new_lines(forms['PyG'], forms[name])} of {lines} lines are new" in text
