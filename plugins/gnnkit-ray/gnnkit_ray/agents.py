"""Agents of ranks and of jobs, which run on the cluster's nodes.

The Ray actor starts a process that is the ranks' parent (`__main__`), because a forked
actor would inherit Ray's threads. The process stops its ranks when its standard input
is closed, either by the actor or because the actor died.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gnnkit.launch.child import die_with_parent
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.launcher import Ranks

SIZE = 8  # bytes of the length prefix


class Agent:
    """The Ray actor of one node."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def place(self) -> tuple[str, str, int]:
        """Returns the node's id and address, and a free port."""
        import ray

        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.create_server((address, 0)) as probe:
            port = probe.getsockname()[1]
        return ray.get_runtime_context().get_node_id(), address, port

    def run(self, ranks: Ranks, places: Sequence[StartedRank] | None, folder: str) -> dict[str, Any]:
        """Runs this node's ranks. Returns their results, or a failure report.

        Args:
            ranks: All ranks.
            places: The node's processes. If None, all processes are on this node.
            folder: Working folder, which must exist on the node.
        """
        from ray import cloudpickle

        work = cloudpickle.dumps((ranks, places))  # type: ignore[no-untyped-call]
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "gnnkit_ray", str(writer), folder]
        with open(reader, "rb") as report:
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[writer])
            finally:
                os.close(writer)
            with self._process, contextlib.suppress(BrokenPipeError):
                assert self._process.stdin is not None
                self._process.stdin.write(len(work).to_bytes(SIZE, "big") + work)
                self._process.stdin.flush()
                if self._stopped:
                    self.stop()
                text = report.read()
        return dict(json.loads(text)) if text else {"lost": "its agent died"}

    def stop(self) -> None:
        """Makes the ranks save a checkpoint and stop."""
        self._stopped = True
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def unpickled(stream: Any) -> tuple[Ranks, Sequence[StartedRank] | None]:
    """Reads the work that an actor has written."""
    size = int.from_bytes(stream.read(SIZE), "big")
    ranks, places = pickle.loads(stream.read(size))
    return ranks, places


def command(arguments: Sequence[str], folder: str) -> tuple[int, str]:
    """Runs a sweep's job in a process. Returns the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "gnnkit", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
