"""What a job says to people."""

from __future__ import annotations


def say(text: str) -> None:
    """Prints to standard output. A reader that has left does not end the job."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):  # a closed pipe, a full disk, a closed file
        return
