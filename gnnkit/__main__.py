"""The command line: composes a configuration, runs the job, returns an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from gnnkit import config
from gnnkit.errors import UserError
from gnnkit.ranges import one_line

FAILED, MENDABLE = 1, 2  # exit codes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(_parser().parse_args(argv))
    except UserError as error:
        print(f"gnnkit: error: {one_line(error)}", file=sys.stderr)
        return MENDABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as error:  # SIGTERM
        return error.code if isinstance(error.code, int) else FAILED
    except Exception as error:
        _print_failure(error)
        return FAILED


def program() -> NoReturn:
    """Runs `main` as a program.

    Leaves at once, because ending torch and Lightning in order takes a second.
    """
    from gnnkit.launch.lean import leave_out_unused

    _open_closed_streams()
    leave_out_unused()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_closed_streams() -> None:
    """Opens standard streams that the caller has closed.

    Otherwise the next files that this process opens get the standard numbers.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we live


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m gnnkit --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gnnkit", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", nargs="?", const="", metavar="SECTION")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--cfg", action="store_true")
    parser.add_argument("--config-dir", type=Path)
    parser.add_argument("overrides", nargs="*")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.help is not None:
        from gnnkit import usage

        print(usage.section(arguments.help) if arguments.help else usage.general(), end="")
        return 0
    if arguments.version:
        from importlib.metadata import version

        print(f"gnnkit {version('gnnkit')}")
        return 0
    from gnnkit import jobs, settings
    from gnnkit.launch.allocator import ask_for_large_pages

    ask_for_large_pages()
    composed = config.compose(config.with_run(arguments.overrides), config_dir=arguments.config_dir)
    if arguments.cfg:
        print(jobs.to_yaml(composed), end="")
        return 0
    result = jobs.start(settings.settle(composed), command=jobs.command(arguments.overrides))
    return 0 if result.get("verified", True) else FAILED


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _print_failure(error: Exception) -> None:
    """Prints a failed rank's own report, or the traceback of any other error."""
    launcher: Any = sys.modules.get("gnnkit.launch.group")
    if launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    program()
