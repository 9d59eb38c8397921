"""Kills a process of a run at a random moment, and looks at what follows.

    uv run python benchmarks/kills.py --trials 100

Each trial trains with `sync=parameter_server` on three workers. Mode, servers and
`sync.on_lost` take turns. The process that gets SIGKILL and the moment are drawn at
random. A trial whose process ends before its moment is drawn again.

A trial is as configured if the run ends, or goes on and writes a result with
predictions of all nodes. With `sync.on_lost=continue`, a run must go on without a
worker that dies after all processes have met. A run must end in all other cases. A
trial is named if standard error names the process: at once if the run goes on, else
when all processes have ended. An orphan is a process that is left after the run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.tensorboard  # noqa: F401 - imported once, before runs fork

import gnnkit
from gnnkit.jobs import job, rank_run, run  # noqa: F401 - as above
from gnnkit.launch.launcher import builtin as processes

WORKERS, NODES = 3, 600
TIMEOUT = 10.0  # comm.timeout in seconds
HANGS = 60.0  # seconds until a run counts as hung
ENDED = "was ended by SIGKILL"


@dataclass(frozen=True)
class Trial:
    """One run, and the process that is killed."""

    mode: str
    on_lost: str
    servers: int
    victim: int = -1  # rank. None is killed if negative
    delay: float = math.inf  # seconds from the start of the rank


@dataclass(frozen=True)
class Outcome:
    """The end of a trial."""

    expected: bool  # the run did as configured
    went_on: bool
    named: float  # seconds from the kill to the line that names the process
    orphans: int
    text: str  # standard error


def train(trial: Trial, folder: Path, stderr: int) -> None:
    """Runs the training of a trial in this process, and exits."""
    os.setsid()
    os.dup2(stderr, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _arm(trial, folder)
    try:
        gnnkit.train(
            dataset={"name": "synthetic", "num_nodes": NODES, "num_edges": 4 * NODES},
            strategy={"name": "individual_sample", "batch_size": 16},
            model="sage",
            sampler={"name": "neighbor", "fanouts": [5, 5]},
            sync={
                "name": "parameter_server",
                "mode": trial.mode,
                "servers": trial.servers,
                "on_lost": trial.on_lost,
            },
            comm={"name": "gloo", "timeout": TIMEOUT},
            trainer={"max_epochs": 3, "progress_bar": False},
            workers=WORKERS,
            threads=1,
            folder=folder / "run",
        )
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _arm(trial: Trial, folder: Path) -> None:
    """Lets the victim kill itself, and leaves notes in the folder."""
    starting: Any = processes
    meeting: Any = rank_run
    rank_work, meet = starting._run, meeting.dispensable

    def kill() -> None:
        (folder / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def rank_alone(ranks: Any, rank: int, *arguments: Any) -> list[Any]:
        start = time.monotonic()
        if rank == trial.victim:
            timer = threading.Timer(trial.delay, kill)
            timer.daemon = True
            timer.start()
        processes: list[Any] = rank_work(ranks, rank, *arguments)
        (folder / f"life-{rank}").write_text(str(time.monotonic() - start))
        return processes

    def dispensable() -> None:
        meet()
        (folder / f"met-{os.environ['RANK']}").touch()

    starting._run, meeting.dispensable = rank_alone, dispensable


def attempt(trial: Trial, folder: Path) -> Outcome | None:
    """Does a trial. Returns None if the process had ended before its moment."""
    reader, writer = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=train, args=(trial, folder, writer))
    process.start()
    os.close(writer)
    lines = _read(reader, time.monotonic() + HANGS)
    process.join(1.0)
    orphans = _session(process.pid)
    code = process.exitcode
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    text = "".join(line for _, line in lines)
    if trial.victim >= 0 and not (folder / "killed").exists():
        return None
    goes_on = trial.victim < 0 or (trial.on_lost == "continue" and (folder / f"met-{trial.victim}").exists())
    is_expected = _is_whole(folder / "run", trial) and code == 0 if goes_on else code == 1
    return Outcome(is_expected, code == 0, _seconds_until_named(trial, folder, lines), len(orphans), text)


def _seconds_until_named(trial: Trial, folder: Path, lines: list[tuple[float, str]]) -> float:
    if trial.victim < 0:
        return 0.0
    kill_time = float((folder / "killed").read_text())
    times = [at for at, line in lines if line.startswith(f"rank {trial.victim} {ENDED}")]
    return times[0] - kill_time if times else math.inf


def _is_whole(folder: Path, trial: Trial) -> bool:
    """Says whether a run has left all figures and predictions."""
    if not (folder / "result.json").exists():
        return False
    result = json.loads((folder / "result.json").read_text())
    lost_workers = [f"rank {trial.victim}"] if trial.victim >= 0 else []
    predictions = np.load(folder / "predictions.npy")
    return bool(
        result["lost_workers"] == lost_workers and result["test_accuracy"] > 0 and predictions.shape == (NODES,)
    )


def _read(reader: int, deadline: float) -> list[tuple[float, str]]:
    """Reads lines until the end or the deadline, each with its time."""
    lines: list[tuple[float, str]] = []
    tail = b""
    while select.select([reader], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(reader, 2**16)
        if not part:
            break
        *complete_lines, tail = (tail + part).split(b"\n")
        lines += [(time.monotonic(), line.decode(errors="replace") + "\n") for line in complete_lines]
    os.close(reader)
    return lines


def _session(leader: int | None) -> list[int]:
    """Lists the processes that are left of a session."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                pids.append(int(entry.name))
    return pids


