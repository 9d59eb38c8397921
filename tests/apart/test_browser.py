"""The page in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gnnkit_report.run import read_run
from gnnkit_report.run_page import write
from gnnkit_report.runs_page import Sweep, compare
from gnnkit_report.runs_page import write as write_runs

from tests.report.browser import NAMES, Browser, find
from tests.report.folders import HOSTILE, run_folder, swept

pytestmark = pytest.mark.slow
FIGURES = [
    *(
        "loss",
        "figures_accuracy",
        "confusion",
        "timeline",
        "ranks",
        "time",
        "graph",
        "words",
        "edges",
        "nodes",
        "caches",
    ),
]
WIDTHS = (400, 1400)

SIZES = """[...document.querySelectorAll('figure')].map(figure => {
    const drawn = figure.querySelector('.plot, .bars, .matrix, svg'), box = drawn.getBoundingClientRect();
    return [figure.id, box.width, box.height, drawn.querySelectorAll('*').length];
})"""
WIDER = """[...document.querySelectorAll('body *:not(svg *)')].filter(each =>
    !each.closest('.scroll, pre') && each.getBoundingClientRect().right > innerWidth + 0.5).map(each => each.outerHTML.slice(0, 80))"""
CUT_OFF = """[...document.querySelectorAll('svg text')].filter(text => {
    const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
    return box.x < -1 || box.y < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1;
}).map(text => text.closest('figure').id + ': ' + text.textContent)"""
FAINT = """(() => {
    const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const panel = light(getComputedStyle(document.querySelector('figure')).backgroundColor);
    const ratio = own => (Math.max(own, panel) + 0.05) / (Math.min(own, panel) + 0.05);
    const texts = [...document.querySelectorAll('figcaption, figure h3, .card span, svg text')];
    return texts.map(each => [each, getComputedStyle(each)[each.ownerSVGElement ? 'fill' : 'color']])
        .filter(([each, colour]) => ratio(light(colour)) < 4.5).map(([each, colour]) => colour + ' ' + each.textContent);
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip(f"no browser: install one of {', '.join(NAMES)}, as .ci/run does where apt-get is")
    with Browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run_folder(tmp_path_factory.mktemp("page") / "run", text=HOSTILE)
    return write(read_run(folder), folder)


def check_quiet(browser: Browser, page: Path) -> None:
    """Nothing was reported, and nothing but the page was asked for."""
    methods = [event["method"] for event in browser.events]
    bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
    assert [event for event in browser.events if event["method"] in bad] == []
    requests = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert requests == [page.as_uri()], methods


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_shows_every_figure_at_any_width_and_asks_nobody(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width, dark=dark)
    sizes = browser.evaluate(SIZES)
    assert [name for name, *_ in sizes] == FIGURES
    assert all(w > 80 and h > 40 and shapes > 8 for _, w, h, shapes in sizes), sizes
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(WIDER) == []
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate(FAINT) == []
    check_quiet(browser, page)
    if folder := os.environ.get("GNNKIT_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"page-{width}-{'dark' if dark else 'light'}.png")


def test_the_checks_find_what_is_wrong(browser: Browser, page: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    added = """<img src="https://example.org/x.png"><script>console.error("x")</script><div style="width:2000px">wide</div>
    <figure id="bad"><figcaption style="color:#888">faint</figcaption><svg viewBox="0 0 10 10"><text x="-9" y="5">cut</text></svg></figure>"""
    text = page.read_text().replace("</body>", added + "</body>")
    bad.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text))
    browser.open(bad, 400)
    assert len(browser.evaluate(WIDER)) == 1
    assert browser.evaluate(CUT_OFF) == ["bad: cut"]
    assert any("faint" in each for each in browser.evaluate(FAINT))
    methods = {event["method"] for event in browser.events}
    assert "Runtime.consoleAPICalled" in methods
    assert sum(event["method"] == "Network.requestWillBeSent" for event in browser.events) == 2
    with pytest.raises(AssertionError):
        check_quiet(browser, bad)
    bad.write_text(text)  # with the page's own policy
    browser.open(bad, 400)
    errors = [event["params"]["entry"]["text"] for event in browser.events if event["method"] == "Log.entryAdded"]
    assert len(errors) == 2
    assert all("Content Security Policy" in each for each in errors)


def test_hostile_names_are_text_and_run_nothing(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    assert (
        browser.evaluate(
            "document.querySelectorAll('script:not(body > script:last-child), img, iframe, link, object, embed').length"
        )
        == 0
    )
    text = HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert browser.evaluate("document.querySelector('h1').textContent") == f"gcn on {text}"
    assert text in browser.evaluate("document.querySelector('pre').textContent")
    check_quiet(browser, page)


def test_a_page_says_what_was_run_and_unfolds_the_rest(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    text = browser.evaluate("document.body.innerText")
    for part in (
        "0.74",
        "test_accuracy",
        "vertex_centric on 3 workers",
        "3.25",
        "overfits",
    ):
        assert part in text
    hidden = browser.evaluate("[...document.querySelectorAll('details pre')].at(-1).checkVisibility()")
    browser.evaluate("document.querySelectorAll('summary').forEach(each => each.click())")
    assert (hidden, browser.evaluate("[...document.querySelectorAll('details pre')].at(-1).checkVisibility()")) == (
        False,
        True,
    )
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1400


def at(browser: Browser, share: float) -> dict[str, float]:
    """Returns a place in the chart of the loss, from the left to the right."""
    box = "document.querySelector('#loss .u-over').getBoundingClientRect()"
    left, top, width, height = browser.evaluate(f"(box => [box.left, box.top, box.width, box.height])({box})")
    return {"x": left + width * share, "y": top + height / 2}


def test_a_chart_shows_values_under_the_pointer_and_zooms(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", **at(browser, 5 / 11))
    values = "[...document.querySelectorAll('#loss .u-value')].map(each => each.textContent)"
    assert browser.evaluate(values) == ["6", "0.3333", "0.4"]
    scale = "[plots[0].scales.x.min, plots[0].scales.x.max]"
    assert browser.evaluate(scale) == [1, 12]
    for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.8), ("mouseReleased", 0.8)):
        place = at(browser, share)
        browser.ask("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)
    low, high = browser.evaluate(scale)
    assert low == pytest.approx(6.5, abs=0.3)
    assert high == pytest.approx(9.8, abs=0.3)
    browser.evaluate(
        "document.querySelector('#loss .u-over').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    assert browser.evaluate(scale) == [1, 12]
    check_quiet(browser, page)


def test_a_table_is_sorted_and_the_graph_coloured_by_a_click(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    words = "[...[...document.querySelectorAll('.sortable')].at(-1).tBodies[0].rows].map(row => row.cells[2].innerText).join('')"
    head = "[...[...document.querySelectorAll('.sortable')].at(-1).tHead.rows[0].cells][2]"
    assert browser.evaluate(words) == "779"
    browser.evaluate(f"{head}.click()")
    assert (browser.evaluate(words), browser.evaluate(f"{head}.ariaSort")) == ("977", "descending")
    browser.evaluate(f"{head}.click()")
    assert (browser.evaluate(words), browser.evaluate(f"{head}.ariaSort")) == ("779", "ascending")
    script = "[...document.querySelectorAll('#graph g.layer')].map(each => each.style.display === '')"
    assert browser.evaluate(script) == [True, False, False]
    browser.evaluate("document.querySelectorAll('#graph input')[2].click()")
    assert browser.evaluate(script) == [False, False, True]
    check_quiet(browser, page)


def test_no_column_of_a_table_is_cut(browser: Browser, tmp_path: Path) -> None:
    figures = {"precision": 0.9485, "recall": 0.7731, "f1": 0.8519, "support": 1119}
    folder = run_folder(tmp_path / "run", per_class={"test": {"_collections_abc": figures}}, rebalanced=[])
    page = write(read_run(folder), folder)
    lacks = "[...document.querySelectorAll('.wide .scroll')].map(each => each.scrollWidth - each.clientWidth)"
    browser.open(page, 1400)
    assert browser.evaluate(lacks) == [0, 0, 0]
    browser.open(page, 400)
    assert browser.evaluate(lacks)[0] == 0


def test_the_page_of_a_sweep_is_sorted_by_a_click_and_fits(browser: Browser, tmp_path: Path) -> None:
    runs = swept(tmp_path, 9, more=HOSTILE)
    run_folder(runs[8].folder)
    page = write_runs(Sweep(runs, "val_accuracy", False), tmp_path, "Sweep")
    for width in WIDTHS:
        browser.open(page, width)
        assert [name for name, *_ in browser.evaluate(SIZES)] == ["trade_off", "loss", "figure", "time"]
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(WIDER) == []
        assert browser.evaluate(CUT_OFF) == []
        assert browser.evaluate(FAINT) == []
        if folder := os.environ.get("GNNKIT_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"sweep-{width}.png")
    first = "document.querySelectorAll('.sortable')[1].tBodies[0].rows[0].cells[0].innerText"
    head = "[...document.querySelectorAll('.sortable')][1].tHead.rows[0].cells[4]"
    assert browser.evaluate(first) == "0"
    browser.evaluate(f"{head}.click()")
    assert browser.evaluate(f"{head}.innerText") == "val_accuracy"
    assert browser.evaluate(first) == "8"
    check_quiet(browser, page)


def test_a_comparison_shows_what_differs_in_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"run{n}", text=f"set{n}", num_epochs=6 + n, seed=n) for n in range(3)]
    page = compare([read_run(folder) for folder in folders], tmp_path)
    for width in WIDTHS:
        browser.open(page, width)
        assert [name for name, *_ in browser.evaluate(SIZES)] == ["trade_off", "loss", "figure", "time"]
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(CUT_OFF) == []
        text = browser.evaluate("document.body.innerText")
        assert "dataset.name" in text
        assert all(f"set{n}" in text for n in range(3))
        check_quiet(browser, page)
        if folder := os.environ.get("GNNKIT_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"compare-{width}.png")
