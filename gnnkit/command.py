"""The command line: composes a configuration, runs the job, returns an exit code."""

from __future__ import annotations

import argparse
import difflib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gnnkit import config, plugins
from gnnkit.config import completion, settings, usage
from gnnkit.errors import UserError
from gnnkit.launch.lean import ask_for_large_pages, without_garbage_collection
from gnnkit.launch.progress import exit_code
from gnnkit.utils.documents import Json


def run(words: Sequence[str]) -> int:
    """Runs `gnnkit` with the given arguments, and returns the exit code."""
    return exit_code(lambda: _run(_parse(words)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m gnnkit --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gnnkit", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", nargs="?", const="", metavar="SECTION")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--info", choices=("all", "plugins", "searchpath"))
    parser.add_argument("-cd", "--config-dir", type=Path, action="append", default=[])
    parser.add_argument("-cn", "--config-name", default=config.MAIN)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-sc", "--shell-completion")
    parser.add_argument("overrides", nargs="*")
    return parser


_WITHOUT_VALUE = {"--cfg": "job", "--info": "all"}  # options with an optional value


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. `--cfg` and `--info` do not take overrides as values."""
    parser = _parser()
    words = list(argv)
    for number, word in enumerate(words):
        if (default := _WITHOUT_VALUE.get(word)) is not None:
            alone = number + 1 == len(words) or words[number + 1].startswith("-") or "=" in words[number + 1]
            words[number : number + 1] = [f"{word}={default}"] if alone else [word]
    arguments, extra = parser.parse_known_intermixed_args(words)
    if extra:
        raise UserError(_unknown_option(extra[0], words, list(parser._option_string_actions)))
    return arguments


def _unknown_option(option: str, words: Sequence[str], options: Sequence[str]) -> str:
    """Returns a message about an unknown option, with a suggestion."""
    near = difflib.get_close_matches(option.partition("=")[0], options, n=1, cutoff=0.8)
    if near:
        return f"{option} is not an option: did you mean {near[0]}?"
    name, equals, value = option.lstrip("-").partition("=")
    place = words.index(option) + 1
    if not equals and place < len(words) and not words[place].startswith("-") and "=" not in words[place]:
        value = words[place]
    key = config.key_for(name.replace("-", "_"))
    meant = f"write {key}={value or 'VALUE'}" if key else "write keys as KEY=VALUE"
    return f"{option} is not an option: {meant}; see python -m gnnkit --help"


def _run(arguments: argparse.Namespace) -> int:
    if arguments.shell_completion is not None:
        print(completion.answer(arguments.shell_completion), end="")
        return 0
    if arguments.help is not None:
        print(usage.section(arguments.help) if arguments.help else usage.general(), end="")
        return 0
    if arguments.version:
        from importlib.metadata import version

        print(f"gnnkit {version('gnnkit')}")
        return 0
    return _run_jobs(arguments)


def _run_jobs(arguments: argparse.Namespace) -> int:
    """Prints the configuration, or runs a job or a sweep."""
    with without_garbage_collection():
        from gnnkit import jobs

    ask_for_large_pages()
    overrides, hydra = config.split(arguments.overrides)
    if arguments.info:
        return _show_info(arguments)
    if arguments.multirun and not arguments.cfg:
        return _sweep(arguments, overrides, hydra)
    if arguments.multirun:
        raise UserError("--cfg shows the configuration of one job: leave -m out")
    configuration = _compose(arguments, [*overrides, *_run_dir(overrides, hydra)])
    if arguments.cfg:
        output = {**(configuration if arguments.cfg != "hydra" else {})}
        if arguments.cfg != "job":
            output["hydra"] = hydra.nested()
        print(jobs.to_yaml(output), end="")
        return 0
    hydra.refuse(("sweep.", "sweeper.", "launcher."), "applies to sweeps only: add -m or remove it")
    _set_verbosity(hydra["verbose"])

    def settle(new_overrides: Sequence[str]) -> settings.Settings:
        return settings.settle(_compose(arguments, new_overrides))

    order = jobs.Order(settings.settle(configuration), overrides=overrides, options=_options(arguments), settle=settle)
    return jobs.start(order).exit_code


def _options(arguments: argparse.Namespace) -> list[str]:
    """Returns the options that determine where configuration files are found."""
    name = [f"--config-name={arguments.config_name}"] if arguments.config_name != config.MAIN else []
    return [*(f"--config-dir={folder.absolute()}" for folder in arguments.config_dir), *name]


def _sweep(arguments: argparse.Namespace, overrides: Sequence[str], hydra: config.HydraSettings) -> int:
    if "sweep" not in plugins.names(plugins.COMMAND):
        raise plugins.unknown_plugin(plugins.COMMAND, "sweep", (), "-m")
    hydra.refuse(("run.",), "is of one run: name the folder of a sweep with hydra.sweep.dir")
    _set_verbosity(hydra["verbose"])
    compose = functools.partial(_compose, arguments)
    code: int = plugins.load(plugins.COMMAND, "sweep")(overrides, _options(arguments), hydra, compose)
    return code


@without_garbage_collection()
def _compose(arguments: argparse.Namespace, overrides: Sequence[str]) -> Json:
    """Composes the configuration of one job."""
    of_file, name = config.of_file(arguments.config_name, arguments.config_dir, overrides)
    if of_file and any(config.key_of(text) == "checkpoint" for text in overrides):
        raise UserError("checkpoint and --config-name both name the configuration of a run: give one of them")
    run_overrides = [*of_file, *overrides] if of_file else config.with_run(overrides)
    return config.compose(
        config.with_data(run_overrides, overrides), config_dirs=arguments.config_dir, config_name=name
    )


def _run_dir(overrides: Sequence[str], hydra: config.HydraSettings) -> list[str]:
    """Converts `hydra.run.dir` to `output`."""
    if hydra["run.dir"] is None:
        return []
    if any(config.key_of(text) == "output" for text in overrides):
        raise UserError("output and hydra.run.dir both name the run folder: give one of them")
    return [f"output={hydra.typed['run.dir'].partition('=')[2]}"]


def _set_verbosity(verbose: object) -> None:
    """Enables log output of all loggers, or of the named ones."""
    import logging

    if verbose is False:
        return
    names = [None] if verbose is True else [verbose] if isinstance(verbose, str) else verbose
    if not isinstance(names, list) or not all(name is None or isinstance(name, str) for name in names):
        raise UserError(f"hydra.verbose={verbose} must be true, false, a name of a logger, or a list of names")
    logging.basicConfig(format="[%(asctime)s][%(name)s][%(levelname)s] %(message)s")
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)


def _show_info(arguments: argparse.Namespace) -> int:
    print(usage.info(arguments.info, arguments.config_dir), end="")
    return 0
