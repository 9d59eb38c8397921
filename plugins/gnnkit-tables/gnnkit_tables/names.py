"""Names of tables and columns without their spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

KEY = re.compile(r"([^A-Za-z]id|Id|ID|(?i:key))$")  # endings of names of keys, other than id


def plain_name(name: str) -> str:
    """Returns the letters and digits of a name in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def name_stems(table: str) -> Sequence[str]:
    """Returns a table's plain name and its singular."""
    name = plain_name(table)
    singular = f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")
    return [name, singular, name.removesuffix("es")]
