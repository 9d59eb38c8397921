"""Kills random processes of runs with `restarts`, and compares the weights to the bit.

    uv run python benchmarks/chaos.py --kills 100 --seconds 600
    uv run python benchmarks/chaos.py --kills 40 --on ray

Strategies and synchronisations take turns. A run is killed a few times: the rank (the
leader and servers too) and the moment are drawn at random. The weights in the end are
compared with those of a run without a fault. A death is detected when standard error
names the restart. Training goes on with the first step after, by `seconds_lost`.

With `--on ray` ranks are on a cluster of Ray, whose nodes are processes of this
machine. Kinds of victims take turns: a rank, the agent above it, the actor of Ray above
that, or all processes of a node. A new node comes for one that was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import lightning as L
import torch.utils.tensorboard  # noqa: F401 - imported once, before runs fork

import gnnkit
from gnnkit.jobs import job, restarts, run, train  # noqa: F401 - as above
from gnnkit.result.result import PREPARED

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


@dataclass
class Target:
    """What is killed at once."""

    key: str  # not twice in a row: the same failure twice may end a run
    pids: list[int]
    told: str  # expression that the line of the restart must hold


class Place(Protocol):
    """Where ranks are."""

    rows: dict[str, dict[str, Any]]  # keys of a run by row of the table
    pause: float  # seconds before a kill, at most

    def targets(self, row: str, leader: int) -> list[Target]:
        """Lists what may be killed now. `leader` is the launching process."""

    def killed(self, target: Target) -> None:
        """Brings what comes for a target."""

    def left(self, leader: int) -> list[int]:
        """Lists processes of the run, without the launching one."""

    def end(self) -> None:
        """Ends what the place has started."""


class Sleep(L.Callback):
    """Makes a step last long enough to be killed in."""

    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(SLOW)


def start(keys: dict[str, Any], folder: Path, max_restarts: int, errors: int) -> None:
    """Trains in this process, and exits."""
    os.setsid()
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    trainer = {"max_epochs": EPOCHS, "checkpoint_every": 2, "progress_bar": False, **keys.get("trainer", {})}
    common = {"workers": WORKERS, "threads": 1, "report": False, "logger": "none", "restarts": max_restarts}
    try:
        gnnkit.train(
            dataset={"name": "synthetic", "num_nodes": 400, "num_edges": 1600},
            comm={"name": "gloo", "timeout": 20.0},
            callbacks=[Sleep()],
            folder=folder,
            **{**common, **keys, "trainer": trainer},
        )
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def processes() -> dict[int, tuple[int, int]]:
    """Returns parent and session of each process that lives."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                parents[int(entry.name)] = (int(parent), int(session))
    return parents


class Here:
    """Ranks are in the session of the launching process."""

    rows, pause = WAYS, 1.2

    def targets(self, row: str, leader: int) -> list[Target]:
        ranks = sorted(self.left(leader))
        if len(ranks) < WORKERS:
            return []
        return [Target(f"{i}", [pid], "was ended by SIGKILL") for i, pid in enumerate(ranks)]

    def killed(self, target: Target) -> None:
        """Does nothing."""

    def left(self, leader: int) -> list[int]:
        return [pid for pid, (_, session) in processes().items() if session == leader != pid]

    def end(self) -> None:
        """Does nothing."""


ON_RAY: dict[str, Any] = {
    "strategy": "vertex_centric",
    "launcher": {"name": "ray", "num_nodes": 2},
    "trainer": {"max_epochs": 150},
}


