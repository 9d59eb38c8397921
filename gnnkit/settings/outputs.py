"""What a run leaves: `write`, `report`, `on_exists`, `upload` and their like."""

from __future__ import annotations

from typing import Literal

from gnnkit.config import JobFacts
from gnnkit.errors import UserError
from gnnkit.ranges import is_url, one_of, shown, switch, whole

WRITTEN = ("predictions", "logits", "probabilities", "embeddings")
FORMATS = ("npy", "parquet", "csv")  # of the files that `write` names
UPLOADED = ", and upload=URL for a copy of it"  # said where output is a URL
ON_EXISTS = ("refuse", "resume", "replace")
PERMISSIONS = ("private", "shared")


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


def upload_of(job: JobFacts, value: object) -> str | None:
    """Reads the URL of a folder. Raises `UserError` for a job without a run folder."""
    if value is None:
        return None
    if not isinstance(value, str) or not is_url(value) or value.startswith("file:"):
        raise UserError(
            f"upload={shown(value)} must be a URL such as s3://bucket/folder, or null: output names a folder of this machine"
        )
    if not job.one_run:
        raise UserError(f"upload={shown(value)}: job={job} is no single run with a folder of its own: leave it out")
    return value
