"""Exit codes of commands, and of jobs in separate processes."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch import signals
from gnnkit.utils.ranges import one_line, printable
from gnnkit.utils.redaction import redact

FAILED, USER_ERROR = 1, 2  # exit codes


def exit_code(work: Callable[[], int]) -> int:
    """Calls `work`, prints its error, and returns the exit code.

    After a signal, the exit code is the signal's, regardless of what `work` returns or
    raises.
    """
    code, error = _outcome(work)
    if by_signal := signals.exit_code():
        return by_signal
    return code if error is None else _print_failure(error)


def _outcome(work: Callable[[], int]) -> tuple[int, Exception | None]:
    """Returns the exit code of `work`, or the error that it raised."""
    try:
        return work(), None
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, None
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else FAILED, None
    except Exception as error:
        return FAILED, error


def _print_failure(error: Exception) -> int:
    """Prints a user error, a failed rank's report, or a traceback.

    Returns the exit code.
    """
    launcher: Any = sys.modules.get("gnnkit.launch.group")
    if (user_error := as_user_error(error)) is not None:
        print(f"gnnkit: error: {one_line(user_error)}", file=sys.stderr)
        return USER_ERROR
    if launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {printable(redact(str(error)))}", file=sys.stderr)
    else:
        sys.stderr.write(printable(redact("".join(traceback.format_exception(error)))))
    return FAILED


def as_user_error(error: BaseException) -> UserError | None:
    """Returns the error as one that the user can fix, or None."""
    if isinstance(error, OSError):
        from gnnkit.utils.storage import of_disk  # imports NumPy

        return of_disk(error)
    return error if isinstance(error, UserError) else None
