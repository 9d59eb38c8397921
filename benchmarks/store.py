"""Memory and seconds to the first epoch of a run on a data set and from a store.

    uv run python benchmarks/store.py --nodes 1e6 --edges 2e7 --workers 4

Draws a graph and saves it, and then runs four commands: a run on the data set (without
the cache), job=partition, the same job again, and a run from the store. Memory is the
largest resident set of a process, mapped files included: of the launching process, of
its largest other child, which prepares the data, and of the largest rank. Models of the
two runs must be equal to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gnnkit.graph import CSC, Graph

MIB = 2**20


@dataclass(eq=False)
class Memory:
    """The largest memory of a process and its children, in KiB, by number."""

    root: int
    line: str = "VmHWM"  # of /proc/PID/status that counts: the resident set, or RssAnon
    peaks: dict[int, int] = field(default_factory=dict)
    ends: threading.Event = field(default_factory=threading.Event)

    def watched(self, process: subprocess.Popen[bytes]) -> int:
        """Watches a process until it ends. Returns the exit code."""
        watching = threading.Thread(target=self.watch)
        watching.start()
        code = process.wait()
        self.ends.set()
        watching.join()
        return code

    def watch(self) -> None:
        while not self.ends.wait(0.02):
            for process in [self.root, *descendants(self.root)]:
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    lines = Path(f"/proc/{process}/status").read_text().splitlines()
                    peak = next(int(line.split()[1]) for line in lines if line.startswith(self.line))
                    self.peaks[process] = max(self.peaks.get(process, 0), peak)


def children(process: int) -> list[int]:
    """Returns the processes that any thread of a process has started."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def descendants(process: int) -> list[int]:
    """Returns the processes that a process has started, and those that these have."""
    pids = children(process)
    return [*pids, *(pid for child in pids for pid in descendants(child))]


def drawn(nodes: int, edges: int, width: int, folder: Path) -> None:
    """Saves a graph whose edges stay near their nodes."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, nodes, edges, np.int32)
    dst = (src + rng.integers(-nodes // 20, nodes // 20, edges, np.int32)) % nodes
    features, labels = rng.standard_normal((nodes, width), np.float32), rng.integers(0, 16, nodes)
    Graph(CSC.from_edges(src, dst, nodes), features, labels, np.full(nodes, 1, np.int8)).save(folder)


def timed(name: str, folder: Path, keys: list[str]) -> None:
    """Runs one command, and prints a line of the table."""
    start, first = time.perf_counter(), float("nan")
    command = [sys.executable, "-u", "-m", "gnnkit", *keys, "cache=false", f"output={folder / name}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    memory = Memory(process.pid)
    watching = threading.Thread(target=memory.watch)
    watching.start()
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 1/"):
            first = time.perf_counter() - start
        elif "error" in line:
            print(line, end="")
    process.wait()
    memory.ends.set()
    watching.join()
    ranks = rank_memory(folder / name)
    launching = memory.peaks.pop(process.pid, 0)
    before = sorted(memory.peaks)[: len(memory.peaks) - len(ranks)]  # children that were started before the ranks
    child = max((memory.peaks[pid] for pid in before), default=0)
    cells = [launching / 1024, child / 1024, max(ranks, default=0) / MIB]
    print(
        f"{name:<24}{time.perf_counter() - start:>10.1f}{first:>14.1f}" + "".join(f"{cell:>16,.0f}" for cell in cells)
    )


def rank_memory(folder: Path) -> list[float]:
    """Returns the bytes of each rank at the end."""
    path = folder / "workers.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [
        max(state["memory"] for state in lines if state["rank"] == rank) for rank in {state["rank"] for state in lines}
    ]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=float, default=1e6)
    parser.add_argument("--edges", type=float, default=2e7)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="with room for the graph")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as path:
        folder = Path(path)
        drawn(int(arguments.nodes), int(arguments.edges), arguments.width, folder / "graph")
        data = ["dataset=saved", f"dataset.root={folder / 'graph'}", "partition=2d", f"workers={arguments.workers}"]
        train = ["strategy=vertex_centric", "trainer.max_epochs=2", "report=false", "logger=none", "comm=gloo"]
        print(f"{'':<24}{'seconds':>10}{'first epoch':>14}{'launching MiB':>16}{'child MiB':>16}{'rank MiB':>16}")
        timed("data set", folder, [*train, *data])
        timed("store", folder, ["job=partition", *data])
        timed("store", folder, ["job=partition", *data])
        timed("from the store", folder, [*train, "dataset=store", f"dataset.root={folder / 'store'}"])
        equal = digest(folder / "data set") == digest(folder / "from the store")
        print("models are equal to the bit" if equal else "MODELS DIFFER")


if __name__ == "__main__":
    main()
