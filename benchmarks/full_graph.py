"""An epoch of full-graph training beside DGL and PyG, and the parts of its time.

    uv run python benchmarks/full_graph.py --dgl ENV/bin/python --data DATA.npz
    uv run python benchmarks/full_graph.py --nodes 2e4 --edges 4e5 --threads 1
    uv run python benchmarks/full_graph.py --jobs
    uv run python benchmarks/full_graph.py --cores --dgl ENV/bin/python --dropout 0.5
    uv run python benchmarks/full_graph.py --doors --models gcn --threads 1
    uv run python benchmarks/full_graph.py --converge DATA.npz ... --models gcn sage

GCN, GraphSAGE with the mean, GIN with one hidden layer in each perceptron, and GAT with
8 heads: 3 layers, 128 columns after each but the last, Adam. `--dropout` drops inputs
of layers and attention, by default none. The loss reads all training nodes. `rmat` and
`sbm` are drawn, with 128 random features a node and 16 classes. `--data` adds graphs
that dataset=npz reads.

DGL's environment is the one that `benchmarks/step.py` names. PyG is of this
environment. Each contender is a process. `gnnkit` computes what the only rank of
`strategy=vertex_centric` computes, on the same allocator, without Lightning's loop.
`tuned` sets the allocator by environment. `large pages` asks torch for pages of 2 MiB
too, and `compiled` compiles layers by torch. Epochs go by turns, and the fastest one of
each counts, with the median and the slowest beside it. The ratio is to gnnkit. A
contender that dies, or whose rows of messages would not fit the memory, is left out
with a line. The shares are of an epoch of gnnkit whose calls are watched: products of
dense matrices in torch, the core's aggregation, the exchange, and all else.

`--jobs` runs whole jobs on `sbm` instead. `drawn` has ids at random and contiguous
parts. `metis` has ids in METIS's order and METIS's parts. Words are those that the
busiest rank receives in an epoch, and bytes those that it sends. The last table has the
model of CAGNET (Tripathy et al., SC 2020), 2 layers on 2 ranks.

`--cores` runs whole jobs on `sbm` with ids at random and contiguous parts: on 1 thread,
on 2 threads, and on 2 ranks, by turns, and the fastest epoch of each counts. Beside it
stand the bytes that it moves, the share of what as many threads read from a large array
one after another, measured at each turn, and DGL, tuned, on as many threads. Counted
are the rows that each edge names, with the edge's id, rows that are written, and the
rows of both passes of products and activations. Optimiser, labels and factors are left
out. What the caches keep is counted too.

`--doors` runs one and the same job by turns: by command, from Python, from Python where
torch has made arrays before, as in a notebook, by torchrun, as a sweep, and by command
without large pages. It prints the seconds of an epoch. `--converge` trains models of 2
layers of 64 columns in float32 and in bfloat16, with several seeds, and compares the
accuracies on the test nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_formats.npz import Npz
from gnnkit_formats.synthetic import Synthetic
from step import LARGE_PAGES, OURS, TUNED, Contender, by_turns, converge, head, start

from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition.degrees import AddedLoops, looped
from gnnkit.utils.memory import available_memory

WIDTH, NUM_CLASSES, HIDDEN, HEADS, NUM_LAYERS = 128, 16, 128, 8, 3
MODELS = ("gcn", "sage", "gin", "gat")
KINDS = ("rmat", "sbm")
CONTENDERS = [
    Contender("gnnkit", "gnnkit", "epoch", OURS),
    Contender("gnnkit, bfloat16", "gnnkit", "epoch, bfloat16", OURS),
    Contender("DGL", "dgl", "epoch"),
    Contender("DGL, tuned", "dgl", "epoch", TUNED),
    Contender("DGL, large pages", "dgl", "epoch", LARGE_PAGES),
    Contender("PyG", "pyg", "epoch"),
    Contender("PyG, tuned", "pyg", "epoch", TUNED),
    Contender("PyG, compiled", "pyg", "epoch, compiled", TUNED),
]
TIMES = ("forward", "backward", "rest")
SHARES = ("dense", "aggregation", "exchange", "other")
MASKS = {"train_mask": Split.TRAIN, "val_mask": Split.VAL, "test_mask": Split.TEST}


def drawn(kind: str, options: argparse.Namespace) -> Graph:
    """Makes a graph with ids in no order."""
    num_edges = int(options.edges) // 2  # without the reverse ones
    return Synthetic(kind, int(options.nodes), num_edges, num_classes=NUM_CLASSES, width=WIDTH, in_block=0.9).load()


def write(folder: Path, graph: Graph) -> None:
    """Writes the arrays that peers read, and `graph.npz` for gnnkit."""
    folder.mkdir(parents=True)
    rows = np.flatnonzero(~looped(graph.csc))
    loops = AddedLoops.to(rows, np.diff(graph.csc.indptr))
    arrays = {
        "indptr": graph.csc.indptr,
        "indices": graph.csc.indices,
        "looped_indptr": loops.indptr,
        "looped_indices": loops.insert(graph.csc.indices, rows),
        "features": graph.features,
        "labels": np.asarray(graph.labels, np.int64),
        "train": np.flatnonzero(graph.split == Split.TRAIN),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_npz(folder / "graph.npz", graph)


def write_npz(path: Path, graph: Graph) -> None:
    """Writes a graph as dataset=npz reads graphs."""
    masks = {name: graph.split == part for name, part in MASKS.items()}
    csc = graph.csc
    np.savez(path, indptr=csc.indptr, indices=csc.indices, x=graph.features, y=graph.labels, **masks)


def in_metis_order(graph: Graph, num_parts: int) -> Graph:
    """Numbers the nodes by METIS's parts."""
    from gnnkit_metis import Metis

    order = np.argsort(Metis().assign_nodes(graph, num_parts), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(graph.num_nodes)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    csc = CSC.from_edges(place[graph.csc.indices], place[dst], graph.num_nodes)
    return Graph(csc, graph.features[order], graph.labels[order], graph.split[order])


def overrides(model: str, num_layers: int = NUM_LAYERS, dropout: float = 0.0) -> list[str]:
    """Returns the keys of a model."""
    width = [f"model.hidden={HIDDEN}"]
    if model == "gat":
        width = [f"model.hidden={HIDDEN // HEADS}", f"model.heads={HEADS}", "model.out_heads=1"]
    return [f"model={model}", f"model.num_layers={num_layers}", f"model.dropout={dropout}", *width]


def fits(contender: Contender, model: str, num_edges: int) -> bool:
    """Whether the memory that is free holds an epoch's messages. Else prints a line.

    PyG's GAT and its compiled layers keep a row of each edge, weighted and not, and
    their gradients.
    """
    if contender.program != "pyg" or (model != "gat" and "compiled" not in contender.method):
        return True
    num_bytes, free = 6 * num_edges * HIDDEN * 4, available_memory()
    if num_bytes > free:
        print(
            f"  left out: {contender.label} of {model} needs {num_bytes / 1e9:.0f} GB, free are {free / 1e9:.0f}",
            flush=True,
        )
    return num_bytes <= free


def compare(options: argparse.Namespace, name: str, folder: Path, threads: int) -> None:
    """Prints the epochs of every contender on one graph."""
    pythons = {"gnnkit": sys.executable, "dgl": options.dgl, "pyg": options.pyg}
    contenders = [
        contender for contender in CONTENDERS if pythons[contender.program] and options.only in contender.label
    ]
    contenders = contenders if CONTENDERS[0] in contenders else [CONTENDERS[0], *contenders]
    with ExitStack() as stack:
        peer_by_label = start(stack, contenders, pythons, "epoch", threads)
        versions = "; ".join(dict.fromkeys(peer.versions for peer in peer_by_label.values()))
        print(f"\n{name}, {threads} threads, milliseconds; {versions}")
        print(f"  {'':22} {head('epoch', TIMES)} {'ratio':>8}")
        for model in options.models:
            request = request_of(options, folder, threads, model)
            fitting = [contender for contender in contenders if fits(contender, model, int(options.edges))]
            turns_by_label = by_turns(fitting, peer_by_label, options.rounds, options.epochs, **request)
            ours = turns_by_label[CONTENDERS[0].label].seconds
            for label, turns in turns_by_label.items():
                print(f"  {model:5} {label:16} {turns.columns(TIMES)} {turns.seconds / ours:7.2f}x", flush=True)
            answer = peer_by_label[CONTENDERS[0].label].ask(method="shares", first=2, count=options.epochs, **request)
            print(f"  {model:5} {'shares':16} {format_shares(answer['parts'])}", flush=True)


def request_of(options: argparse.Namespace, folder: Path, threads: int, model: str) -> dict[str, Any]:
    """Returns what all contenders are asked for."""
    data = [f"dataset.root={folder}/graph.npz", "dataset=npz"]
    return {
        "folder": str(folder),
        "threads": threads,
        "model": model,
        "hidden": HIDDEN,
        "heads": HEADS,
        "num_layers": NUM_LAYERS,
        "dropout": options.dropout,
        "overrides": [*data, *overrides(model, dropout=options.dropout)],
    }


def format_shares(epochs: Sequence[Mapping[str, float]]) -> str:
    """Returns the shares of the fastest epoch."""
    parts = min(epochs, key=lambda parts: sum(parts.values()))
    total = sum(parts.values())
    return ", ".join(f"{name} {parts[name] / total:.1%}" for name in SHARES)


@dataclass(frozen=True)
class Door:
    """A way to start a job."""

    words: tuple[str, ...]  # of the command, before the keys
    output: str = "output"  # key of the run folder
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """The figures of a job."""

    seconds: float  # of an epoch, median without the first
    fastest: float  # seconds of the fastest epoch, of the rank that takes longest
    exchange: float  # seconds of an epoch, as above, of the rank that exchanges longest
    words: int  # that the busiest rank receives in an epoch
    num_bytes: int  # that the busiest rank sends in an epoch

    def __str__(self) -> str:
        return f"{self.seconds:9.3f} {self.exchange:9.3f} {self.words / 1e6:9.3f} {self.num_bytes / 1e6:9.3f}"


TRAIN = "import sys, gnnkit; gnnkit.train(overrides=sys.argv[1:])"
COMMAND = ("-m", "gnnkit")
DOORS: dict[str, Door] = {
    "command": Door(COMMAND),
    "from Python": Door(("-c", TRAIN)),
    "from Python, after torch": Door(("-c", f"import torch; torch.ones(1 << 20); {TRAIN}")),
    "torchrun": Door(("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", *COMMAND)),
    "sweep": Door((*COMMAND, "-m"), "hydra.sweep.dir"),
    "command, small pages": Door(COMMAND, environment={"THP_MEM_ALLOC_ENABLE": "0"}),
}


def run_doors(options: argparse.Namespace, folder: Path) -> None:
    """Prints the seconds of an epoch by every way to start a job."""
    write_npz(folder / "drawn.npz", drawn("rmat", options))
    for model in options.models:
        for threads in options.threads:
            seconds_by_door: dict[str, list[float]] = {name: [] for name in DOORS}
            for _ in range(options.rounds):
                for name, door in DOORS.items():
                    keys = (*overrides(model), f"threads={threads}")
                    seconds_by_door[name].append(
                        run_job(options, folder / "drawn.npz", "contiguous", 1, *keys, door=door).seconds
                    )
            print(f"\n{model}, {threads} threads; seconds an epoch, median and range of {options.rounds} runs")
            ours = statistics.median(seconds_by_door["command"])
            for name, seconds in seconds_by_door.items():
                middle, spread = statistics.median(seconds), f"{min(seconds):.3f} to {max(seconds):.3f}"
                print(f"  {name:26} {middle:8.3f} {spread:>16} {middle / ours:7.2f}x", flush=True)


def run_job(
    options: argparse.Namespace, data: Path, partition: str, workers: int, *keys: str, door: Door = DOORS["command"]
) -> Measured:
    """Runs a whole job.

    Args:
        options: Of the command line.
        data: The .npz file.
        partition: contiguous or metis.
        workers: Number of ranks.
        *keys: The model's and other keys.
        door: The way to start the job. Default: by command.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("strategy=vertex_centric", f"workers={workers}", f"partition={partition}", f"{door.output}={folder}/run"),
            *("dataset=npz", f"dataset.root={data}", f"trainer.max_epochs={options.job_epochs}"),
            *(f"trainer.check_val_every_n_epoch={options.job_epochs}", "trainer.checkpoint=false"),
            *("trainer.progress_bar=false", *keys),
        ]
        environment = {**os.environ, **door.environment}
        subprocess.run([sys.executable, *door.words, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
        (result_file,) = Path(folder).rglob("result.json")
        result = json.loads(result_file.read_text())
        states = map(json.loads, (result_file.parent / "workers.jsonl").read_text().splitlines())
        longest: dict[int, float] = defaultdict(float)
        epoch_seconds: dict[int, float] = defaultdict(float)
        for state in states:
            seconds = sum(state[f"seconds_{kind}"] for kind in ("wait", "compute", "exchange", "sync"))
            epoch_seconds[state["epoch"]] = max(epoch_seconds[state["epoch"]], seconds)
            longest[state["epoch"]] = max(longest[state["epoch"]], state["seconds_exchange"])
    exchange = statistics.median(list(longest.values())[1:] or longest.values())
    words = result["words_gathered"] + result["words_reduced"] + result["words_sliced"]
    return Measured(result["seconds_per_epoch"], min(epoch_seconds.values()), exchange, words, result["bytes_sent"])


READ = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
x, seconds = torch.ones(1 << 28), []
for _ in range(5):
    begin = time.perf_counter()
    x.sum()
    seconds.append(time.perf_counter() - begin)
print(4 * len(x) / min(seconds))
"""
CORES = {"1 thread": (1, 1), "2 threads": (1, 2), "2 ranks": (2, 1)}  # ranks, and threads of each


def read_rate(threads: int) -> float:
    """Measures the bytes that threads read in a second, one after another."""
    command = [sys.executable, "-c", READ, str(threads)]
    return float(subprocess.check_output(command, env={**os.environ, **LARGE_PAGES}))


def bytes_of(model: str, num_nodes: int, num_edges: int, dropout: float) -> int:
    """Counts the bytes of an epoch, as the text above says."""
    widths = [WIDTH, *[HIDDEN] * (NUM_LAYERS - 1), NUM_CLASSES]
    edges = num_edges + num_nodes * (model in ("gcn", "gat"))  # loops
    numbers = 0
    for layer, (before, after) in enumerate(pairwise(widths)):
        first, attends = layer == 0, model == "gat"
        width = {"gat": after, "gin": before}.get(model, min(before, after))
        # Rows of features have no gradient, and the sum of rows that stay is made once.
        passes = 2 if attends or not first else int(dropout > 0)
        numbers += passes * (edges * (width + 1) + num_nodes * width) + attends * edges * 5 * HEADS
        products = [before, HIDDEN, after] if model == "gin" else [before * (1 + (model == "sage")), after]
        for number, (read, out_width) in enumerate(pairwise(products)):
            numbers += num_nodes * (read + out_width) * (2 if first and number == 0 else 3)
        numbers += num_nodes * 5 * (before * (not first) + HIDDEN * (model == "gin"))  # activations
    return 4 * numbers


def run_cores(options: argparse.Namespace, folder: Path) -> None:
    """Prints what a second thread and a second rank gain, beside the memory's bound."""
    graph = drawn("sbm", options)
    write(folder / "sbm", graph)
    contenders = [contender for contender in CONTENDERS if options.dgl and contender.label == "DGL, tuned"]
    print(f"\nsbm, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, dropout {options.dropout:g}; an epoch")
    print(f"  {'':17} {'seconds':>9} {'gain':>6} {'GB':>7} {'GB/s':>7} {'bound':>7} {'share':>6} {'DGL':>9} {'':>6}")
    for model in options.models:
        keys = overrides(model, dropout=options.dropout)
        seconds: dict[str, list[float]] = defaultdict(list)
        rates: dict[int, list[float]] = defaultdict(list)
        peers: dict[int, list[float]] = defaultdict(list)
        for _ in range(options.rounds):
            for threads in (1, 2):
                rates[threads].append(read_rate(threads))
                with ExitStack() as stack:
                    peer_by_label = start(stack, contenders, {"dgl": options.dgl}, "epoch", threads)
                    request = request_of(options, folder / "sbm", threads, model)
                    turns_by_label = by_turns(contenders, peer_by_label, 1, options.job_epochs // 2, **request)
                peers[threads] += [turns.seconds for turns in turns_by_label.values()]
            for name, (workers, threads) in CORES.items():
                run_keys = (*keys, f"threads={threads}")
                seconds[name].append(
                    run_job(options, folder / "sbm/graph.npz", "contiguous", workers, *run_keys).fastest
                )
        num_bytes = bytes_of(model, graph.num_nodes, graph.num_edges, options.dropout)
        for name, (workers, threads) in CORES.items():
            ours, bandwidth = min(seconds[name]), max(rates[workers * threads])
            peer, gain = min(peers[workers * threads], default=float("nan")), min(seconds["1 thread"]) / ours
            print(
                f"  {model:5} {name:11} {ours:9.3f} {gain:5.2f}x {num_bytes / 1e9:7.2f} {num_bytes / ours / 1e9:7.1f} "
                f"{bandwidth / 1e9:7.1f} {num_bytes / ours / bandwidth:6.1%} {peer:9.3f} {peer / ours:5.2f}x",
                flush=True,
            )


def run_jobs(options: argparse.Namespace, folder: Path) -> None:
    """Prints what a second rank gains, and the words of CAGNET's model."""
    graph = drawn("sbm", options)
    write_npz(folder / "drawn.npz", graph)
    write_npz(folder / "metis.npz", in_metis_order(graph, 2))
    head = f"{'seconds':>9} {'exchange':>9} {'Mwords':>9} {'MB':>9}"
    print(f"\njobs on sbm, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; an epoch\n  {'':36} {head}")
    for model in options.models:
        for order, partition in (("drawn", "contiguous"), ("metis", "metis")):
            seconds = {}
            for workers, threads in ((1, 1), (2, 1), (1, 2)):
                keys = (*overrides(model), f"threads={threads}")
                figures = run_job(options, folder / f"{order}.npz", partition, workers, *keys)
                seconds[workers, threads] = figures.seconds
                print(f"  {model:5} {order:6} {workers} ranks of {threads} threads {figures}", flush=True)
            print(
                f"  {model:5} {order:6} 1 -> 2 ranks: {seconds[1, 1] / seconds[2, 1]:.2f}x, 2 ranks against 2 threads: "
                f"{seconds[1, 2] / seconds[2, 1]:.2f}x",
                flush=True,
            )
    figures = run_job(options, folder / "metis.npz", "metis", 2, *overrides("gcn", 2), "threads=1")
    print(f"\nCAGNET's model, metis, 2 ranks\n  {'':36} {head}\n  {'':36} {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--pyg", metavar="PYTHON", default=sys.executable, help="default: this one. '': without PyG")
    parser.add_argument("--nodes", type=float, default=2e5)
    parser.add_argument("--edges", type=float, default=4e6, help="both directions")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS, help="graphs that are drawn")
    parser.add_argument("--data", nargs="*", type=Path, default=[], help="further graphs, as .npz files")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="of a round")
    parser.add_argument("--only", default="", metavar="TEXT", help="peers whose name has it")
    parser.add_argument("--jobs", action="store_true", help="whole jobs instead")
    parser.add_argument("--cores", action="store_true", help="what a second core brings instead")
    parser.add_argument("--dropout", type=float, default=0.0, help="of inputs of layers, and of attention")
    parser.add_argument("--doors", action="store_true", help="a job by every way to start one instead")
    parser.add_argument("--converge", nargs="+", type=Path, default=[], metavar="FILE", help=".npz of dataset=npz")
    parser.add_argument("--seeds", type=int, default=5, help="of --converge")
    parser.add_argument("--converge-epochs", type=int, default=100)
    parser.add_argument("--job-epochs", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path in options.converge:
            for model in options.models:
                print(f"\n{model}, full graph", end="")
                keys = {"name": model, **({} if model == "gat" else {"hidden": 64})}
                converge(path, options.seeds, options.converge_epochs, strategy="vertex_centric", model=keys)
        if options.converge:
            return
        for is_selected, run in ((options.jobs, run_jobs), (options.doors, run_doors), (options.cores, run_cores)):
            if is_selected:
                run(options, folder)
                return
        graphs: dict[str, Any] = {kind: lambda kind=kind: drawn(kind, options) for kind in options.kinds}
        graphs |= {path.stem: lambda path=path: Npz(str(path)).load() for path in options.data}
        for name, make in graphs.items():
            write(folder / name, make())
            for threads in options.threads:
                compare(options, name, folder / name, threads)


if __name__ == "__main__":
    main()
