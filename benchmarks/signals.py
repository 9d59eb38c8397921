"""Sends SIGINT, SIGTERM or SIGHUP to a job at a random moment, and checks its end.

    uv run python benchmarks/signals.py --signals 300

Jobs, signals, and whether the process alone or its group gets the signal take turns.
Every sixth job is a fresh `python -m gnnkit`, which imports everything. The others are
forked from this process, so that most of their time is work.

A signal is answered if the exit code is 130, 143 or 129, or if Python died of the
signal before the first line of gnnkit. It is swallowed if the job goes on to its usual
end. An orphan is a process of the job that is left a second after the job.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.utils.tensorboard  # noqa: F401 - imported once, before jobs fork

import gnnkit
from gnnkit.__main__ import program
from gnnkit.jobs import job, run  # noqa: F401 - as above
from gnnkit.jobs.job import import_for_training

HANGS = 90.0  # seconds until a job counts as hung
AT_ONCE = 0.25  # seconds: a job that ends so soon after the signal was ending already
DATA = ("dataset=synthetic", "dataset.num_nodes=600", "dataset.num_edges=2400")
PLAIN = ("threads=1", "logger=none", "comm.timeout=20")
TRAIN = (*DATA, *PLAIN, "strategy=vertex_centric", "workers=2", "trainer.max_epochs=5")
NEW = ("dataset=edges", "dataset.root={data}")
JOBS: dict[str, Sequence[str]] = {
    "train": TRAIN,
    "train on threads": (*TRAIN, "comm=threads"),
    "train batches": (*DATA, *PLAIN, "strategy=individual_sample", "sampler=neighbor", "workers=2", "trainer.max_epochs=2"),
    "verify": (*DATA, *PLAIN, "job=verify", "strategy=vertex_centric", "workers=2"),
    "plan": (*DATA, *PLAIN, "job=plan", "strategy=vertex_centric", "workers=4"),
    "partition": (*DATA, "job=partition", "workers=4"),
    "import": (*NEW, "job=import", "workers=2"),
    "predict": ("job=predict", "checkpoint={run}", "threads=1"),
    "test": ("job=test", "checkpoint={run}", "threads=1"),
    "report": ("job=report", "runs={run}", "output=page"),
    "init": (*NEW, "job=init", "init.minutes=0.1", "output=new"),
    "compare": (*DATA, *PLAIN, "job=compare", "compare.ways=[vertex_centric,individual_sample]", "trainer.max_epochs=2"),
    "sweep": ("-m", *TRAIN, "seed=1,2", "hydra.sweep.dir=sweep"),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The end of a job."""

    job: str
    number: int  # of the signal
    code: int
    seconds: float  # from the signal to the end
    orphans: int
    errors: str  # standard error

    @property
    def faults(self) -> list[str]:
        """Names what is wrong with the end."""
        answers = (128 + self.number, -self.number)
        return [
            *(["swallowed"] if self.code == 0 else [f"exit code {self.code}"] if self.code not in answers else []),
            *(["traceback"] if "Traceback" in self.errors else []),
            *(["told as an error"] if "gnnkit: error:" in self.errors else []),
            *([f"{self.orphans} orphans"] if self.orphans else []),
        ]


