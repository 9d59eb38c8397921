"""HTML that is escaped unless it was made here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

MAX_TEXT = 50_000  # characters of one text on a page
_EMPTY = {"meta", "br", "input", "path"}
# Characters that no document may hold, and those that turn the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already. Any other text is escaped."""

    __slots__ = ()


def escaped(content: object) -> Markup:
    """Returns HTML that shows a text as it is."""
    if isinstance(content, Markup):
        return content
    text = str(content)
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return Markup(escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Returns an element.

    Args:
        name: Name of the element.
        *children: Elements, and texts that are escaped.
        **attributes: Attributes. `class_` is spelt class, other underlines are dashes.
    """
    spelt = "".join(f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"' for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{name}{spelt}/>")
    return Markup(f"<{name}{spelt}>{''.join(map(escaped, children))}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Returns elements one after the other."""
    return Markup("".join(map(escaped, parts)))


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: bool = True, sortable: bool = False
) -> Markup:
    """Returns a table that scrolls by itself where the window is narrow.

    Args:
        head: Names of the columns. Empty: none.
        rows: Cells by row. The first one names the row.
        numbers: Whether the other cells are numbers, aligned right. Default: yes.
        sortable: Whether a click on a name of a column sorts. Default: no.
    """
    kind = {"class_": "number"} if numbers else {}
    names = [element("th", cell, **(kind if index else {})) for index, cell in enumerate(head)]
    top = [element("thead", element("tr", *names))] if head else []
    body = [
        element("tr", element("th", first), *(element("td", cell, **kind) for cell in rest)) for first, *rest in rows
    ]
    sorts = {"class_": "sortable"} if sortable else {}
    return element("div", element("table", *top, element("tbody", *body), **sorts), class_="scroll")
