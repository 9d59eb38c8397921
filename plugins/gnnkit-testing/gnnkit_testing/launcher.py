"""The contract of launchers."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.comm.process import Gloo
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.launch.launcher import JOBS, RANKS, Jobs, Launcher, RankError, Ranks
from gnnkit.utils.documents import Json
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.ranks import TIMEOUT

WORLD_SIZE = 3
DEADLINE = 120.0  # seconds from a rank's failure to the report
ENDING = 30.0  # seconds from the report to the end of all processes
TOLD = "the share of this rank is lost"
COMMANDS = (["--version"], ["--no-such-option"])  # one job succeeds, one fails


def check_launcher(make: Callable[[], Launcher]) -> None:
    """Checks a launcher in everything that it `starts`.

    Three ranks must return their results by rank, and find their variables in the
    environment. The error must name a rank that fails or is killed while the others
    wait for it. A `UserError` must be raised unchanged. No rank may be left when the
    launcher returns or raises. Of two jobs, one must succeed and one fail, and both
    must have a log.

    If ranks were started externally, each of them must call this function. They must
    rendezvous and return results.

    The ranks' function belongs to this module, so it can be pickled. A launcher that is
    `inline` may raise a rank's error with a note that names the rank.
    """
    check_maker(make, Launcher)
    launcher = make()
    assert launcher.starts, "a launcher starts ranks or jobs"
    assert {*launcher.starts} <= {RANKS, JOBS}, f"a launcher starts {RANKS} or {JOBS}, not {launcher.starts}"
    if (own_place := launcher.started()) is not None:
        results = launcher.ranks(Ranks(_place, own_place.world_size, Gloo, TIMEOUT))
        assert list(results) == [own_place.rank], "a rank that was started before returns its own result"
        _check_place(results, own_place.world_size, launcher)
        return
    if RANKS in launcher.starts:
        _check_ranks(launcher)
    if JOBS in launcher.starts:
        _check_jobs(launcher)


def _check_ranks(launcher: Launcher) -> None:
    results = _run(launcher, _place)
    assert sorted(results) == list(range(WORLD_SIZE)), f"results are of ranks {sorted(results)}"
    _check_place(results, WORLD_SIZE, launcher)
    text = _error_text(launcher, _fail, Exception if launcher.inline else RankError)
    assert "rank 1" in text, f"a rank that fails is not named: {text}"
    assert TOLD in text, f"the error of a rank is not told: {text}"
    assert _error_text(launcher, _refuse, UserError) == TOLD, "a UserError of a rank comes with another message"
    if launcher.inline:  # killing a rank would kill the caller
        return
    message = _error_text(launcher, _kill, RankError)
    assert "SIGKILL" in message, f"SIGKILL is not named: {message}"
    assert launcher.in_one_process or "rank 1" in message, f"a rank that is killed is not named: {message}"
    assert _error_text(launcher, _sleep, _Stop, meanwhile=_stop) == TOLD, "an error of `meanwhile` gets lost"


def _check_place(results: Mapping[int, Any], world_size: int, launcher: Launcher) -> None:
    for rank, place in results.items():
        reference = {"rank": rank, "world_size": world_size, "sum": world_size * (world_size - 1) / 2}
        assert place["comm"] == reference, f"rank {rank} has {place['comm']}, expected {reference}"
        if not launcher.in_one_process:
            variables = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
            rank_variables = {name: place["environment"].get(name) for name in variables}
            assert rank_variables == variables, (
                f"the environment of rank {rank} has {rank_variables}, expected {variables}"
            )
    processes = {place["pid"] for place in results.values()}
    assert len(processes) == (1 if launcher.in_one_process else len(results)), "each rank has a process of its own"


class _Stop(Exception):
    """Raised by `meanwhile`."""


def _run(
    launcher: Launcher, work: Callable[[Communicator], Any], meanwhile: Callable[[Path], None] = lambda _: None
) -> Mapping[int, Any]:
    """Runs ranks, and checks that none is left at the end."""
    comm: type[Communicator] = Threads if launcher.in_one_process else Gloo
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = Ranks(functools.partial(_record_process, folder, work), WORLD_SIZE, comm, TIMEOUT)
        try:
            return launcher.ranks(ranks, lambda: meanwhile(folder))
        finally:
            seconds = time.time() - max((path.stat().st_mtime for path in folder.iterdir()), default=math.inf)
            assert seconds < DEADLINE, f"the end of a rank is reported after {seconds:.1f} s"
            pids = {int(path.suffix[1:]) for path in folder.iterdir()} - {os.getpid()}
            deadline = time.monotonic() + ENDING
            while alive := [pid for pid in pids if _lives(pid)]:
                assert time.monotonic() < deadline, f"processes {alive} of ranks are left"
                time.sleep(0.05)


def _error_text(
    launcher: Launcher,
    work: Callable[[Communicator], Any],
    kind: type[Exception],
    meanwhile: Callable[[Path], None] = lambda _: None,
) -> str:
    """Returns the message of the ranks' error, raised within the deadline."""
    try:
        _run(launcher, work, meanwhile)
    except kind as error:
        notes = getattr(error, "__notes__", []) if kind is Exception else []
        return "\n".join([str(error), *notes])
    raise AssertionError("ranks that have failed end without an error")


def _record_process(folder: Path, work: Callable[[Communicator], Any], comm: Communicator) -> Any:
    """Records a rank's process, and runs `work` when all have done so."""
    (folder / f"{comm.rank}.{os.getpid()}").touch()
    comm.all_reduce(torch.zeros(1))
    return work(comm)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _place(comm: Communicator) -> Json:
    total = comm.all_reduce(torch.tensor([float(comm.rank)])).item()
    facts = {"rank": comm.rank, "world_size": comm.world_size, "sum": total}
    return {"comm": facts, "environment": dict(os.environ), "pid": os.getpid()}


def _fail(comm: Communicator) -> None:
    if comm.rank == 1:
        raise ArithmeticError(TOLD)
    comm.all_reduce(torch.zeros(1))


def _refuse(comm: Communicator) -> None:
    if comm.rank == 1:
        raise UserError(TOLD)
    comm.all_reduce(torch.zeros(1))


def _kill(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(torch.zeros(1))


def _sleep(comm: Communicator) -> None:
    time.sleep(TIMEOUT)


def _stop(folder: Path) -> None:
    """Raises as soon as all ranks are running."""
    if len(list(folder.iterdir())) == WORLD_SIZE:
        raise _Stop(TOLD)


def _check_jobs(launcher: Launcher) -> None:
    def work(number: int) -> int:
        return subprocess.call([sys.executable, "-m", "gnnkit", *COMMANDS[number]])

    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / "sweep" / f"{number}.log" for number in range(len(COMMANDS))]
        codes = sorted(launcher.jobs(Jobs(COMMANDS, work, lambda: None, logs)))
        assert [number for number, _ in codes] == [0, 1], f"jobs end once each, not {codes}"
        assert codes[0][1] == 0, f"a job that succeeds has exit code {codes[0][1]}"
        assert codes[1][1] != 0, "a job that fails has exit code 0"
        texts = [log.read_text(encoding="utf-8") for log in logs]
    for text, phrase in zip(texts, ("gnnkit ", "gnnkit: error: "), strict=True):
        assert phrase in text, f"the log of a job lacks {phrase!r}: {text!r}"
