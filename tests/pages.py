"""The scripts that a page of the documents shows in tabs, before and after a move."""

from __future__ import annotations

import difflib
import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/coming-from.md"


def section(heading: str) -> str:
    """Returns the text under a heading, up to the next one of the same level."""
    level = heading.partition(" ")[0]
    return PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition(f"\n{level} ")[0]


def scripts(heading: str) -> dict[str, str]:
    """Returns the script of each tab under a heading."""
    tabs = re.findall(r'^=== "([^"]*)"\n\n    ```py\n(.*?)^    ```$', section(heading), re.MULTILINE | re.DOTALL)
    return {name: textwrap.dedent(script) for name, script in tabs}


def change(before: str, after: str) -> str:
    """Says how many lines of a moved script are new, empty ones aside."""
    new = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("+ ")]
    lines = sum(bool(line) for line in after.splitlines())
    return f"{sum(line.strip() != '+' for line in new)} of {lines} lines are new"
