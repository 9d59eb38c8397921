"""The texts of `--help` and `--info`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gnnkit import plugins
from gnnkit.config import EXPERIMENT, HYDRA_PARTS, SECTIONS, hydra_options, hydra_section, keys
from gnnkit.config.settings.fields import AUTO
from gnnkit.utils.ranges import unknown

WIDTH = 80  # columns
_INDENT = 4
_HELP = Path(__file__).with_name("help.txt")


def general() -> str:
    """Lists each section's options and the run's keys. Imports no plugin."""
    sections = [_entry(kind, " ".join(plugins.options(kind)), 12) for kind in plugins.KINDS]
    trainer = _entry("trainer", " ".join(key.name for key in keys.read("trainer", "default").keys), 12)
    experiments = _entry(EXPERIMENT, " ".join(plugins.options(EXPERIMENT)), 12)
    of_hydra = _entry("hydra", "run sweep sweeper launcher verbose: --help hydra", 12)
    jobs = _entry("job", " ".join(plugins.names("job")), 12)
    run_keys = {key.name: key for key in keys.read("", "config").keys if key.name != "job"}
    run_keys["strategy"] = replace(run_keys["strategy"], default=AUTO)  # by the defaults list
    run = [_key("", key, 20) for key in run_keys.values()]
    text = _HELP.read_text(encoding="utf-8")
    return text.format(sections="\n".join([jobs, *sections, trainer, experiments, of_hydra]), keys="\n".join(run))


def section(topic: str) -> str:
    """Lists the keys of a section's options, or of one option.

    Raises `UserError` if the section or option does not exist.

    Args:
        topic: A section such as `model`, or an option such as `model=gcn`.
    """
    kind, _, name = topic.lstrip("+").partition("=")
    if kind == "hydra":
        return _hydra_section()
    if kind not in (*SECTIONS, EXPERIMENT, "job"):
        raise unknown(f"--help {topic}", kind, (*SECTIONS, EXPERIMENT, "job", "hydra"))
    option_names = plugins.options(kind)
    if name and name not in option_names:
        raise plugins.unknown_plugin(kind, name, option_names, f"{kind}={name}")
    folder = plugins.JOBS if kind == "job" else kind
    options = [_option(keys.read(folder, choice)) for choice in ([name] if name else option_names)]
    if everywhere := keys.shared_keys(kind):
        options.append("\n".join([f"every {kind}", *(_key(kind, key, 30) for key in everywhere)]))
    return "\n\n".join(options) + "\n"


def _hydra_section() -> str:
    """Lists Hydra's settings with defaults, for each sweeper and launcher."""
    parts = ["\n".join(["hydra", *(_key("hydra", key, 30) for key in keys.read("", "hydra").keys)])]
    for part in HYDRA_PARTS:
        for option in (keys.read(hydra_section(part), name) for name in hydra_options(part)):
            lines = [f"hydra/{part}={option.name}", *_wrap(option.summary, 2)]
            parts.append("\n".join([*lines, *(_key(f"hydra.{part}", key, 30) for key in option.keys)]))
    return "\n\n".join(parts) + "\n"


def _option(option: keys.Option) -> str:
    """Formats an option. Omits shared keys with an unchanged default."""
    everywhere = {key.name: key.default for key in keys.shared_keys(option.section)}
    option_keys = [replace(key, comment="") if key.name in everywhere else key for key in option.keys]
    visible_keys = [key for key in option_keys if everywhere.get(key.name) != key.default]
    is_global = option.section in (EXPERIMENT, plugins.JOBS)
    section = "job" if option.section == plugins.JOBS else option.section
    lines = [f"{section}={option.name}", *_wrap(option.summary, 2)]
    prefix = "" if is_global else section
    lines += [_key(prefix, key, 30) for key in visible_keys]
    if not (option.summary or option.keys or is_global):
        section = f"{section}.{option.name}" if section in plugins.SEVERAL else section
        lines += _wrap(f"Has no YAML file. Set its arguments with {section}.options.KEY=VALUE", 2)
    return "\n".join(lines)


def _key(section: str, key: keys.Key, column: int) -> str:
    name = f"{section}.{key.name}" if section else key.name
    is_required = key.default == "???"
    text = "; ".join(filter(None, [key.comment, "must be set" if is_required else ""]))
    return _entry(f"{name}={'VALUE' if is_required else key.default}", text, column)


def _entry(name: str, text: str, column: int) -> str:
    """Formats a name and a text in two columns.

    The text starts on a new line if the name is too long.
    """
    lines = _wrap(text, _INDENT + column)
    head = f"{'':{_INDENT}}{name:<{column}}"
    if len(name) < column and lines:
        return "\n".join([head + lines[0].lstrip(), *lines[1:]])
    return "\n".join([head.rstrip(), *lines])


def _wrap(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


_PACKAGES = ("gnnkit", "torch", "lightning", "hydra-core", "numpy", "optuna", "submitit")


def info(topic: str, config_dirs: Sequence[Path]) -> str:
    """Returns the text for one topic.

    Args:
        topic: all, plugins or searchpath.
        config_dirs: The user's folders.
    """
    lines = [f"{name} {_version(name)}" for name in _PACKAGES] if topic == "all" else []
    for name, part in (("plugins", _plugins()), ("searchpath", _folders(config_dirs))):
        if topic in ("all", name):
            lines += [f"{name}:", *part]
    return "\n".join(lines) + "\n"


def _plugins() -> Iterator[str]:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            point = plugins.find(kind, name)
            yield f"  {kind}={name}  {point.value}" + (f" of {point.dist.name}" if point.dist else "")
    for part in HYDRA_PARTS:
        for name in hydra_options(part):
            yield f"  hydra/{part}={name}"


def _folders(config_dirs: Sequence[Path]) -> Iterator[str]:
    yield from (f"  {folder.resolve()}" for folder in plugins.conf_folders())
    yield from (f"  {folder.absolute()}  --config-dir" for folder in config_dirs)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
