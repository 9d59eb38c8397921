"""The command line: composes and checks the configuration, runs the job, and turns its end into an exit code."""

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

from gnnkit import config, plugins
from gnnkit.errors import UserError
from gnnkit.settings import DEFAULT_WORKERS, JOBS

FAILED, MENDABLE = 1, 2  # exit codes

_HELP = """\
Train graph neural networks on several workers.

    python -m gnnkit +strategy=vertex_centric partition=2d
    python -m gnnkit strategy=vertex_centric dataset=npz dataset.root=FILE workers=4 trainer.max_epochs=200

Choose parts with KIND=NAME, set their keys with KIND.KEY=VALUE:
{kinds}
    trainer        {trainer}

Keys of the run:
    workers=auto|N    ranks; auto: the GPUs if there are two or more, else {workers}
    threads=auto|N    threads of each rank; auto: cores // workers, at least 1
    seed=0            everything random follows from it
    job={jobs}
                      verify: against one process, in float64; plan: words, memory and balance, no training;
                      partition: reports and stores the partition
    partition.nodes=NAME  partition.grid=1d|1.5d|2d|3d|[rows,cols,slices]  partition.replication=C
    trainer.max_epochs=N  trainer.lr=X  model.hidden=N

Options:
    -h, --help           this text
    --version            the version
    --cfg                print the composed configuration as YAML and stop
    --config-dir DIR     a folder with YAML of your own, e.g. DIR/model/wide.yaml for model=wide

A run writes outputs/<date>/<time>/ with config.yaml, result.json, predictions.npy (values.npy of a
program), checkpoints and logs.
Exit codes: 0 done; 2 an error that you can mend, named on one line; 1 any other; 130 or 143 ended by a signal.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(_parser().parse_args(argv))
    except (UserError, _UsageError) as error:
        print(f"gnnkit: error: {error}", file=sys.stderr)
        return MENDABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as error:  # SIGTERM
        return error.code if isinstance(error.code, int) else FAILED
    except Exception as error:
        _print_failure(error)
        return FAILED


def program() -> NoReturn:
    """`main` as a program. Leaves at once: taking torch and Lightning down in order costs a second and more."""
    code = main()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _UsageError(Exception):
    """A command line that argparse refuses."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see python -m gnnkit --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gnnkit", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--cfg", action="store_true")
    parser.add_argument("--config-dir", type=Path)
    parser.add_argument("overrides", nargs="*")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.help:
        print(_help(), end="")
        return 0
    if arguments.version:
        from importlib.metadata import version

        print(f"gnnkit {version('gnnkit')}")
        return 0
    from gnnkit import jobs, settings

    composed = config.compose(arguments.overrides, config_dir=arguments.config_dir)
    if arguments.cfg:
        print(jobs.to_yaml(composed), end="")
        return 0
    result = jobs.start(settings.settle(composed))
    return 0 if result.get("verified", True) else FAILED


def _help() -> str:
    kinds = "\n".join(f"    {kind:<14} {' '.join(plugins.options(kind))}" for kind in plugins.KINDS)
    trainer = " ".join(plugins.options("trainer"))
    return _HELP.format(kinds=kinds, trainer=trainer, jobs="|".join(JOBS), workers=DEFAULT_WORKERS)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _print_failure(error: Exception) -> None:
    """A failed rank's report stands for itself; anything else is our own mistake and needs its traceback."""
    launcher: Any = sys.modules.get("gnnkit.launch.processes")
    if launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    program()
