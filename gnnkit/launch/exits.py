"""Exit codes of commands, and of jobs in processes of their own."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from gnnkit.errors import UserError
from gnnkit.ranges import one_line
from gnnkit.redaction import redact

FAILED, MENDABLE = 1, 2  # exit codes


def exit_code(work: Callable[[], int]) -> int:
    """Calls `work`, prints errors, and returns the exit code."""
    try:
        return work()
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


def _print_failure(error: Exception) -> None:
    """Prints a failed rank's own report, or the traceback of any other error."""
    launcher: Any = sys.modules.get("gnnkit.launch.group")
    if launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {redact(str(error))}", file=sys.stderr)
    else:
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
