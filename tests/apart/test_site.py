"""The site of the documents is built without a network, and its pictures are right."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gnnkit import config, keys, plugins
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cut_all

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
OFFLINE = """
import socket, sys
def refuse(*_, **__):
    raise OSError("the build asks for the network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli(["build", "--strict", "--quiet", "--site-dir", sys.argv[1]])
"""


def loaded(name: str) -> ModuleType:
    """Imports a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_is_built_strictly_and_asks_for_nothing_from_the_network(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the dependency group docs")
    pytest.importorskip("mkdocstrings", reason="needs the dependency group docs")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    hooks = loaded("hooks")
    assert len(pages) == 1 + len(list((ROOT / "docs").rglob("*.md"))) + len(hooks.ADDED)  # and 404.html
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', text), page
        assert not re.search(rf"<!-- (?:{'|'.join(hooks.FILL)})\b", text), page
    python = (tmp_path / "reference/python.html").read_text(encoding="utf-8")
    assert {"gnnkit.train", "gnnkit.nn.BatchNorm.forward", "gnnkit.engine.Adjacency.aggregate"} <= set(
        re.findall(r'id="(gnnkit[\w.]*)"', python)
    )


@pytest.mark.parametrize("shape", [(4, 1, 1), (4, 2, 1), (3, 3, 1), (2, 2, 2)], ids=str)
def test_the_picture_of_a_layout_shows_whose_rows_reach_the_first_cell(shape: tuple[int, int, int]) -> None:
    grid, size = Grid(*shape), 24
    owner = (np.arange(size) % grid.world_size).astype(np.int32)
    src, dst = np.divmod(np.arange(size * size), size)
    graph = Graph.from_edges(src, dst, size, features=np.ones((size, 1)))
    first = next(iter(cut_all(graph, Partition(owner, None, grid))))
    boxes = re.findall(r'<rect class="(\w+)".*?<text[^>]*>([\d,]+)</text>', loaded("pictures").layout(grid))
    for kind, cells in (("gather", first.halo_cell), ("reduce", first.partial_cell)):
        ranks = {",".join(str(cell * grid.slices + place) for place in range(grid.slices)) for cell in set(cells)}
        assert {label for name, label in boxes if name == kind} == ranks
    assert len(boxes) == 3 * grid.num_cells


def test_there_is_a_picture_and_a_page_for_each_strategy_of_ours() -> None:
    pictures, page = loaded("pictures"), (ROOT / "docs/explanation/strategies.md").read_text(encoding="utf-8")
    ours = {name for name in plugins.names("strategy") if plugins.find("strategy", name).module.startswith("gnnkit.")}
    assert set(pictures.STRATEGIES) == ours
    for name in ours:
        assert f"<!-- strategy {name} -->\n" in page
        assert pictures.strategy(name).count("<rect") == 2 * len(pictures.STRATEGIES[name][0]["worker 0"])


def test_every_key_of_every_option_is_listed() -> None:
    listed = loaded("hooks").every_key()
    for section in config.SECTIONS:
        for option in plugins.options(section):
            for key in keys.read(section, option).keys:
                assert f"| `{section}.{key.name}` |" in listed, f"{section}={option}: {key.name}"
