"""The page that compares several runs."""

from __future__ import annotations

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gnnkit_compare.page import PointGroup, compare, scatter
from gnnkit_report.drawing import Figure, dot
from gnnkit_report.drawing import text as drawing_text
from gnnkit_report.page import PageTable, svg_file
from gnnkit_report.run import RunFiles, read_run

from tests.report.folders import run_folder


@pytest.mark.parametrize("text", ["<b>", "a & b", "\"'", "\x00\u202e", "\ud800"])
def test_every_template_escapes_text_once(text: str, tmp_path: Path) -> None:
    shown = re.sub("[\x00\u202e\ud800]", "\N{REPLACEMENT CHARACTER}", text)
    page = compare([read_run(run_folder(tmp_path / "run"))], tmp_path, [text], PageTable([text], [[text]]), text)
    content = page.read_text(encoding="utf-8")
    assert content.count(html.escape(shown).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) >= 6
    assert "&amp;lt;" not in content
    figure = Figure(text, text, text, 10, (drawing_text(0, 0, text), dot(0, 0, 1, "c0", text)))
    root = ElementTree.fromstring(svg_file(figure))
    assert [element.text for element in root.iter() if element.text] == [shown, shown]
    assert root.attrib["aria-label"] == f"{shown}. {shown}"


@pytest.mark.slow
def test_a_comparison_groups_seeds_and_lists_settings_that_differ(tmp_path: Path) -> None:
    runs: list[RunFiles] = []
    strategies = ["{name: a, halo: none, depth: 3}", "{name: b, size: 4, window: 5}"]
    for index, name in enumerate(("a/same", "b/same", "c")):
        command = f"gnnkit strategy.size=4 'seed={index}'" if index == 1 else f"gnnkit <{index}> 'open"
        test = {"test_accuracy": [0.5, 0.75, 0.7][index], "phases": {"training": 1.0 + index}}
        folder = run_folder(tmp_path / name, command=command, **test)
        config = f"seed: {index}\nmodel: {{name: gcn, hidden: 8}}\nstrategy: {strategies[index % 2]}\n"
        (folder / "config.yaml").write_text(config)
        runs.append(read_run(folder))
    text = compare(runs, tmp_path).read_text(encoding="utf-8")
    settings = text.split("Settings that differ")[1].split("</table>")[0]
    assert re.findall(r"<th>([a-z.]+)</th>", settings) == ["strategy.name", "strategy.size"], "set, or in all groups"
    assert "same (1), 2 runs" in text
    assert "same (2)" in text
    assert 'href="a/same"' in text, "links are relative"
    assert str(tmp_path) not in text
    assert (
        (tmp_path / "table.md")
        .read_text()
        .splitlines()[2]
        .startswith("| same (1), 2 runs | 0.6 ± 0.14 | 0.75 | 2 ± 1.4 |")
    )
    latex = (tmp_path / "table.tex").read_text()
    assert r"test\_accuracy" in latex
    assert r"0.6 $\pm$ 0.14 &" in latex


def test_runs_are_drawn_as_points_around_their_mean(tmp_path: Path) -> None:
    groups = [
        PointGroup("a", ((1.0, 0.5), (3.0, 0.7)), ("first", "second"), "c0"),
        PointGroup("b", ((9.0, 0.9),), ("only",), "c1"),
    ]
    figure = scatter("x", "x", "x", groups, "seconds")
    dots = {shape.note: float(shape.attributes["cx"]) for shape in figure.shapes if shape.tag == "circle"}
    assert list(dots) == ["first", "second", "only"]
    pixels = (dots["only"] - dots["first"]) / 8  # per second
    assert dots["second"] - dots["first"] == pytest.approx(2 * pixels, abs=0.02)
    bars = [
        shape.attributes["d"]
        for shape in figure.shapes
        if "c0" in shape.attributes.get("style", "") and shape.tag == "path"
    ]
    begin, end = (float(x) for x in re.findall(r"[ML]([\d.]+) ", bars[0])[:2])
    assert end - begin == pytest.approx(2 * 2**0.5 * pixels, abs=0.05), "one deviation to both sides"


def test_runs_on_different_data_are_not_said_to_be_comparable(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        folder = run_folder(tmp_path / name)
        (folder / "config.yaml").write_text(f"dataset: {{name: edges, root: {name}}}\ntask: {{name: regression}}\n")
        runs.append(read_run(folder))
    note = "the runs differ in dataset.root, so their figures may not be comparable"
    assert note in compare(runs, tmp_path).read_text(encoding="utf-8")
    assert "cannot be compared" not in compare(runs[:1] * 2, tmp_path).read_text(encoding="utf-8")
