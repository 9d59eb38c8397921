"""A page as data, and the one template that renders it and escapes all text."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.result.result import REPORT
from gnnkit.utils.documents import number
from gnnkit.utils.storage import write_atomically
from gnnkit_report.charts import Chart

if TYPE_CHECKING:
    from jinja2 import Template

MARKDOWN, LATEX = "table.md", "table.tex"
TEMPLATES = Path(__file__).with_name("templates")
MAX_TEXT = 50_000  # characters per text
_KEY = re.compile(r"((?<![\w.])[a-z_]+(?:\.[a-z_]+)*=[\w.\[\],-]*\w\]?|(?<!\w)job=verify)")  # shown as code
# Control characters, and characters that reverse the text direction.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a link, or with a value to sort by."""

    text: str
    link: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table. The first cell of a row is its name, the others are often numbers."""

    head: Sequence[str]  # empty: no column names
    rows: Sequence[Sequence[str | Cell]]
    numbers: bool = True  # align right
    grouped: bool = False  # long column names may wrap
    sortable: bool = False

    def without_empty_columns(self) -> PageTable:
        """Returns the table without the columns that have no text, such as remarks."""
        kept = [index for index in range(len(self.head)) if any(row[index] for row in self.rows) or not self.rows]
        return replace(self, head=[self.head[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows])

    def texts(self) -> list[list[str]]:
        """Returns the text of all cells, the column names first."""
        table = self.without_empty_columns()
        rows = (table.head, *table.rows)
        return [[str(printable(getattr(cell, "text", cell))) for cell in row] for row in rows]

    def aligned(self) -> str:
        """Formats the table for a terminal, with long last cells cut."""
        rows = [[*row[:-1], clipped(row[-1], 67)] for row in self.texts()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows)

    def save(self, folder: Path) -> None:
        """Writes `table.md` and, for LaTeX with booktabs, `table.tex`."""
        rows = self.texts()
        num_numbers = len(rows[0]) - 1
        lines = [" | ".join(_escape(cell, _MARKDOWN) for cell in row) for row in rows]
        lines.insert(1, " | ".join(["---", *["---:"] * num_numbers]))
        write_atomically(folder / MARKDOWN, "".join(f"| {line} |\n" for line in lines).encode())
        lines = [" & ".join(_escape(cell, _LATEX) for cell in row) + r" \\" for row in rows]
        parts = [r"\begin{tabular}{l" + "r" * num_numbers + "}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
        write_atomically(folder / LATEX, "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""]).encode())


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled box with a text, code or a table."""

    title: str = ""
    table: PageTable | None = None
    text: str = ""
    code: str = ""
    muted: bool = False  # use the muted text colour
    wide: bool = False  # place below the charts, with the page's width
    folded: bool = False  # show the title only, until it is clicked


@dataclass(frozen=True, slots=True)
class PageSection:
    """A page section with a title. Omitted if it is empty."""

    title: str
    charts: Sequence[Chart] = ()
    panels: Sequence[Panel] = ()
    items: Sequence[str] = ()  # a list, in which keys are shown as code


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a run, of several runs, or of explanations."""

    title: str
    summary: str
    sections: Sequence[PageSection]
    notes: Sequence[str] = ()
    cards: Sequence[tuple[str, str]] = ()  # values and names

    def save(self, folder: Path) -> Path:
        """Writes `report.html` atomically, and returns its path."""
        write_atomically(folder / REPORT, _template().render(page=self).lstrip().encode())
        return folder / REPORT


_MARKDOWN = {character: f"\\{character}" for character in "\\|*_`<>[]#"} | {"\n": " "}
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "\n": " ",
}


def _escape(text: str, escapes: Mapping[str, str]) -> str:
    """Replaces special characters. `+-` becomes the sign."""
    return "".join(escapes.get(character, character) for character in text.replace("+-", "±"))


def asset(name: str) -> str:
    """Returns a file's text from the templates folder."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=printable
    )
    environment.filters["pieces"] = _KEY.split
    script = asset("uPlot.min.js") + asset("script.js")
    environment.globals |= {
        "style": Markup(asset("uPlot.min.css") + asset("style.css")),
        "script": Markup(script),  # a script element has no escapes
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.from_string(asset("page.html"))


def printable(value: object) -> object:
    """Replaces unprintable characters and limits the length."""
    if hasattr(value, "__html__"):  # rendered by a macro
        return value
    text = str(value)
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def format_value(value: Any) -> str:
    """Formats a result's figure on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(format_value, value[:40])) + (", …]" if len(value) > 40 else "]")
    if value is None or isinstance(value, bool | str):
        return "none" if value is None else str(value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return f"{value:,.0f}" if number(value) is not None else str(value)


def clipped(text: str, length: int) -> str:
    """Shortens text to at most `length` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