class OnRay:
    """Ranks are on two nodes of a cluster, which has a third one and a head."""

    rows, pause = dict.fromkeys(("rank", "agent", "actor", "node"), ON_RAY), 4.0

    def __init__(self) -> None:
        # A process of its own: gRPC of the cluster hangs in the forks of `attempt`.
        self.pipe, child_pipe = multiprocessing.Pipe()
        self.cluster = multiprocessing.get_context("fork").Process(target=keep_cluster, args=(child_pipe,))
        self.cluster.start()
        os.environ["RAY_ADDRESS"] = self.pipe.recv()
        self.nodes: dict[str, int] = self.pipe.recv()  # process of the raylet by the node's id

    def targets(self, row: str, leader: int) -> list[Target]:
        parents = {pid: parent for pid, (parent, _) in processes().items()}
        agents: dict[int, list[int]] = {}  # ranks by agent
        for pid in (ours := self.left(leader)):
            if parents.get(pid) in ours:
                agents.setdefault(parents[pid], []).append(pid)
        if sum(map(len, agents.values())) < WORKERS:
            return []
        tops = sorted(agents, key=lambda pid: -len(agents[pid]))  # of ranks 0 and 1 first
        if row == "rank":
            ranks = [rank for top in tops for rank in agents[top]]
            return [Target(f"{i}", [pid], f"rank {i} was ended by SIGKILL") for i, pid in enumerate(ranks)]
        if row == "agent":
            return [Target(f"{i}", [pid], "its agent died") for i, pid in enumerate(tops)]
        actors = [parents[pid] for pid in tops]
        if row == "actor":
            return [Target(f"{i}", [pid], "Ray's node .* is lost") for i, pid in enumerate(actors)]
        raylets = {parents.get(actor) for actor in actors}
        return [
            Target(node, below(raylet, parents), f"Ray's node {node[:8]} .* is lost")
            for node, raylet in self.nodes.items()
            if raylet in raylets
        ]

    def killed(self, target: Target) -> None:
        if target.key in self.nodes:
            self.pipe.send(target.key)
            self.nodes = self.pipe.recv()

    def left(self, leader: int) -> list[int]:
        """Lists agents, and the ranks that were forked from them."""
        pids = []
        for pid in processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                pids += [pid] if words[1:3] == [b"-m", b"gnnkit_ray"] else []
        return sorted(pids)

    def end(self) -> None:
        self.pipe.send(None)
        self.cluster.join()


def keep_cluster(pipe: Any) -> None:
    """Keeps a cluster, and replaces the nodes that the pipe names. None ends it."""
    from ray.cluster_utils import Cluster

    # A worker of Ray is nice to others, and gets no core where the machine is full.
    os.environ |= {"RAY_worker_niceness": "0"}
    os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
    node_args = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node_args})
    nodes = [cluster.add_node(num_cpus=2, **node_args) for _ in range(3)]
    pipe.send(cluster.address)
    while True:
        pipe.send({node.node_id: node.all_processes["raylet"][0].process.pid for node in nodes})
        if (name := pipe.recv()) is None:
            return cluster.shutdown()
        (dead,) = [node for node in nodes if node.node_id == name]
        cluster.remove_node(dead, allow_graceful=False)
        nodes = [*(node for node in nodes if node is not dead), cluster.add_node(wait=False, num_cpus=2, **node_args)]


def below(top: int, parents: dict[int, int]) -> list[int]:
    """Returns a process, its children, and so on."""
    return [top, *(pid for child in parents if parents[child] == top for pid in below(child, parents))]


