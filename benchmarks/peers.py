"""Sampling, gathering and loading beside DGL, GraphBolt and PyG, turn by turn.

    uv run python benchmarks/peers.py --dgl ENV/bin/python --pyg ENV/bin/python

A peer that is not named is not measured. `--dgl` is an environment with dgl 2.1.0
(torch 2.2.1, torchdata 0.7.1, numpy < 2), `--pyg` one with torch_geometric; `--pyg-lib`
a folder to import `pyg_lib` from where that environment has none. Each runs in a
process of its own, with as many threads for OpenMP as the table says, on the same
seeds. A time is that of the fastest batch or, where batches are made ahead, the least
of several rounds' mean. The rounds of all go by turns, so that a busy machine is busy
for everyone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BATCH_SIZE = 1024
FANOUTS = [(15, 10, 5), (25, 10), (10, 10)]
WIDTH = 100  # float32 features of a node
GRAPHS = {"products": (2_449_029, 61_859_140), "small": (100_000, 1_000_000)}  # R-MATs: nodes, edges in each direction


@dataclass(frozen=True)
class Method:
    peer: str
    name: str
    includes: str

    @property
    def label(self) -> str:
        return f"{self.peer}: {self.name}"


BLOCKS = "renumbered blocks"
OURS_SAMPLE = Method("gnnkit", "sample", f"{BLOCKS} with edge ids; a node draws once; the seeds checked")
OURS_TOGETHER = Method(
    "gnnkit", "sample, one batch on 2 threads", "the same, whatever number of threads the others have"
)
OURS_REDRAW = Method("gnnkit", "sample redraw", f"{BLOCKS} with edge ids; all nodes draw anew at every hop")
OURS_LABOR = Method("gnnkit", "sample labor", f"{BLOCKS} with edge ids; LABOR-0, drawn anew at every hop")
OURS_AHEAD = Method("gnnkit", "sample, a batch a thread", f"{BLOCKS} with edge ids, from a Loader without features")
OURS_GATHER = Method("gnnkit", "gather", "into memory used again; ids checked")
OURS_LOAD = Method("gnnkit", "load", f"a Loader: {BLOCKS} with edge ids, and the features of their input nodes")
DGL = Method("dgl", "sample", f"NeighborSampler.sample_blocks: {BLOCKS} with edge ids; drawn anew at every hop")
BOLT = Method(
    "dgl", "sample, GraphBolt", f"sample_neighbors, unique_and_compact: {BLOCKS}, no edge ids; drawn anew at every hop"
)
BOLT_LABOR = Method(
    "dgl", "sample labor, GraphBolt", f"sample_layer_neighbors, unique_and_compact: {BLOCKS}, no edge ids"
)
PYG = Method(
    "pyg", "sample", "pyg_lib neighbor_sample: one renumbered edge list with edge ids; a node draws once; serial"
)
TORCH_OUT = Method("gnnkit", "gather with torch, out=", "index_select into memory used again")
TORCH = Method("gnnkit", "gather with torch", "index_select into fresh memory")
DGL_LOAD = Method("dgl", "load", "DataLoader without workers, x[input_nodes]")
BOLT_LOAD = Method("dgl", "load, GraphBolt", "ItemSampler, sample_neighbor, fetch_feature, DataLoader without workers")
PYG_LOAD = [
    Method("pyg", f"load, {workers} workers", f"NeighborLoader with {workers} workers, features and edge ids")
    for workers in (0, 2)
]


@dataclass(frozen=True)
class Comparison:
    ours: Method
    theirs: Sequence[Method]
    goals: dict[tuple[str, int], float] = field(
        default_factory=dict
    )  # (method's label, threads): how many times faster
    batches: int = 5  # of a round
    rounds: int = 10
    ahead: bool = False  # batches are made ahead, so one alone has no time


COMPARISONS = [
    Comparison(
        OURS_SAMPLE, [OURS_TOGETHER, DGL, BOLT, PYG], {(DGL.label, 1): 9, (PYG.label, 1): 15, (DGL.label, 2): 5}
    ),
    Comparison(OURS_REDRAW, [DGL, BOLT]),
    Comparison(OURS_LABOR, [BOLT_LABOR], rounds=3),
    Comparison(OURS_AHEAD, [DGL, BOLT], {(DGL.label, 2): 9}, batches=20, ahead=True),
    Comparison(OURS_GATHER, [TORCH_OUT, TORCH], {(TORCH_OUT.label, 1): 1.4, (TORCH_OUT.label, 2): 1.4}),
    Comparison(
        OURS_LOAD,
        [DGL_LOAD, BOLT_LOAD, *PYG_LOAD],
        {(m.label, 2): 4 for m in PYG_LOAD},
        batches=20,
        rounds=4,
        ahead=True,
    ),
]


class PeerEnded(SystemExit):
    """A process has ended before its answer."""


class Peer:
    """A process that measures what it is asked to."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        hello = self._read()
        self.methods, self.versions = hello["methods"], hello["versions"]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            raise PeerEnded(f"{self.process.args[1]} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def started(options: argparse.Namespace, threads: int) -> Iterator[dict[str, Peer]]:
    """The peers with `threads` threads each; ended at the end."""
    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "DGLBACKEND": "pytorch"}
    pythons = {"gnnkit": sys.executable, "dgl": options.dgl, "pyg": options.pyg}
    with ExitStack() as stack:
        peers = {}
        for name, python in pythons.items():
            if python is None:
                continue
            extra = {"PYTHONPATH": str(options.pyg_lib)} if name == "pyg" and options.pyg_lib else {}
            peers[name] = Peer([python, str(HERE / "peer" / f"{name}_peer.py")], environment | extra)
            stack.callback(peers[name].process.wait)
            stack.callback(peers[name].process.stdin.close)
        yield peers


