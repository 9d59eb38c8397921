"""The site of the documents is built without a network, and its pictures are right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gnnkit import config, plugins
from gnnkit.config import keys
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cut_all
from tests.report.browser import Browser, find
from tests.waiting import GUARD

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
OFFLINE = """
import socket
def refuse(*_, **__):
    raise OSError("the build asks for the network")
socket.socket.connect = socket.getaddrinfo = refuse
"""  # Python runs the file sitecustomize.py in the beginning


def load_module(name: str) -> ModuleType:
    """Imports a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is published beside older ones, built without a network."""
    pytest.importorskip("material", reason="needs the dependency group docs")
    pytest.importorskip("mkdocstrings", reason="needs the dependency group docs")
    folder, offline = tmp_path_factory.mktemp("sites"), tmp_path_factory.mktemp("offline")
    for older in ("0.0.9", "0.0.10"):
        (folder / older).mkdir()
        (folder / older / "index.html").touch()
    (offline / "sitecustomize.py").write_text(OFFLINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(offline), prepend=os.pathsep)
        version: str = load_module("publish").publish(folder)
    return folder / version


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("needs a browser")
    with Browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


def hits(browser: Browser, words: str) -> list[str]:
    """Searches in the page that is open. Returns the links that are found."""
    links: list[str] = []
    for query in ("", words):  # what was found before goes first
        browser.evaluate(
            "(() => {const field = document.querySelector('.md-search__input'); field.focus();"
            f"field.value = {json.dumps(query)}; field.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))}})()"
        )
        until = time.monotonic() + GUARD
        while time.monotonic() < until:
            links = browser.evaluate("[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)")
            if bool(links) == bool(query):
                break
            time.sleep(0.05)
    return links


FOUND = {
    "early stopping": "howto/best-model.html",
    "onnx": "howto/predict.html",
    "class weights": "howto/tasks.html",
    "features.fill": "howto/features.html",
    "it holds a run": "howto/troubleshooting.html",
}


@pytest.mark.parametrize("page", ["index.html", "howto/keys.html"])
def test_search_finds_from_disk(page: str, site: Path, browser: Browser) -> None:
    browser.open(site / page, 1300)
    for words, reference in FOUND.items():
        links = hits(browser, words)
        assert any(reference in link for link in links), (words, links)


def test_versions_are_published_side_by_side(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [load["version"] for load in json.loads((site.parent / "versions.json").read_text())]
    assert names == [site.name, "0.0.10", "0.0.9"]
    assert f'href="{site.name}/index.html"' in (site.parent / "index.html").read_text()
    page = (site / "howto/keys.html").read_text(encoding="utf-8")
    assert '"provider": "mike"' in page
    assert f"gnnkit {site.name}" in page
    for place, extra in (("published", {"version": {"provider": "mike"}}), ("", {})):
        monkeypatch.setenv("GNNKIT_SITE", place)
        assert load_module("hooks").on_config(SimpleNamespace(extra={})).extra == extra


def test_the_site_is_built_strictly_and_asks_for_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    hooks = load_module("hooks")
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
    boxes = re.findall(r'<rect class="(\w+)".*?<text[^>]*>([\d,]+)</text>', load_module("pictures").layout(grid))
    for kind, cells in (("gather", first.halo_cell), ("reduce", first.partial_cell)):
        ranks = {",".join(str(cell * grid.slices + place) for place in range(grid.slices)) for cell in set(cells)}
        assert {label for name, label in boxes if name == kind} == ranks
    assert len(boxes) == 3 * grid.num_cells


def test_there_is_a_picture_and_a_page_for_each_strategy_of_ours() -> None:
    pictures, page = load_module("pictures"), (ROOT / "docs/explanation/strategies.md").read_text(encoding="utf-8")
    ours = {name for name in plugins.names("strategy") if plugins.find("strategy", name).module.startswith("gnnkit.")}
    assert set(pictures.STRATEGIES) == ours
    for name in ours:
        assert f"<!-- strategy {name} -->\n" in page
        assert pictures.strategy(name).count("<rect") == 2 * len(pictures.STRATEGIES[name][0]["worker 0"])


def test_every_key_of_every_option_is_listed() -> None:
    listed = load_module("hooks").every_key()
    for section in config.SECTIONS:
        for option in plugins.options(section):
            for key in keys.read(section, option).keys:
                assert f"| `{section}.{key.name}` |" in listed, f"{section}={option}: {key.name}"
