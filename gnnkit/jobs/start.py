"""From a settled configuration to a run folder and a job."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit import keys
from gnnkit.errors import UserError
from gnnkit.jobs.say import say
from gnnkit.launch.environment import started_rank
from gnnkit.leader.result import Result

if TYPE_CHECKING:
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given
    from gnnkit.settings import Settings

_NAMES = r"token|tokens|pwd|auth|authorization|(?:api|access|private)[_-]?keys?"  # of secrets, as words of a key
_SECRET = re.compile(rf"passw|passphrase|secret|credential|(?:^|[_.-])(?:{_NAMES})(?:$|[_.-])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_URL_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(?<=[?&;])([^=&;#\s]+)=([^&;#\s]+)")
_IN_ONE_PROCESS = ("plan", "partition")


def start(
    settings: Settings, folder: str | Path | None = None, graph: Graph | None = None, model: Given = None
) -> Result:
    """Runs the job in a new folder, writes `result.json` there, and prints the result.

    Args:
        settings: The configuration.
        folder: The run folder, which must not exist yet. None: the key `output`, or
            else `outputs/<date>/<time>`.
        graph: Instead of the data set.
        model: Instead of the configured model.

    Returns:
        The result, on the leader. Other ranks of a run that was started from outside
        get one without figures.
    """
    begun = time.perf_counter()
    started = started_rank()
    is_leader = started is None or started.rank == 0
    if started is not None and settings.job in _IN_ONE_PROCESS:
        if not is_leader:
            return Result(settings.job, {})
        started = None
    from gnnkit.jobs import dispatch

    settings = dispatch.check(settings, graph, model)
    run_folder = _run_folder(settings, folder) if is_leader else None
    if run_folder is not None and settings.notes:
        say("\n".join(settings.notes))
    result = dispatch.run(settings, run_folder, started, graph, model)
    if run_folder is None:
        return result
    if settings.job == "train":
        result = result.with_figure("seconds_total", time.perf_counter() - begun)
    result.save(run_folder)
    say(f"{result.table()}\nwritten to {run_folder}")
    return result


def _run_folder(settings: Settings, folder: str | Path | None) -> Path:
    named = settings.output if folder is None else folder
    run_folder = new_run_folder() if named is None else _make_folder(Path(named).absolute())
    (run_folder / "config.yaml").write_text(to_yaml(settings.composed), encoding="utf-8")
    return run_folder


def new_run_folder(base: Path = Path("outputs")) -> Path:
    """Makes `base/<date>/<time>`, with a number behind if another run has this time."""
    parent = base / time.strftime("%Y-%m-%d")
    stem = time.strftime("%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            folder = parent / (f"{stem}-{number}" if number else stem)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder.absolute()
    except OSError as error:
        raise UserError(f"cannot make a run folder in {parent.absolute()}: {error.strerror}") from error
    raise UserError(f"{parent.absolute()} holds 10000 runs of {stem}")


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder


def to_yaml(composed: Mapping[str, Any]) -> str:
    """Spells a configuration as YAML with the comments of its keys, without secrets."""
    return keys.annotated(_redacted(composed))


def _redacted(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {
            key: "***" if value and _is_secret(str(key), value) else _redacted(value) for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redacted(item) for item in node]
    return _without_credentials(node) if isinstance(node, str) else node


def _is_secret(key: str, value: object) -> bool:
    """Tells whether a key names a secret.

    A number is no token: `num_tokens` is a count.
    """
    is_count = isinstance(value, int | float) and "token" in key.lower()
    return not is_count and _SECRET.search(_CAMEL.sub("_", key)) is not None


def _without_credentials(text: str) -> str:
    """Hides user and password of a URL, and the values of secrets in its query."""
    hidden = _URL_USER.sub("***@", text)
    return _URL_QUERY.sub(lambda part: f"{part[1]}=***" if _is_secret(part[1], part[2]) else part[0], hidden)
