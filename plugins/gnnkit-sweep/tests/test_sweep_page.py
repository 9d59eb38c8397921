"""The page of a sweep, from runs made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gnnkit_sweep.page import write_sweep
from gnnkit_sweep.rows import Sweep, SweptRun

from tests.report.folders import HOSTILE, run_folder, swept


def page(runs: list[SweptRun], folder: Path, *, lower: bool = False, ended: bool = True) -> str:
    sweep = Sweep(runs, "val_accuracy", lower, ["val_accuracy", "train_loss"], ended)
    return write_sweep(sweep, folder).read_text(encoding="utf-8")


@pytest.mark.slow
def test_runs_are_rows_of_a_sortable_table_and_linked(tmp_path: Path) -> None:
    runs = swept(tmp_path, 9)
    run_folder(runs[8].folder)
    (runs[8].folder / "report.html").write_text("")
    runs[1].log.write_text("")
    text = page(runs, tmp_path)
    listed = text.split('class="sortable"')[1].split("</table>")[0]
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
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"figure"}


@pytest.mark.slow
def test_seeds_are_joined_to_means_and_deviations(tmp_path: Path) -> None:
    runs = swept(tmp_path, 6)
    means = page(runs, tmp_path).split("Means and deviations")[1].split("</table>")[0]
    assert re.findall(r">([\d.]+ ± [\d.]+)</data>", means) == ["0.601 ± 0.001", "1 ± 0", "0.501 ± 0.001", "1 ± 0"]
    latex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"0.01 & 3 & 0.601 $\pm$ 0.001 & 1 $\pm$ 0 \\" in latex
    assert "Means and deviations" not in page(runs[::3], tmp_path)
    assert "| 0 | 0.001 | 0 | 0.5 | 1 | done |" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_least_is_best_where_the_figure_is_an_error(tmp_path: Path) -> None:
    assert "Best val_accuracy 0.5, of run 0" in page(swept(tmp_path, 9), tmp_path, lower=True)


def test_a_page_of_a_sweep_that_goes_on_says_so_and_paints_nothing(tmp_path: Path) -> None:
    rest = SweptRun(2, "not finished", {"seed": "2"}, {}, tmp_path / "2", tmp_path / "2.log")
    text = page([*swept(tmp_path, 2), rest], tmp_path, ended=False)
    assert "3 runs: 2 done, 1 not finished. The sweep goes on" in text
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_hostile_values_are_text(tmp_path: Path) -> None:
    runs = swept(tmp_path, 9, key=HOSTILE, more=HOSTILE)
    bad = SweptRun(9, "failed", {HOSTILE: HOSTILE}, {}, tmp_path / HOSTILE[:7], tmp_path / "9.log", HOSTILE)
    text = page([*runs, bad], tmp_path)
    assert text.count("<script") == 1
    assert "<img" not in text
    assert page([bad], tmp_path).count("<script") == 1
    assert page([], tmp_path).count("<script") == 1
