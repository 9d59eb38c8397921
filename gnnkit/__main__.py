"""The program, which installs signal handlers before importing the command line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gnnkit.launch.signals import defer_signals, ending_process, exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    with defer_signals():
        from gnnkit import command

        return command.run(sys.argv[1:] if argv is None else argv)


def program() -> NoReturn:
    """Runs `main` as a program.

    Exits immediately, because shutting torch and Lightning down takes a second.
    """
    with ending_process():
        from gnnkit.launch.lean import leave_out_unused

        _shorten_spinning()
        _open_closed_streams()
        leave_out_unused()
        code = main()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code() or code)  # a signal may have arrived at the end


def _shorten_spinning() -> None:
    """Lets the threads of OpenMP sleep after a short wait, in ranks, too.

    On a busy machine, threads that spin take each other's cores: an epoch on two
    threads took 5 times as long. On an idle machine, an epoch takes 3 % longer.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch loads the library


def _open_closed_streams() -> None:
    """Opens standard streams that the caller has closed.

    Otherwise, the next opened files would get the standard file descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we live


if __name__ == "__main__":
    program()
