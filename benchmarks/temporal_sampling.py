"""Sampling by time beside sampling without, by turns in one run.

    uv run python benchmarks/temporal_sampling.py
    uv run python benchmarks/temporal_sampling.py --relations 10 --fanouts 10,5
    uv run python benchmarks/temporal_sampling.py --rounds 3 --dgl ENV/bin/python

The graph is drawn: 12 edges per node, at any of a million times, and degrees with a
heavy tail. With `--relations`, each edge has one of so many types, in equal shares, and
a node draws the fanout from each. Batches have 1,024 seeds and are drawn by `--threads`
threads, one by default.
"one time" is a batch whose seeds have the latest time, so that it has the same nodes
and edges as one without times. In "25 times" and "own times", seeds of different times
share no rows, so batches have more rows, of fewer visible edges. The window is a
quarter of all times.

`--dgl` is the environment that `benchmarks/peers.py` names. GraphBolt's
`TemporalNeighborSampler` draws the same seeds at the same times. It draws again for a
node at every hop, and returns a row for each edge.

The table has medians over the rounds: milliseconds per batch, thousands of edges per
batch, nanoseconds per edge, and the ratios of both costs to the first line. Times are
CPU times with one thread, and elapsed times with several, which need an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from peers import BATCH_SIZE, HERE, Peer

from gnnkit.graph import CSC, Ids, MiniBatch, RelationGroups
from gnnkit.sampler import NeighborSampler

EDGES_PER_NODE, SPAN, WARM_UP = 12, 10**6, 3
Drawn = tuple[float, int]  # seconds and edges of a batch
Draw = Callable[[int], Drawn]  # of the batch with a number
Rows = CSC | RelationGroups


def write_graph(folder: Path, num_edges: int, num_relations: int, rounds: int) -> None:
    """Writes in-edges, sorted by time within each node, and seeds."""
    rng = np.random.default_rng(0)
    num_nodes = max(num_edges // EDGES_PER_NODE, 1)
    dst = np.sort((num_nodes * rng.random(num_edges) ** 2).astype(np.int64))
    src, since = rng.integers(0, num_nodes, num_edges, dtype=np.int32), rng.integers(0, SPAN, num_edges)
    since = since[np.lexsort((since, dst))]
    relation = rng.integers(0, max(num_relations, 1), num_edges).astype(np.uint8)
    indptr = np.append(0, np.cumsum(np.bincount(dst, minlength=num_nodes)))
    seeds = np.random.default_rng(2).integers(0, num_nodes, (rounds + WARM_UP, 2 * BATCH_SIZE))
    arrays = {"indptr": indptr, "indices": src, "time": since, "relation": relation}
    arrays["seeds"] = np.stack([np.unique(row)[:BATCH_SIZE] for row in seeds])
    arrays["times"] = np.random.default_rng(1).integers(SPAN // 2, SPAN, BATCH_SIZE)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def contenders(folder: Path, num_relations: int, fanouts: list[int], threads: int) -> dict[str, Draw]:
    """Returns functions that draw a batch, by name."""
    indptr, indices, since, types, seeds, spread = (
        np.load(folder / f"{name}.npy") for name in ("indptr", "indices", "time", "relation", "seeds", "times")
    )
    names = tuple(map(str, range(num_relations)))
    plain, timed = (
        RelationGroups.of(csc, types, names) if names else csc
        for csc in (CSC(indptr, indices), CSC(indptr, indices, time=since))
    )
    without = NeighborSampler(fanouts, threads=threads)
    window = NeighborSampler(fanouts, time="window", window=SPAN // 4, threads=threads)
    strict, last = (NeighborSampler(fanouts, time="strict", pick=pick, threads=threads) for pick in ("uniform", "last"))

    clock = time.process_time if threads == 1 else time.perf_counter

    def at(sampler: NeighborSampler, rows: Rows, times: Ids | None = None) -> Draw:
        return lambda key: measure(clock, lambda: sampler.sample(rows, seeds[key], key=key, times=times))

    return {
        "without times": at(without, plain),
        "one time": at(strict, timed, np.full(BATCH_SIZE, SPAN)),
        "25 times": at(strict, timed, spread - spread % (SPAN // 50)),
        "own times": at(strict, timed, spread),
        "own times, last": at(last, timed, spread),
        "own times, window": at(window, timed, spread),
    }


def measure(clock: Callable[[], float], draw: Callable[[], MiniBatch]) -> Drawn:
    begin = clock()
    batch = draw()
    return clock() - begin, len(batch.blocks[0].indices)


def peer_contenders(peer: Peer, folder: Path, fanouts: list[int], threads: int) -> dict[str, Draw]:
    """Returns the draws of another process, which draws `WARM_UP` batches more."""
    request = {"folder": str(folder), "fanouts": fanouts, "threads": threads, "count": 1}
    seconds = "cpu" if threads == 1 else "seconds"

    def draws(method: str) -> Draw:
        def draw(key: int) -> Drawn:
            answer = peer.ask(method=method, first=key, **request)
            return answer[seconds], answer["sizes"][0][0]

        return draw

    return {f"GraphBolt, {method}": draws(method) for method in peer.methods}


def print_table(draws: dict[str, Draw], rounds: int) -> None:
    """Draws all batches by turns, and prints what each contender takes."""
    drawn: dict[str, list[Drawn]] = {name: [] for name in draws}
    for key in range(rounds):
        for name, draw in draws.items():
            drawn[name].append(draw(key))
    first = None
    for name, batches in drawn.items():
        milliseconds = 1e3 * statistics.median(seconds for seconds, _ in batches)
        cost = statistics.median(1e9 * seconds / edges for seconds, edges in batches)
        count = statistics.median(edges for _, edges in batches) / 1e3
        first = first or (milliseconds, cost)
        ratios = f"{milliseconds / first[0]:6.2f} per batch {cost / first[1]:6.2f} per edge"
        print(f"  {name:20} {milliseconds:8.2f} ms {count:8.0f} k {cost:7.1f} ns {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, default=12e6)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--relations", type=int, default=0, help="types of edges; default: none")
    parser.add_argument("--fanouts", nargs="+", default=["15,10,5", "10,10"], help="from the seeds outward")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dgl", metavar="PYTHON")
    options = parser.parse_args()
    environment = {"OMP_NUM_THREADS": str(options.threads), "PYTHONWARNINGS": "ignore", "DGLBACKEND": "pytorch"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_graph(folder, int(options.edges), options.relations, options.rounds)
        peer = None
        if options.dgl:
            peer = Peer([options.dgl, str(HERE / "peer" / "temporal_dgl_peer.py")], environment)
            stack.callback(peer.process.wait)
            stack.callback(peer.process.stdin.close)
            print(peer.versions)
        for text in options.fanouts:
            fanouts = [int(number) for number in text.split(",")]
            print(f"fanouts {fanouts}, {options.edges:,.0f} edges, {options.relations or 'no'} types of edges")
            draws = contenders(folder, options.relations, fanouts, options.threads)
            print_table(
                draws | (peer_contenders(peer, folder, fanouts, options.threads) if peer else {}), options.rounds
            )


if __name__ == "__main__":
    main()
