"""The page of several runs, made by hand."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from gnnkit_report.charts import Colouring, NetworkNode, network
from gnnkit_report.page import Page, PageSection, PageTable, Panel
from gnnkit_report.run import RunFiles, read_run
from gnnkit_report.runs_page import RunGroup, Sweep, SweptRun, _trade_off, compare, write

from tests.report.folders import HOSTILE, run_folder, swept


@pytest.mark.parametrize("text", ["<b>", "a & b", "\"'", "\x00\u202e", "\ud800"])
def test_the_template_escapes_text_once(text: str, tmp_path: Path) -> None:
    shown = re.sub("[\x00\u202e\ud800]", "\N{REPLACEMENT CHARACTER}", text)
    drawn = network(
        text,
        text,
        text,
        [NetworkNode((0, 0), 1, text, text)],
        [(0, 0, text)],
        [Colouring(text, ["c0"], [(text, "c0")])] * 2,
    )
    panels = [Panel(text, PageTable([text], [[text]]), text, text), Panel(text, folded=True)]
    page = Page(text, text, [PageSection(text, [drawn], panels, [text])], [text], [(text, text)]).save(tmp_path)
    content = page.read_text(encoding="utf-8")
    assert content.count(html.escape(shown).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) >= 25
    assert "&amp;lt;" not in content


@pytest.mark.slow
def test_a_comparison_groups_seeds_and_lists_settings_that_differ(tmp_path: Path) -> None:
    runs: list[RunFiles] = []
    strategies = ["{name: a, halo: none, depth: 3}", "{name: b, size: 4, window: 5}"]
    for index, name in enumerate(("a/same", "b/same", "c")):
        folder = run_folder(tmp_path / name, test_accuracy=[0.5, 0.75, 0.7][index])
        config = f"seed: {index}\nmodel: {{name: gcn, hidden: 8}}\nstrategy: {strategies[index % 2]}\n"
        (folder / "config.yaml").write_text(config)
        (folder / "report.html").touch()
        runs.append(read_run(folder))
    text = compare(runs, tmp_path).read_text(encoding="utf-8")
    listed = text.split("<h2>Runs</h2>")[1].split("</table>")[0]
    columns = re.findall(r'<th class="number">([a-z.]+)</th>', listed)
    assert columns[:2] == ["strategy.name", "seed"], "keys that differ between runs that have them"
    assert 'href="a/same/report.html"' in text, "links are relative"
    assert str(tmp_path) not in text
    assert (tmp_path / "table.md").read_text().splitlines()[2].startswith("| a | 2 | 0.75 ± 0 | 0.6 ± 0.14 | 0.1 ± 0 |")
    latex = (tmp_path / "table.tex").read_text()
    assert r"test\_accuracy" in latex
    assert r"0.6 $\pm$ 0.14 &" in latex


def test_runs_are_points_of_test_figure_and_training_seconds(tmp_path: Path) -> None:
    runs = [
        read_run(run_folder(tmp_path / str(n), test_accuracy=0.5 + n, phases={"training": 3.0 - n})) for n in range(3)
    ]
    groups = [RunGroup("a", runs[:2], "c0"), RunGroup("b", runs[2:], "c1")]
    (drawn,) = _trade_off(Sweep([], "val_accuracy", False), groups)
    numbers = json.loads(drawn.data["numbers"])
    assert (numbers["x"], numbers["joined"]) == ([1, 2, 3], False)
    assert [series[2] for series in numbers["series"]] == [[None, 1.5, 0.5], [2.5, None, None]]


def test_runs_on_different_data_are_not_said_to_be_comparable(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        folder = run_folder(tmp_path / name)
        (folder / "config.yaml").write_text(f"dataset: {{name: edges, root: {name}}}\ntask: {{name: regression}}\n")
        runs.append(read_run(folder))
    note = "the runs differ in dataset.root, so their figures may not be comparable"
    assert note in compare(runs, tmp_path).read_text(encoding="utf-8")
    assert "cannot be compared" not in compare(runs[:1] * 2, tmp_path).read_text(encoding="utf-8")


def test_columns_show_how_the_same_data_were_read_and_not_how_others_were(tmp_path: Path) -> None:
    runs = []
    for index, (root, ignore) in enumerate((("a", "[]"), ("b", "[id]"), ("b", "[id, town]"))):
        folder = run_folder(tmp_path / str(index))
        config = f"dataset: {{name: edges, root: {root}, time: {root}, ignore: {ignore}}}\n"
        (folder / "config.yaml").write_text(config)
        runs.append(read_run(folder))
    listed = compare(runs, tmp_path).read_text(encoding="utf-8").split("<h2>Runs</h2>")[1]
    assert "dataset.root" in listed
    assert "dataset.ignore" in listed
    assert "dataset.time" not in listed
    listed = compare(runs[:2], tmp_path).read_text(encoding="utf-8").split("<h2>Runs</h2>")[1]
    assert "dataset.root" in listed
    assert "dataset.ignore" not in listed


def page(runs: list[SweptRun], folder: Path, *, lower: bool = False, ended: bool = True) -> str:
    return write(Sweep(runs, "val_accuracy", lower, ended), folder, "Sweep").read_text(encoding="utf-8")


@pytest.mark.slow
def test_runs_are_rows_of_a_sortable_table_and_linked(tmp_path: Path) -> None:
    runs = swept(tmp_path, 9)
    run_folder(runs[8].folder)
    (runs[8].folder / "report.html").write_text("")
    runs[1].log.write_text("")
    text = page(runs, tmp_path)
    listed = text.split('class="sortable"')[2].split("</table>")[0]
    assert re.findall(r'<th class="number">(.*?)</th>', listed) == [
        "trainer.lr",
        "seed",
        "val_accuracy",
        "train_loss",
        "status",
    ]
    assert len(re.findall("<tr>", listed)) == 10
    assert re.findall(r'href="(.*?)"', text) == ["1.log", "8/report.html"]
    assert "Best val_accuracy 0.702, of run 8" in text
    assert re.findall('<figure id="(.*?)"', text) == ["trade_off", "loss", "figure", "time"], "of the run with a folder"


@pytest.mark.slow
def test_seeds_are_joined_to_means_and_deviations(tmp_path: Path) -> None:
    runs = swept(tmp_path, 6)
    means = page(runs, tmp_path).split("Comparison")[1].split("</table>")[0]
    assert re.findall(r">([\d.]+ ± [\d.]+)</data>", means) == ["0.601 ± 0.001", "1 ± 0", "0.501 ± 0.001", "1 ± 0"]
    latex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"0.01 & 3 & 0.601 $\pm$ 0.001 & 1 $\pm$ 0 \\" in latex
    assert "Comparison" not in page(runs[::3], tmp_path)
    assert "| 0 | 0.001 | 0 | 0.5 | 1 | done |" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_least_is_best_where_the_figure_is_an_error(tmp_path: Path) -> None:
    assert "Best val_accuracy 0.5, of run 0" in page(swept(tmp_path, 9), tmp_path, lower=True)


def test_a_page_of_a_sweep_that_goes_on_says_so_and_has_no_table_to_copy(tmp_path: Path) -> None:
    rest = SweptRun(2, "not finished", {"seed": "2"}, {}, tmp_path / "2", tmp_path / "2.log")
    text = page([*swept(tmp_path, 2), rest], tmp_path, ended=False)
    assert "3 runs: 2 done, 1 not finished. The sweep goes on" in text
    assert not (tmp_path / "table.md").exists()


@pytest.mark.slow
def test_hostile_values_are_text(tmp_path: Path) -> None:
    runs = swept(tmp_path, 9, key=HOSTILE, more=HOSTILE)
    bad = SweptRun(9, "failed", {HOSTILE: HOSTILE}, {}, tmp_path / HOSTILE[:7], tmp_path / "9.log", HOSTILE)
    text = page([*runs, bad], tmp_path)
    assert text.count("<script") == 1
    assert "<img" not in text
    assert page([bad], tmp_path).count("<script") == 1
    assert page([], tmp_path).count("<script") == 1