def told(path: Path) -> list[str]:
    """Returns the lines on restarts in a log."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [line for line in lines if line.startswith("gnnkit: restart ")]


def attempt(place: Place, row: str, folder: Path, draw: random.Random, kills: int, outcome: Outcome) -> Path:
    """Does a run with so many kills. Returns the run folder."""
    log, steps = folder / "log", folder / "run/workers.jsonl"
    folder.mkdir()
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    arguments = (place.rows[row], folder / "run", KILLS + 3, errors)
    process = multiprocessing.get_context("fork").Process(target=start, args=arguments)
    process.start()
    os.close(errors)
    leader, last = process.pid or 0, ""
    while kills and process.is_alive() and not (steps.exists() and steps.stat().st_size):
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 1.2))
    for _ in range(kills):
        while process.is_alive() and not (targets := place.targets(row, leader)):
            time.sleep(0.01)
        if not process.is_alive():
            break
        target = draw.choice([candidate for candidate in targets if candidate.key != last] or targets)
        last = target.key
        strike(place, target, process, log, outcome)
        if draw.random() < 0.5:  # in training, and else while ranks start again
            first = folder / "run" / PREPARED / restarts.FIRST_STEP.format(number=len(told(log)))
            while process.is_alive() and not first.exists():
                time.sleep(0.01)
        time.sleep(draw.uniform(0, place.pause))
    process.join(120)
    finish(place, process, log, row, outcome)
    return folder / "run"


def strike(place: Place, target: Target, process: Any, log: Path, outcome: Outcome) -> None:
    """Kills a target, and waits for the line that names it."""
    before = len(told(log))
    for pid in target.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_time, outcome.kills = time.monotonic(), outcome.kills + 1
    while process.is_alive() and len(told(log)) == before and time.monotonic() < kill_time + 30:
        time.sleep(0.005)
    seconds, lines = time.monotonic() - kill_time, told(log)[before:]
    if lines:
        print(f"{seconds:5.2f} s: {lines[0]}", file=sys.stderr, flush=True)
        outcome.detected.append(seconds)
        if re.search(target.told, lines[0]):
            outcome.named += 1
        else:
            outcome.wrong.append(f"{target.told} is not named: {lines[0]}")
    place.killed(target)


def finish(place: Place, process: Any, log: Path, row: str, outcome: Outcome) -> None:
    """Looks for processes that a run has left, and at how it ended."""
    leader, until = process.pid, time.monotonic() + 5
    while (orphans := place.left(leader)) and time.monotonic() < until:
        time.sleep(0.05)
    outcome.orphans += len(orphans)
    for pid in [*orphans, *([leader] if process.is_alive() else [])]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.exitcode != 0:
        outcome.wrong.append(f"{row}: exit code {process.exitcode}\n{log.read_text()[-2000:]}")


def compare(way: str, folder: Path, reference: bytes, outcome: Outcome) -> None:
    """Adds the figures of a run that was killed."""
    outcome.runs += 1
    if not (folder / "result.json").exists():
        return
    restart_records = json.loads((folder / "result.json").read_text())["restarted"]
    outcome.lost += [restart["seconds_lost"] for restart in restart_records if restart["seconds_lost"] is not None]
    if (folder / "model.safetensors").read_bytes() == reference:
        outcome.equal += 1
    else:
        outcome.wrong.append(f"{way}: other weights, {restart_records}")


def spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--on", choices=["here", "ray"], default="here")
    options = parser.parse_args()
    place: Place = OnRay() if options.on == "ray" else Here()
    try:
        tell(totals(place, options.kills, options.seconds, random.Random(options.seed)))
    finally:
        place.end()


def totals(place: Place, kills: int, seconds: float, draw: random.Random) -> dict[str, Outcome]:
    """Does runs until there were so many kills, or the time is over."""
    outcomes, end = {row: Outcome() for row in place.rows}, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        base, references = Path(name), list[tuple[dict[str, Any], bytes]]()
        for number, (row, keys) in enumerate(place.rows.items()):
            if keys not in [reference_keys for reference_keys, _ in references]:
                reference_run = attempt(place, row, base / f"whole-{number}", draw, 0, outcomes[row])
                if outcomes[row].wrong:
                    sys.exit(outcomes[row].wrong[0])
                references.append((keys, (reference_run / "model.safetensors").read_bytes()))
        trial = 0
        while sum(outcome.kills for outcome in outcomes.values()) < kills and time.monotonic() < end:
            row = list(outcomes)[trial % len(outcomes)]
            run = attempt(place, row, base / f"run-{trial}", draw, KILLS, outcomes[row])
            compare(row, run, next(weights for keys, weights in references if keys == place.rows[row]), outcomes[row])
            trial += 1
    return outcomes


def tell(outcomes: dict[str, Outcome]) -> None:
    """Prints the table."""
    for row, outcome in outcomes.items():
        print(
            f"{row:26} {outcome.kills:3} kills, {outcome.named:3} named ({spread(outcome.detected)}), "
            f"first step after {spread(outcome.lost)}; {outcome.equal} of {outcome.runs} runs equal to the bit, "
            f"{outcome.orphans} orphans",
            flush=True,
        )
        for text in outcome.wrong:
            print(f"WRONG {text}", flush=True)


if __name__ == "__main__":
    main()
