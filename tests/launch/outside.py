"""A launcher that knows nothing of gnnkit. Each rank has an environment and a command.

As a program, imports once what ranks import, then obeys one line of JSON after the
other. An answer is a line of JSON with the exit code, output and seconds of each rank.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "SLURM_", "GNNKIT_", "GLOO_", "TORCHELASTIC_", "PET_")


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    code: int
    output: str  # stdout and stderr
    seconds: float  # from the start of all ranks


class Outside:
    """The launcher, seen from a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self,
        folder: Path,
        argvs: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        *,
        sites: Sequence[Path] = (),
        kill: Mapping[int, str] | None = None,
        timeout: float = 240.0,
    ) -> list[Ended]:
        """Runs the command once per rank.

        Args:
            folder: Working directory.
            argvs: Arguments of the command, by rank. Or `-c` and a program in Python.
            environments: Environment variables, by rank.
            sites: Folders with installed plugins.
            kill: By rank, the file in `folder` that brings SIGKILL. Default: none.
            timeout: Seconds until SIGKILL for ranks that still run.
        """
        request = {
            "folder": str(folder),
            "ranks": [[list(argv), dict(environment)] for argv, environment in zip(argvs, environments, strict=True)],
            "sites": [str(site) for site in sites],
            "kill": {str(rank): str(folder / name) for rank, name in (kill or {}).items()},
            "timeout": timeout,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        return [
            Ended(code, (folder / f"out{rank}").read_text(), seconds) for rank, (code, seconds) in enumerate(answers)
        ]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def by_hand(world_size: int) -> list[dict[str, str]]:
    """Returns the environments of ranks that somebody starts in shells of one host."""
    from tests.ports import free_port  # this file is a program, too

    port = str(free_port())
    place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{"RANK": str(rank), **place} for rank in range(world_size)]


def main() -> None:
    from gnnkit.launch.lean import leave_out_unused

    leave_out_unused()
    import gnnkit.jobs.job  # noqa: F401
    from gnnkit.config import compose
    from gnnkit.config.settings import settle
    from gnnkit.jobs.job import import_for_training

    import_for_training()
    settle(compose(["strategy=vertex_centric", "dataset=synthetic"]))
    gc.freeze()  # otherwise each rank copies the pages of all modules
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)


def obey(request: dict[str, Any]) -> list[tuple[int, float]]:
    start = time.monotonic()
    pids = [fork(request, rank, *part) for rank, part in enumerate(request["ranks"])]
    exits: dict[int, tuple[int, float]] = {}
    while len(exits) < len(pids):
        seconds = time.monotonic() - start
        for rank, pid in enumerate(pids):
            if rank in exits:
                continue
            sign = request["kill"].get(str(rank))
            if seconds > request["timeout"] or (sign and os.path.exists(sign)):
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                exits[rank] = os.waitstatus_to_exitcode(status), seconds
        time.sleep(0.01)
    return [exits[rank] for rank in range(len(pids))]


def fork(request: dict[str, Any], rank: int, argv: list[str], environment: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        become_rank(request, rank, argv, environment)
    return pid


def become_rank(request: dict[str, Any], rank: int, argv: list[str], environment: dict[str, str]) -> None:
    os.chdir(request["folder"])
    output = os.open(f"out{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]
    os.environ.update(environment)
    sys.path[:0] = request["sites"]
    if argv[0] == "-c":
        become_program(argv[1])
    from gnnkit.__main__ import program

    sys.argv = ["gnnkit", *argv]
    program()


def become_program(text: str) -> None:
    try:
        exec(text, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
