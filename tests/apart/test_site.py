"""The site of the documents is built without a network, and its pictures are right."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gnnkit import config, keys, plugins
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cut_all
from tests.report.browser import Browser, find

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network."""
    pytest.importorskip("material", reason="needs the dependency group docs")
    pytest.importorskip("mkdocstrings", reason="needs the dependency group docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def hits(page: Path, words: str, profile: Path) -> list[str]:
    """Searches in a page that is opened from disk. Returns the links that are found."""
    program = find()
    if program is None:
        pytest.skip("needs a browser")
    with Browser(program, profile) as browser:
        browser.open(page, 1300)
        browser.evaluate(
            "(() => {const field = document.querySelector('.md-search__input'); field.focus();"
            f"field.value = {json.dumps(words)}; field.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))}})()"
        )
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = browser.evaluate("[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)")
            if found:
                return [str(link) for link in found]
            time.sleep(0.1)
    return []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("early stopping", "howto/best-model.html"),
        ("onnx", "howto/predict.html"),
        ("class weights", "howto/tasks.html"),
        ("features.fill", "howto/features.html"),
        ("it holds a run", "howto/troubleshooting.html"),
    ],
)
def test_search_finds_from_disk(words: str, expected: str, site: Path, tmp_path: Path) -> None:
    for page in ("index.html", "howto/keys.html"):
        found = hits(site / page, words, tmp_path / page.replace("/", "-"))
        assert any(expected in link for link in found), found


def test_versions_are_published_side_by_side(tmp_path: Path, site: Path) -> None:
    for older in ("0.0.9", "0.0.10"):
        (tmp_path / older).mkdir()
        (tmp_path / older / "index.html").touch()
    publish = loaded("publish")
    version = publish.publish(tmp_path)
    names = [each["version"] for each in json.loads((tmp_path / "versions.json").read_text())]
    assert names == [version, "0.0.10", "0.0.9"]
    assert f'href="{version}/index.html"' in (tmp_path / "index.html").read_text()
    page = (tmp_path / version / "howto/keys.html").read_text(encoding="utf-8")
    assert '"provider": "mike"' in page
    assert f"gnnkit {version}" in page
    assert '"provider"' not in (site / "howto/keys.html").read_text(encoding="utf-8")


def test_the_site_is_built_strictly_and_asks_for_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    hooks = loaded("hooks")
    assert len(pages) == 1 + len(list((ROOT / "docs").rglob("*.md"))) + len(hooks.ADDED)  # and 404.html
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', text), page
        assert not re.search(rf"<!-- (?:{'|'.join(hooks.FILL)})\b", text), page
    python = (site / "reference/python.html").read_text(encoding="utf-8")
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