class Started:
    """A job in a process, session and folder of its own."""

    def __init__(self, words: Sequence[str], folder: Path, *, fresh: bool) -> None:
        self.folder, self.errors = folder, folder / "errors"
        command = [sys.executable, "-m", "gnnkit", *words]
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            os.chdir(folder)
            for number, name in ((0, os.devnull), (1, "output"), (2, "errors")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            if fresh:
                os.execv(sys.executable, command)
            sys.argv = command[2:]
            program()
        while not self.errors.exists():  # the last step before the job's own code
            time.sleep(0.001)

    def code(self, seconds: float) -> int | None:
        """Waits so long for the end. Returns the exit code, negative for a signal."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)

    def left(self) -> list[int]:
        """Lists the processes in the folder of the job."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if (entry / "cwd").readlink() == self.folder and fields[0] != "Z":
                    pids.append(int(entry.name))
        return pids

    def end(self) -> None:
        """Kills what is left."""
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def lifetime(words: Sequence[str], *, fresh: bool) -> float:
    """Measures the seconds of a job without a signal."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        job = Started(words, Path(folder).resolve(), fresh=fresh)
        code = job.code(10 * HANGS)
        assert code == 0, f"{' '.join(words)}: {job.errors.read_text()}"
        return time.monotonic() - start


def attempt(name: str, words: Sequence[str], number: int, delay: float, *, group: bool, fresh: bool) -> Outcome | None:
    """Sends one signal. Returns None if the job had ended before."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job = Started(words, Path(folder).resolve(), fresh=fresh)
        if job.code(delay) is not None:
            return None
        start = time.monotonic()
        (os.killpg if group else os.kill)(job.pid, number)
        code = job.code(HANGS)
        seconds = time.monotonic() - start
        if code == 0 and seconds < AT_ONCE:
            return None
        deadline = time.monotonic() + 1
        while (orphans := job.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        job.end()
        return Outcome(name, number, 999 if code is None else code, seconds, len(orphans), job.errors.read_text())


def prepare(folder: Path) -> dict[str, Sequence[str]]:
    """Trains a run and writes tables, and returns the words of each job."""
    data = folder / "data"
    data.mkdir()
    draw = random.Random(0)
    nodes = [f"{node},{'ab'[node % 2]},{draw.random()}" for node in range(400)]
    edges = [f"{draw.randrange(400)},{draw.randrange(400)}" for _ in range(1500)]
    (data / "nodes.csv").write_text("\n".join(["id,label,x", *nodes]))
    (data / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    pid = os.fork()  # so that this process stays without threads of torch
    if pid == 0:
        gnnkit.train(overrides=list(TRAIN), folder=folder / "run")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    return {name: [word.format(data=data, run=folder / "run") for word in words] for name, words in JOBS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, outcomes = random.Random(options.seed), list[Outcome]()
    import_for_training()
    with tempfile.TemporaryDirectory() as folder:
        jobs = prepare(Path(folder))
        lives: dict[tuple[str, bool], float] = {}
        while len(outcomes) < options.signals:
            turn = len(outcomes)
            name, fresh = list(jobs)[turn % len(jobs)], turn % 6 == 0
            if (name, fresh) not in lives:
                lives[name, fresh] = lifetime(jobs[name], fresh=fresh)
                print(f"     {name}, fresh={fresh}: {lives[name, fresh]:.1f} s", flush=True)
            number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[turn // len(jobs) % 3]
            group = bool(turn // len(jobs) // 2 % 2)
            delay = draw.uniform(0, lives[name, fresh])
            outcome = attempt(name, jobs[name], number, delay, group=group, fresh=fresh)
            if outcome is None:
                continue
            outcomes.append(outcome)
            print(
                f"{len(outcomes):4} {name}, {signal.Signals(number).name} to the {'group' if group else 'process'} "
                f"after {delay:.2f} s, fresh={fresh}: exit code {outcome.code} in {outcome.seconds:.2f} s",
                flush=True,
            )
            if outcome.faults:
                print(f"WRONG: {', '.join(outcome.faults)}\n{outcome.errors}", flush=True)
    show(outcomes)


def show(outcomes: Sequence[Outcome]) -> None:
    """Prints the figures."""
    seconds = sorted(outcome.seconds for outcome in outcomes)
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    jobs = Counter(outcome.job for outcome in outcomes)
    print(f"answered by the exit code  {sum(not outcome.faults for outcome in outcomes)} of {len(outcomes)}")
    print(f"exit codes                 {dict(Counter(outcome.code for outcome in outcomes))}")
    print(f"faults                     {dict(faults) or 'none'}")
    print(f"seconds to the end         median {statistics.median(seconds):.2f}, largest {seconds[-1]:.2f}")
    print(f"within 5 seconds           {sum(value <= 5 for value in seconds)} of {len(outcomes)}")
    print(f"signals of each job        {dict(jobs)}")


if __name__ == "__main__":
    main()
