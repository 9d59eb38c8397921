"""Limits on size, shape and prose, to be lowered whenever the code improves.

The table "Size" of DESIGN.md has the code lines of each package.
"""

import re
from pathlib import Path

import pytest

from tests.measures import code_lines, measure_package, measure_pages, measure_prose

ROOT = Path(__file__).parents[2]
PACKAGE_LIMITS = {
    "functions over 40 lines": 17,
    "functions over 15 branches": 9,
    "classes over 15 methods": 10,
    "repeated class names": 6,
    "dict[str, Any]": 60,
    "participles and pronouns per 1,000 names": 5,
    "'of' per 1,000 words": 37,
    "odd words per 1,000 words": 1.1,
}
BUDGET = re.compile(r"^\| `([\w/-]+)` \| ([\d,]+) \|", re.MULTILINE)  # rows of the table
NAME_LIMITS = {"benchmarks": 6.9, "tests": 38.6}  # participles and pronouns per 1,000 names
PAGE_LIMITS = {"'of' per 1,000 words": 24, "odd words per 1,000 words": 0.6}


@pytest.mark.exhaustive  # parses all modules, for seconds
def test_the_package_stays_within_its_limits():
    figures = measure_package(ROOT / "gnnkit")
    assert {name: value for name, value in figures.items() if value > PACKAGE_LIMITS.get(name, value)} == {}
    assert figures["words per sentence"] > 8


@pytest.mark.exhaustive  # parses all modules, for seconds
@pytest.mark.parametrize("folder", NAME_LIMITS)
def test_names_in_a_folder_stay_within_their_limit(folder: str):
    measured = measure_package(ROOT / folder)
    assert measured["participles and pronouns per 1,000 names"] <= NAME_LIMITS[folder]


@pytest.mark.exhaustive  # parses all modules, for seconds
def test_each_package_stays_within_its_budget():
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    budgets = {name: int(lines.replace(",", "")) for name, lines in BUDGET.findall(design)}
    packages = sorted(path.parent for path in ROOT.glob("plugins/*/*/__init__.py") if path.parent.name != "tests")
    figures = {str(path.relative_to(ROOT)): code_lines(path) for path in (ROOT / "gnnkit", *packages)}
    parts = [path for path in (ROOT / "gnnkit").iterdir() if any(path.glob("*.py"))]
    figures |= {str(path.relative_to(ROOT)): code_lines(path) for path in parts}
    assert budgets.keys() == figures.keys()
    assert {name: lines for name, lines in figures.items() if lines > budgets[name]} == {}


def test_the_pages_stay_within_their_limits():
    figures = measure_pages(ROOT / "docs")
    assert {name: value for name, value in figures.items() if value > PAGE_LIMITS.get(name, value)} == {}


def test_prose_is_counted():
    figures = measure_prose(["The size of a graph.", "It tells nobody what the whole graph is."])
    assert figures == {
        "words per sentence": 6.5,
        "'of' per 1,000 words": pytest.approx(1000 / 13),
        "odd words per 1,000 words": pytest.approx(3000 / 13),
    }


def test_shape_is_counted(tmp_path):
    (tmp_path / "module.py").write_text(
        '"""A module."""\nimport os\n\n\nclass A:\n    """A class."""\n\n    def f(self, found=None):\n'
        "        # a comment\n        return found if found or self else os\n"
    )
    (tmp_path / "other.py").write_text("class A:\n    pass\n\n\n" + "def long(x):\n" + "    x += 1\n" * 40)
    figures = measure_package(tmp_path)
    assert figures["code lines"] == 46
    assert figures["functions over 40 lines"] == 1
    assert figures["functions over 15 branches"] == figures["classes over 15 methods"] == 0
    assert figures["repeated class names"] == 1
    assert figures["participles and pronouns per 1,000 names"] == pytest.approx(3000 / 47)
