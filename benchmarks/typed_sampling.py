"""Sampling by relation beside DGL's heterogeneous sampler and GraphBolt.

    uv run python benchmarks/typed_sampling.py --dgl ENV/bin/python --edges 5e7
    uv run python benchmarks/typed_sampling.py --quick

The graph is drawn: 4 node types, 10 relations with unequally many edges, and nodes
whose degrees have a heavy tail. Batches have 1,024 seeds of one type, and a node draws
`--fanouts` in-edges from each relation. DGL's environment is the one that
`benchmarks/peers.py` names. Each peer is a process, with as many threads for OpenMP as
the table says, and all go by turns on the same seeds.

The table has medians over the rounds: milliseconds and CPU milliseconds per batch, and
the ratios of both to gnnkit's first line. The peak is that of the peer's process, the
construction of its graph included, so a line includes the lines of the peer above.

Both of DGL's samplers draw anew for all nodes at every hop, as "sample redraw" does.
gnnkit's first lines return blocks of all relations with the relation of each edge, and
"load" divides them by relation, as DGL does, on as many threads as the table says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peers import BATCH_SIZE, HERE, Peer, PeerEnded

TYPES = {"paper": 0.4, "author": 0.35, "term": 0.2, "venue": 0.05}  # shares of the nodes
RELATIONS = {  # shares of the edges
    ("paper", "cites", "paper"): 0.2,
    ("paper", "cited_by", "paper"): 0.2,
    ("author", "writes", "paper"): 0.12,
    ("paper", "written_by", "author"): 0.12,
    ("term", "in", "paper"): 0.1,
    ("paper", "has", "term"): 0.1,
    ("author", "knows", "author"): 0.06,
    ("venue", "publishes", "paper"): 0.04,
    ("paper", "appears_in", "venue"): 0.04,
    ("author", "attends", "venue"): 0.02,
}
SEED_TYPE = "paper"
EDGES_PER_NODE = 12
NUM_BATCHES = 64
MILLISECONDS, GIGABYTE = 1e3, 1e9


@dataclass
class Contender:
    peer: str
    method: str
    milliseconds: list[float] = field(default_factory=list)  # per batch, of each round
    cpu: list[float] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)  # edges and nodes of each batch
    peak: int = 0  # bytes

    @property
    def label(self) -> str:
        return f"{self.peer}: {self.method}"

    def measure(self, peer: Peer, turn: int, **request: Any) -> None:
        answer = peer.ask(method=self.method, first=turn * request["count"], **request)
        self.milliseconds.append(MILLISECONDS * statistics.mean(answer["seconds"]))
        self.cpu.append(MILLISECONDS * answer["cpu"] / request["count"])
        self.sizes += answer["sizes"]
        self.peak = answer["peak"]


def write_graph(folder: Path, num_edges: int, edges_per_node: int = EDGES_PER_NODE) -> None:
    """Draws the graph, with in-edges by relation and ids within the types."""
    if (folder / "schema.json").exists():
        return
    random = np.random.default_rng(0)
    num_nodes = num_edges // edges_per_node
    counts = {name: max(int(share * num_nodes), 1) for name, share in TYPES.items()}
    for number, ((source, _, destination), share) in enumerate(RELATIONS.items()):
        src, dst = (skewed(random, counts[name], int(share * num_edges)) for name in (source, destination))
        np.save(folder / f"indices_{number}.npy", src[np.argsort(dst, kind="stable")])
        degrees = np.bincount(dst, minlength=counts[destination])
        np.save(folder / f"indptr_{number}.npy", np.append(0, np.cumsum(degrees)))
    seeds = random.permutation(counts[SEED_TYPE])
    num_batches = min(NUM_BATCHES, len(seeds) // BATCH_SIZE)
    np.save(folder / "seeds.npy", seeds[: num_batches * BATCH_SIZE].reshape(num_batches, BATCH_SIZE))
    schema = {"counts": counts, "relations": list(RELATIONS), "seed_type": SEED_TYPE}
    (folder / "schema.json").write_text(json.dumps(schema))


def skewed(random: np.random.Generator, count: int, size: int) -> np.ndarray:  # [size] int32
    """Draws ids below `count`, some much more often than others, in no order of id."""
    ranks = (count * random.random(size, np.float32) ** 2).astype(np.int32)
    return random.permutation(count).astype(np.int32)[np.minimum(ranks, count - 1)]


def measure(options: argparse.Namespace, folder: Path, threads: int) -> None:
    """Prints the table of one number of threads."""
    pythons = {"gnnkit": sys.executable, "dgl": options.dgl}
    contenders = [Contender("gnnkit", name) for name in ("sample", "sample redraw", "load")]
    contenders += [Contender("dgl", name) for name in ("sample", "sample, GraphBolt") if options.dgl]
    contenders = [contender for contender in contenders if options.only is None or contender.label in options.only]
    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "DGLBACKEND": "pytorch"}
    request = {"folder": str(folder), "fanouts": options.fanouts, "threads": threads, "count": options.batches}
    with ExitStack() as stack:
        peer_by_label = {}
        for contender in contenders:
            command = [pythons[contender.peer], str(HERE / "peer" / f"typed_{contender.peer}_peer.py")]
            peer = peer_by_label[contender.label] = Peer(command, environment)
            stack.callback(peer.process.wait)
            stack.callback(peer.process.stdin.close)
        versions = "; ".join(dict.fromkeys(peer.versions for peer in peer_by_label.values()))
        print(f"\n{options.edges:,.0f} edges, fanouts {options.fanouts} by relation, {threads} threads; {versions}")
        for turn in range(options.rounds):
            for contender in tuple(contenders):
                try:
                    contender.measure(peer_by_label[contender.label], turn, **request)
                except PeerEnded as error:
                    print(f"  left out: {contender.label}, {error}", flush=True)
                    contenders.remove(contender)
    print_table(contenders)


def print_table(contenders: list[Contender]) -> None:
    columns = ("ms", "batches/s", "ratio", "CPU ms", "CPU ratio", "edges", "nodes", "peak GB")
    print(f"  {'':26} " + " ".join(f"{name:>9}" for name in columns))
    first = contenders[0]
    for contender in contenders:
        wall, cpu = statistics.median(contender.milliseconds), statistics.median(contender.cpu)
        edges, nodes = np.mean(contender.sizes, axis=0)
        print(
            f"  {contender.label:26} {wall:9.2f} {MILLISECONDS / wall:9.1f} "
            f"{wall / statistics.median(first.milliseconds):8.2f}x {cpu:9.2f} "
            f"{cpu / statistics.median(first.cpu):8.2f}x {edges:9.0f} {nodes:9.0f} {contender.peak / GIGABYTE:9.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--edges", type=float, default=1e7)
    parser.add_argument("--fanouts", nargs="+", type=int, default=[10, 5], help="from the seeds outward")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batches", type=int, default=10, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="lines of the table, for example 'dgl: sample'")
    parser.add_argument("--folder", type=Path, help="keep the graph here; default: a temporary folder")
    parser.add_argument("--quick", action="store_true", help="a small graph and one round")
    options = parser.parse_args()
    if options.quick:
        options.edges, options.batches, options.rounds = 2e5, 3, 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / f"typed_{int(options.edges)}"
        os.makedirs(folder, exist_ok=True)
        write_graph(folder, int(options.edges))
        for threads in options.threads:
            measure(options, folder, threads)


if __name__ == "__main__":
    main()
