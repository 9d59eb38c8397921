"""The request for a job, and its configuration as text, without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.config import RECORD, key_of, keys
from gnnkit.utils.ranges import is_url
from gnnkit.utils.redaction import (
    HIDDEN,
    as_interpolation,
    is_interpolation,
    is_secret,
    secret_variables,
    without_credentials,
    without_items,
)
from gnnkit.utils.storage import write_atomically

if TYPE_CHECKING:
    from gnnkit.config.settings import Settings
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import ModelSource, PythonModel

CONFIG_FILE = "config.yaml"
_QUOTED = re.compile(r"='([\w./+-]*)'$")  # a word that needs no quotes
_AS_GIVEN = ("output", "upload")  # not read by later jobs
_PATHS = ("root", "path", "manifest", "checkpoint", "resume")  # keys whose value is a path even without a slash


@dataclass(frozen=True, slots=True)
class Order:
    """A request for a job. Each step passes a modified copy to the next.

    It joins the typed settings with the objects that a Python caller passed instead of
    keys: a graph and a model. A job reads its settings from `settings`, its own keys
    from `settings.job_keys`, and writes into `run_folder`.
    """

    settings: Settings
    graph: Graph | None = None  # replaces the data set
    model: PythonModel = None  # replaces the configured model
    folder: str | Path | None = None  # the run folder, or None for the key `output` or a new folder
    overrides: Sequence[str] = ()  # as typed, and recorded in the run folder
    program: str = "gnnkit"  # the invoked program, for messages
    settle: Callable[[Sequence[str]], Settings] | None = None  # resolves other overrides in the same way
    options: Sequence[str] = ()  # command-line options such as --config-dir=DIR

    @property
    def source(self) -> ModelSource:
        """The source of the model: the caller's object, or the configured plugin.

        It answers what a job must know about the model before creating it. Imports
        torch.
        """
        from gnnkit.jobs.models import ModelSource

        return ModelSource(self.settings.model, self.model)

    def load_graph(self) -> Graph:
        """Returns the caller's graph, or else the data set's, with column names."""
        from gnnkit.prepare.inputs import with_names

        return with_names(self.settings, self.graph)

    def command(self, overrides: Sequence[str]) -> str:
        """Returns the command line with these overrides, without secrets.

        For messages that tell users what to run next.

        Args:
            overrides: `KEY=VALUE` texts.
        """
        return command(overrides, self.program, self.options)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader's, or starts the ranks."""
        started_rank = self.settings.started
        return started_rank is None or started_rank.rank == 0

    @property
    def named_folder(self) -> str | Path | None:
        """The requested run folder."""
        return self.settings.output if self.folder is None else self.folder

    @property
    def run_folder(self) -> Path:
        """The run folder, which exists. Only the leader's order has one.

        Before the folder is created, `named_folder` is the requested one.
        """
        assert isinstance(self.folder, Path)
        return self.folder


def redact_config(config: Mapping[str, Any]) -> dict[str, object]:
    """Returns a configuration as plain data, without secrets."""
    plain: dict[str, Any] = _redact(config, secret_variables())
    return plain


def to_yaml(config: Mapping[str, object]) -> str:
    """Formats a configuration as YAML with a comment for each key, without secrets."""
    return keys.annotate(redact_config(config))


def plain_yaml(node: Mapping[str, object] | Sequence[object]) -> str:
    """Formats plain data as YAML, without comments or secrets."""
    import yaml

    text: str = yaml.safe_dump(_redact(node, secret_variables()), sort_keys=False, allow_unicode=True, width=2**31)
    return text


def redact_override(text: str) -> str:
    """Returns an override with its secret hidden."""
    key, is_value, value = text.partition("=")
    if not is_value or is_interpolation(value):
        return text
    node = {key_of(key).rpartition(".")[2]: without_items(value) if value[:1] in "{[" else value}
    hidden = _redact(node, secret_variables())
    return f"{key}={next(iter(hidden.values()))}"


def command(overrides: Sequence[str], program: str = "gnnkit", options: Sequence[str] = ()) -> str:
    """Returns a shell command line, without secrets.

    Args:
        overrides: Arguments such as `model=gcn`.
        program: The invoked program. Default: the command.
        options: Options such as `--config-dir=DIR`. Default: none.
    """
    return shlex.join([program, *options, *(_QUOTED.sub(r"=\1", redact_override(text)) for text in overrides)])


def _redact(node: object, secrets: Mapping[str, str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _hidden(value, secrets) if value and is_secret(str(key), value) else _redact(value, secrets)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redact(item, secrets) for item in node]
    if not isinstance(node, str):
        return node
    return without_credentials(node if "${" in node else as_interpolation(node, secrets))


def _hidden(value: object, secrets: Mapping[str, str]) -> str:
    """Replaces a secret by its variable's name, or by `HIDDEN` if there is none."""
    interpolation = as_interpolation(value, secrets) if isinstance(value, str) else HIDDEN
    return interpolation if is_interpolation(interpolation) else HIDDEN


def write_configuration(folder: Path, config: Mapping[str, object]) -> None:
    """Writes `config.yaml` without secrets, and with absolute paths."""
    write_atomically(folder / CONFIG_FILE, to_yaml(with_absolute_paths(config)).encode())


def write_record(folder: Path, config: Mapping[str, object], overrides: list[str]) -> None:
    """Writes the configuration and the overrides in Hydra's layout."""
    record_folder = folder / RECORD
    record_folder.mkdir(exist_ok=True)
    write_atomically(record_folder / "config.yaml", plain_yaml(with_absolute_paths(config)).encode())
    write_atomically(record_folder / "overrides.yaml", plain_yaml(overrides).encode())


def with_absolute_paths(config: Mapping[str, object]) -> dict[str, object]:
    """Makes existing paths absolute, except in `output` and `upload`."""
    return {key: value if key in _AS_GIVEN else absolute(key, value) for key, value in config.items()}


def absolute(key: str, value: object) -> Any:
    """Makes an existing path absolute, also inside mappings and lists.

    A value without a slash may be a column name, so it is changed only under a path
    key. URLs stay.
    """
    if isinstance(value, Mapping):
        return {name: absolute(str(name), item) for name, item in value.items()}
    if isinstance(value, list):
        return [absolute(key, item) for item in value]
    if not isinstance(value, str) or not (key in _PATHS or "/" in value) or is_url(value):
        return value
    try:
        return str(Path(value).absolute()) if value and Path(value).exists() else value
    except (OSError, ValueError):
        return value