@dataclass(frozen=True)
class Measured:
    milliseconds: float  # a batch
    edges: float  # means
    nodes: float


def measure(
    peers: dict[str, Peer], methods: Sequence[Method], comparison: Comparison, **case: Any
) -> dict[Method, Measured]:
    """All methods in turn, `rounds` times."""
    times: dict[Method, list[float]] = {method: [] for method in methods}
    sizes: dict[Method, list[list[int]]] = {method: [] for method in methods}
    for turn in range(comparison.rounds):
        for method in methods:
            first = turn * comparison.batches
            answer = peers[method.peer].ask(method=method.name, first=first, count=comparison.batches, **case)
            times[method].append(1e3 * (np.mean if comparison.ahead else np.min)(answer["seconds"]))
            sizes[method] += answer["sizes"]
    return {method: Measured(min(times[method]), *np.mean(sizes[method], axis=0)) for method in methods}


def report(peers: dict[str, Peer], comparison: Comparison, **case: Any) -> None:
    """Measures and prints one comparison."""
    methods = [m for m in (comparison.ours, *comparison.theirs) if m.peer in peers and m.name in peers[m.peer].methods]
    if len(methods) < 2:
        return
    results = measure(peers, methods, comparison, **case)
    ours = results[comparison.ours]
    for method, result in results.items():
        line = f"  {method.label:34} {result.milliseconds:9.2f} {1e3 / result.milliseconds:9.1f} {result.edges:9.0f} {result.nodes:9.0f}"
        if method is not comparison.ours:
            ratio, goal = result.milliseconds / ours.milliseconds, goal_of(comparison, method, **case)
            line += f" {ratio:7.2f}x" + (f"  goal {goal:g}x: {'met' if ratio >= goal else 'missed'}" if goal else "")
        print(line, flush=True)


def goal_of(
    comparison: Comparison, method: Method, *, fanouts: Sequence[int], folder: str, threads: int
) -> float | None:
    """Goals are for the large graph and [15, 10, 5]."""
    if Path(folder).name != "products" or tuple(fanouts) != FANOUTS[0]:
        return None
    return comparison.goals.get((method.label, threads))


def write_graph(folder: Path, name: str) -> None:
    """The arrays that the peers load, unless they are there."""
    from gnnkit import _core

    if (folder / "seeds.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if name in GRAPHS:
        indptr, sources, _ = _core.generate_rmat(*GRAPHS[name], 1)
        targets = np.repeat(np.arange(len(indptr) - 1, dtype=sources.dtype), np.diff(indptr))
        edges = np.concatenate([sources, targets]), np.concatenate([targets, sources])
        indptr, indices, _ = _core.csc_from_edges(*edges, len(indptr) - 1, len(indptr) - 1, False)
    else:
        from gnnkit.dataset.pystdlib import PyStdlib

        csc = PyStdlib().load().csc
        indptr, indices = csc.indptr, csc.indices
    random = np.random.default_rng(0)
    order = random.permutation(np.flatnonzero(np.diff(indptr)))  # a seed without edges would be no work
    num_batches = min(200, len(order) // BATCH_SIZE)
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", indices)
    np.save(folder / "features.npy", random.random((len(indptr) - 1, WIDTH), np.float32))
    np.save(folder / "seeds.npy", order[: num_batches * BATCH_SIZE].reshape(num_batches, BATCH_SIZE))


def run(options: argparse.Namespace, root: Path) -> None:
    for name in options.graphs:
        write_graph(root / name, name)
    for threads in options.threads:
        with started(options, threads) as peers:
            for name in options.graphs:
                for fanouts in FANOUTS if options.fanouts is None else [tuple(options.fanouts)]:
                    print(f"\n{name}, fanouts {list(fanouts)}, {threads} threads", end="; ")
                    print("; ".join(peer.versions for peer in peers.values()))
                    print(f"  {'':34} {'ms':>9} {'batches/s':>9} {'edges':>9} {'nodes':>9} {'ours':>8}")
                    for comparison in COMPARISONS:
                        if options.only in comparison.ours.name:
                            report(peers, comparison, folder=str(root / name), fanouts=fanouts, threads=threads)
    print("\nA call includes")
    for method in {m: None for c in COMPARISONS for m in (c.ours, *c.theirs)}:
        print(f"  {method.label:34} {method.includes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--pyg", metavar="PYTHON")
    parser.add_argument("--pyg-lib", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--graphs", nargs="+", default=["products", "pystdlib"], help=f"{', '.join(GRAPHS)} (R-MATs), pystdlib"
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--fanouts", nargs="+", type=int, help="from the seeds outward; default: all three of the goals"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="comparisons whose name has it: sample, gather, load"
    )
    parser.add_argument("--folder", type=Path, help="keep the graphs (2 GB) here; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(options, options.folder or Path(temporary))


if __name__ == "__main__":
    main()
