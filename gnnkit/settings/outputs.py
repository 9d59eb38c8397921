"""What a run leaves: `write`, `write_format`, `report`, `report_port`, `on_exists`."""

from __future__ import annotations

from typing import Literal

from gnnkit.errors import UserError
from gnnkit.ranges import one_of, switch, whole

WRITTEN = ("predictions", "logits", "probabilities", "embeddings")
FORMATS = ("npy", "parquet", "csv")  # of the files that `write` names
ON_EXISTS = ("refuse", "resume", "replace")


def written_of(value: object) -> tuple[str, ...]:
    """Reads one name or a list of names."""
    names = value if isinstance(value, list) else [value]
    return tuple(one_of("write", name, WRITTEN) for name in names)


def report_of(value: object) -> bool | Literal["live"]:
    """Reads whether a page is drawn, or served."""
    return "live" if value == "live" else switch("report", value, what="true, false or live")


def port_of(report: bool | str, value: object) -> int:
    """Returns the port. Raises `UserError` where no page is served."""
    port: int = whole("report_port", value, 0, 2**16 - 1)
    if port and report != "live":
        raise UserError(f"report_port={port}: only report=live serves a page, leave it out")
    return port
