"""Ports of this machine at which ranks may meet."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _NUM = 3000, 9000  # below those that the system and a step of Slurm choose
_numbers = itertools.count()


def free_port() -> int:
    """Returns a port that is free, and that no connection gets in the meantime.

    The system gives ports of its own range to any connection. Each process begins
    elsewhere, so that two that run tests do not choose the same port.
    """
    while True:
        port = _FIRST + (97 * os.getpid() + next(_numbers)) % _NUM
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
