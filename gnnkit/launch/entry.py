"""The first function that runs in a started process, up to the report to the parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.allocator import keep_freed_memory
from gnnkit.launch.progress import Board, report_on
from gnnkit.launch.signals import HANDLED, ending_process
from gnnkit.redaction import redact

GRACE = 1.0  # seconds from SIGTERM to the end of a process that does not come to its next sign of progress

_PR_SET_PDEATHSIG = 1


def enter(
    writer: connection.Connection,
    stacks: connection.Connection,
    board: Board,
    parent: int,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    """Runs the function in the started process, and reports to the parent in JSON.

    Args:
        writer: Takes the report.
        stacks: Takes the stacks of all threads at each SIGUSR1.
        board: Shows the progress.
        parent: Process id of the parent.
        environment: Further environment variables.
        function: The work of the process.
        arguments: Arguments of the function.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with ending_process(GRACE):  # loggers and files are closed in order
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        _work(writer, stacks, board, environment, function, arguments)


def _work(
    writer: connection.Connection,
    stacks: connection.Connection,
    board: Board,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    os.environ.update(environment)
    _print_whole_lines()
    report_on(board)
    gc.freeze()  # a pass over imported modules would copy the pages that processes share
    gc.enable()
    keep_freed_memory()
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno())
    with contextlib.suppress(AttributeError, OSError, ValueError):  # where there is no stderr
        faulthandler.enable(sys.__stderr__)  # type: ignore[arg-type]  # shows where native code crashed
    try:
        text = json.dumps({"result": function(*arguments)})
    except SystemExit:
        raise
    except BaseException as error:  # also the panics of native code
        text = json.dumps(_describe(error))
    writer.send_bytes(text.encode())
    writer.close()
    sys.exit(0 if text.startswith('{"result"') else 1)


def _print_whole_lines() -> None:
    """Writes each printed line at once, also with PYTHONUNBUFFERED.

    Otherwise pieces of lines of several processes mix.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a notebook's stream, or none
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def die_with_parent(parent: int | None = None) -> None:
    """Lets the kernel kill this process when the parent dies, on Linux.

    Args:
        parent: Process id of the parent. Default: the parent of now.
    """
    _die_with(os.getppid() if parent is None else parent)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # died in between
            os.kill(os.getpid(), signal.SIGKILL)


def _describe(error: BaseException) -> dict[str, Any]:
    """Returns an error as the report of a process."""
    from gnnkit.storage import of_disk

    trimmed = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))  # a thread's rank
    mendable = error if isinstance(error, UserError) else of_disk(error) if isinstance(error, OSError) else None
    return {
        "error": redact(f"{type(error).__name__}: {error}{notes}"),
        "message": redact(str(mendable or error)),
        "mendable": mendable is not None,
        **(
            {} if mendable not in (None, error) else {"traceback": redact("".join(traceback.format_exception(trimmed)))}
        ),
    }
