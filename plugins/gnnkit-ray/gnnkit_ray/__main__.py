"""The parent process of a node's ranks, started by a Ray actor."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.launcher import RankError, Ranks
from gnnkit.launch.lean import leave_out_unused
from gnnkit.launch.processes import launch, launch_at
from gnnkit.launch.watchdog import Patience
from gnnkit_ray.agents import unpickled

SAVE = 128 + signal.SIGTERM  # exit code of a stopped agent


def main() -> None:
    """Reads the work from standard input, and writes the report to a pipe."""
    writer, folder = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(writer, False)
    leave_out_unused()  # importing Lightning takes two seconds instead of four
    try:
        report = _report(folder)
    except SystemExit:
        report = {"error": "the ranks were stopped", "is_user_error": False, "failure": {"lost_peer": True}}
    with open(writer, "w") as pipe:
        json.dump(report, pipe)


def _report(folder: str) -> dict[str, Any]:
    """Runs the ranks. Returns their results by process, or a failure report."""
    try:
        _enter(folder)
        ranks, places = unpickled(sys.stdin.buffer)
        return {"results": _run(ranks, places)}
    except RankError as error:
        return {"error": str(error), "is_user_error": False, "failure": asdict(error.failure)}
    except UserError as error:
        return {"error": str(error), "is_user_error": True}


def _run(ranks: Ranks, places: Sequence[StartedRank] | None) -> dict[int, Any]:
    function = functools.partial(_rank, ranks)
    keys: dict[str, Any] = {
        "start_method": "spawn" if ranks.comm.device_type == "cuda" else "fork",
        "patience": Patience.of(ranks.timeout),
        "names": ranks.names,
        "meanwhile": _stop_with_actor,
    }
    if places is None:
        return launch(function, ranks.processes, **keys)
    return launch_at(function, places, **keys)


def _rank(ranks: Ranks, process: int, processes: int) -> list[Any]:
    return ranks.run_several(process)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"launcher=ray: host {socket.gethostname()} has no folder {folder}: run the command in a folder that exists on all "
            "nodes"
        ) from error


def _stop_with_actor() -> None:
    """Stops the ranks when the actor has closed standard input or died."""
    if select.select([sys.stdin], [], [], 0)[0]:
        sys.exit(SAVE)


if __name__ == "__main__":
    main()
