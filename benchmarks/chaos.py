"""Kills random ranks of runs with `restarts`, and compares the weights to the bit.

    uv run python benchmarks/chaos.py --kills 100 --seconds 600

Strategies and synchronisations take turns. A run is killed a few times: the rank (the
leader and servers too) and the moment are drawn at random. The weights in the end are
compared with those of a run without a fault. A death is detected when standard error
names the restart. Training goes on with the first step after, by `seconds_lost`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch.utils.tensorboard  # noqa: F401 - imported once, before runs fork

import gnnkit
from gnnkit.jobs import dispatch, restarts, run, train  # noqa: F401 - as above

WORKERS, KILLS, EPOCHS, SLOW = 3, 3, 30, 0.03  # SLOW: seconds that a rank sleeps in a step
SAMPLED = {"sampler": {"name": "neighbor", "fanouts": [5, 5]}}
STEPS = {"trainer": {"checkpoint_every_n_steps": 2, "checkpoint_every": 2, "max_epochs": 10}}
WAYS: dict[str, dict[str, Any]] = {
    "vertex_centric": {"strategy": "vertex_centric"},
    "vertex_centric 2d leader": {"strategy": "vertex_centric", "partition": "2d", "sync": "leader", "workers": 4},
    "individual_sample": {"strategy": {"name": "individual_sample", "batch_size": 20}, **SAMPLED, **STEPS},
    "joint_sample": {"strategy": {"name": "joint_sample", "batch_size": 60}, **SAMPLED, **STEPS},
    "preset_workload": {"strategy": "preset_workload"},
    "parameter_server": {
        "strategy": "preset_workload",
        "sync": {"name": "parameter_server", "servers": 1},
    },
}


@dataclass
class Outcome:
    """What became of all runs."""

    kills: int = 0
    named: int = 0
    detected: list[float] = field(default_factory=list)  # seconds from a kill to the line
    lost: list[float] = field(default_factory=list)  # seconds from a death to the next step
    runs: int = 0
    equal: int = 0  # runs with the weights of the unbroken one
    orphans: int = 0
    wrong: list[str] = field(default_factory=list)


class Sleep(L.Callback):
    """Makes a step last long enough to be killed in."""

    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(SLOW)


def start(way: str, folder: Path, most: int, errors: int) -> None:
    """Trains in this process, and exits."""
    os.setsid()
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    keys = {**WAYS[way]}
    trainer = {"max_epochs": EPOCHS, "checkpoint_every": 2, "progress_bar": False} | keys.pop("trainer", {})
    try:
        gnnkit.train(
            dataset={"name": "synthetic", "num_nodes": 400, "num_edges": 1600},
            comm={"name": "gloo", "timeout": 20.0},
            trainer=trainer,
            callbacks=[Sleep()],
            folder=folder,
            **{"workers": WORKERS, "threads": 1, "report": False, "logger": "none", "restarts": most, **keys},
        )
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def session(leader: int) -> list[int]:
    """Lists the processes of a session that live, without its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z" and int(entry.name) != leader:
                found.append(int(entry.name))
    return sorted(found)


def lines(path: Path) -> int:
    return path.read_text().count("gnnkit: restart ") if path.exists() else 0


def attempt(way: str, folder: Path, draw: random.Random, kills: int, outcome: Outcome) -> Path:
    """Does a run with so many kills. Returns the run folder."""
    log = folder / "log"
    folder.mkdir()
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process = multiprocessing.get_context("fork").Process(target=start, args=(way, folder / "run", KILLS + 3, errors))
    process.start()
    os.close(errors)
    leader, last = process.pid or 0, -1
    for _ in range(kills):
        before, steps = lines(log), folder / "run/workers.jsonl"
        while process.is_alive() and not (steps.exists() and steps.stat().st_size):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.2))
        ranks = session(leader)
        if not process.is_alive() or len(ranks) < WORKERS:
            break
        with contextlib.suppress(ProcessLookupError):
            # One twice in a row may be the same failure twice, which ends a run.
            last = draw.choice([rank for rank in range(len(ranks)) if rank != last])
            os.kill(ranks[last], signal.SIGKILL)
        killed, outcome.kills = time.monotonic(), outcome.kills + 1
        while process.is_alive() and lines(log) == before and time.monotonic() < killed + 30:
            time.sleep(0.005)
        if lines(log) > before:
            outcome.named += 1
            outcome.detected.append(time.monotonic() - killed)
            until = time.monotonic() + draw.uniform(0.3, 2.0)  # also while ranks start again
            while process.is_alive() and time.monotonic() < until:
                time.sleep(0.01)
    process.join(90)
    time.sleep(0.2)
    left = session(leader)
    outcome.orphans += len(left)
    for pid in [*left, *([leader] if process.is_alive() else [])]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.exitcode != 0:
        outcome.wrong.append(f"{way}: exit code {process.exitcode}\n{log.read_text()[-2000:]}")
    return folder / "run"


def compare(way: str, folder: Path, expected: bytes, outcome: Outcome) -> None:
    """Adds the figures of a run that was killed."""
    outcome.runs += 1
    if not (folder / "result.json").exists():
        return
    restarted = json.loads((folder / "result.json").read_text())["restarted"]
    outcome.lost += [each["seconds_lost"] for each in restarted if each["seconds_lost"] is not None]
    if (folder / "model.safetensors").read_bytes() == expected:
        outcome.equal += 1
    else:
        outcome.wrong.append(f"{way}: other weights, {restarted}")


def spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, end = random.Random(options.seed), time.monotonic() + options.seconds
    totals = {way: Outcome() for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        expected = {}
        for number, way in enumerate(WAYS):
            whole = attempt(way, base / f"whole-{number}", draw, 0, Outcome())
            expected[way] = (whole / "model.safetensors").read_bytes()
        trial = 0
        while sum(each.kills for each in totals.values()) < options.kills and time.monotonic() < end:
            way = list(WAYS)[trial % len(WAYS)]
            compare(way, attempt(way, base / f"run-{trial}", draw, KILLS, totals[way]), expected[way], totals[way])
            trial += 1
    for way, each in totals.items():
        print(
            f"{way:26} {each.kills:3} kills, {each.named:3} named ({spread(each.detected)}), "
            f"first step after {spread(each.lost)}; {each.equal} of {each.runs} runs equal to the bit, "
            f"{each.orphans} orphans",
            flush=True,
        )
        for text in each.wrong:
            print(f"WRONG {text}", flush=True)


if __name__ == "__main__":
    main()
