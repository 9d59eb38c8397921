"""Exit codes of commands, and of jobs in processes of their own."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch import signals
from gnnkit.ranges import one_line
from gnnkit.redaction import redact

FAILED, MENDABLE = 1, 2  # exit codes


def exit_code(work: Callable[[], int]) -> int:
    """Calls `work`, prints errors, and returns the exit code.

    After a signal the exit code is that of the signal, whatever `work` returns or
    raises then.
    """
    code, error = _outcome(work)
    if by_signal := signals.exit_code():
        return by_signal
    if error is not None:
        _print(error)
    return code


def _outcome(work: Callable[[], int]) -> tuple[int, Exception | None]:
    """Returns the exit code of `work`, and the error to print."""
    try:
        return work(), None
    except UserError as error:
        return MENDABLE, error
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, None
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else FAILED, None
    except Exception as error:
        return FAILED, error


def _print(error: Exception) -> None:
    """Prints one line, a failed rank's own report, or the traceback of other errors."""
    launcher: Any = sys.modules.get("gnnkit.launch.group")
    if isinstance(error, UserError):
        print(f"gnnkit: error: {redact(one_line(error))}", file=sys.stderr)
    elif launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {redact(str(error))}", file=sys.stderr)
    else:
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
