"""From a settled configuration to a run folder and a job."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError
from gnnkit.launch.environment import started_rank
from gnnkit.leader.result import Result

if TYPE_CHECKING:
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given
    from gnnkit.settings import Settings

_SECRET = re.compile(r"token|passw|pwd|secret|credential|api_?key|access_?key|private_?key|auth", re.IGNORECASE)
_IN_ONE_PROCESS = ("plan", "partition")


def start(
    settings: Settings, folder: str | Path | None = None, graph: Graph | None = None, model: Given = None
) -> Result:
    """Runs the job in a new folder, writes `result.json` there, and prints the result.

    Args:
        settings: The configuration.
        folder: The run folder, which must not exist yet. None: `output`, else
            `outputs/<date>/<time>`.
        graph: Instead of the data set.
        model: Instead of the configured model.

    Returns:
        The result, on the leader. Other ranks of a run that was started from outside get one
        without figures.
    """
    started = started_rank()
    is_leader = started is None or started.rank == 0
    if started is not None and settings.job in _IN_ONE_PROCESS:
        if not is_leader:
            return Result(settings.job, {})
        started = None
    from gnnkit.jobs import dispatch

    dispatch.check(settings, graph, model)
    run_folder = _run_folder(settings, folder) if is_leader else None
    result = dispatch.run(settings, run_folder, started, graph, model)
    if run_folder is None:
        return result
    result.save(run_folder)
    _print(f"{result.table()}\nwritten to {run_folder}")
    return result


def _run_folder(settings: Settings, folder: str | Path | None) -> Path:
    named = settings.output if folder is None else folder
    run_folder = new_run_folder() if named is None else _make_folder(Path(named).absolute())
    (run_folder / "config.yaml").write_text(to_yaml(settings.composed), encoding="utf-8")
    return run_folder


def _print(text: str) -> None:
    """Prints, if anybody reads."""
    try:
        print(text, flush=True)
    except (BrokenPipeError, AttributeError, ValueError):  # a closed pipe, no stdout, a closed stdout
        return


def new_run_folder(base: Path = Path("outputs")) -> Path:
    """Makes `base/<date>/<time>`, with a number behind if another run has that; never returns a folder twice."""
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
    """Spells a configuration as text to keep. Values of keys that look like secrets are left out."""
    import yaml

    text: str = yaml.safe_dump(_redacted(composed), sort_keys=False)
    return text


def _redacted(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {k: "***" if _SECRET.search(str(k)) and v else _redacted(v) for k, v in node.items()}
    return [_redacted(item) for item in node] if isinstance(node, list) else node