def lifetime(trial: Trial) -> float:
    """Measures the seconds that the processes of a run live, if none is killed."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = attempt(trial, Path(folder))
        assert outcome is not None
        assert outcome.expected, outcome.text
        return max(float(path.read_text()) for path in Path(folder).glob("life-*"))


def trials(count: int, draw: random.Random, say: Callable[[str], None]) -> list[Outcome]:
    """Does trials until `count` processes were killed."""
    kinds = [Trial(*kind) for kind in itertools.product(("sync", "async", "ssp"), ("stop", "continue"), (0, 1))]
    lives = {kind: lifetime(kind) for kind in kinds}
    outcomes: list[Outcome] = []
    while len(outcomes) < count:
        kind = kinds[len(outcomes) % len(kinds)]
        victim = draw.randrange(WORKERS + kind.servers)
        trial = Trial(kind.mode, kind.on_lost, kind.servers, victim, draw.uniform(0, lives[kind]))
        with tempfile.TemporaryDirectory() as folder:
            outcome = attempt(trial, Path(folder))
        if outcome is None:
            continue
        outcomes.append(outcome)
        end = "goes on" if outcome.went_on else "ends"
        say(f"{len(outcomes):4} {trial} {end}, named after {outcome.named:.2f} s")
        if not outcome.expected or outcome.orphans or outcome.named == math.inf:
            say(f"NOT as configured:\n{outcome.text}")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes = trials(options.trials, random.Random(options.seed), lambda line: print(line, flush=True))
    outcomes_in_time = [outcome for outcome in outcomes if outcome.named < math.inf]
    on, end_seconds = (
        [result.named for result in outcomes_in_time if result.went_on == kind] for kind in (True, False)
    )
    print(f"ended or went on as configured  {sum(outcome.expected for outcome in outcomes)} of {len(outcomes)}")
    print(f"named                           {len(outcomes_in_time)} of {len(outcomes)}")
    print(f"went on, largest time to name   {max(on, default=math.nan):.2f} s, {len(on)} runs")
    print(
        f"ended, largest time to name     {max(end_seconds, default=math.nan):.2f} s, {len(end_seconds)} runs, at their end"
    )
    print(f"orphans                         {sum(outcome.orphans for outcome in outcomes)}")


if __name__ == "__main__":
    main()
