"""Renders the templates, which escape all text, and writes a page with its figures."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.result.folder import REPORT
from gnnkit.utils.documents import number
from gnnkit.utils.storage import write_atomically
from gnnkit_report.drawing import Figure

if TYPE_CHECKING:
    from jinja2 import Environment

FIGURES = "figures"
MARKDOWN, LATEX = "table.md", "table.tex"
TEMPLATES = Path(__file__).with_name("templates")
MAX_TEXT = 50_000  # characters per text
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
        rows = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        nonempty = [index for index in range(len(self.head)) if any(row[index] for row in rows) or not rows]
        return replace(
            self, head=[self.head[index] for index in nonempty], rows=[[row[i] for i in nonempty] for row in rows]
        )


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled box with a text or a table."""

    title: str = ""
    table: PageTable | None = None
    text: str = ""
    muted: bool = False  # use the muted text colour
    wide: bool = False  # place below the figures, with the page's width


@dataclass(frozen=True, slots=True)
class PageSection:
    """A page section with a title. Omitted if it is empty."""

    title: str
    figures: Sequence[Figure]
    panels: Sequence[Panel] = ()


def render(template: str | Path, **values: object) -> str:
    """Renders a template.

    Args:
        template: A file's name in this package, or another file's path, which may
            extend these.
        **values: The template's variables.
    """
    environment = _environment()
    if isinstance(template, Path):
        return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
    return environment.get_template(template).render(**values)


def save(
    template: str | Path, figures: Iterable[Figure], folder: Path, /, *, draws: bool = True, **values: object
) -> Path:
    """Writes a page, and each figure as an SVG file. Returns the page's path.

    Args:
        template: As for `render`.
        figures: The figures on the page.
        folder: Receives the files.
        draws: Whether to write the SVG files.
        **values: The template's variables.
    """
    write_atomically(folder / REPORT, render(template, **values).encode())
    if draws:
        (folder / FIGURES).mkdir(exist_ok=True)
        for figure in figures:
            (folder / FIGURES / f"{figure.name}.svg").write_bytes(svg_file(figure))
    return folder / REPORT


def save_text_tables(table: PageTable, folder: Path) -> None:
    """Writes a table to `table.md` and, for LaTeX with booktabs, to `table.tex`."""
    rows = [[str(printable(getattr(cell, "text", cell))) for cell in row] for row in (table.head, *table.rows)]
    num_numbers = len(rows[0]) - 1
    rule = ["---", *["---:"] * num_numbers]
    lines = [" | ".join(_escape(cell, _MARKDOWN) for cell in row) for row in rows]
    lines.insert(1, " | ".join(rule))
    write_atomically(folder / MARKDOWN, "".join(f"| {line} |\n" for line in lines).encode())
    lines = [" & ".join(_escape(cell, _LATEX) for cell in row) + r" \\" for row in rows]
    parts = [r"\begin{tabular}{l" + "r" * num_numbers + "}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    write_atomically(folder / LATEX, "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""]).encode())


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


def svg_file(figure: Figure) -> bytes:
    """Returns a figure as an SVG file, with light colours in place of CSS variables.

    Few programs other than browsers support variables.
    """
    colours = _light_colours()
    text = render("figure.svg", figure=figure)
    return re.sub(r":var\(--(\w+)\)", lambda name: f":{colours.get(name[1], 'inherit')}", text).encode()


@functools.cache
def asset(name: str) -> str:
    """Returns a file's text from the templates folder."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _light_colours() -> dict[str, str]:
    return dict(reversed(re.findall(r"--(\w+):(#\w+)", asset("style.css"))))


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=printable,
    )
    digest = hashlib.sha256(asset("script.js").encode()).digest()
    environment.globals |= {
        "style": Markup(asset("style.css")),
        "script": Markup(asset("script.js")),  # a script element has no escapes
        "script_hash": base64.b64encode(digest).decode(),
    }
    return environment


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
