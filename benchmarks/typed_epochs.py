"""An epoch of relational models on a full graph beside PyG and DGL.

    uv run python benchmarks/typed_epochs.py --dgl ENV/bin/python --data aifb.npz
    uv run python benchmarks/typed_epochs.py --dgl ENV/bin/python --edges 1e7 --memory 6

R-GCN, R-GAT and HGT: 2 layers of 64 columns, 8 heads of 8 in R-GAT's first layer and in
HGT, a separate weight for each relation, inverse edges as separate relations, random
input rows of 64 columns without gradients, Adam and no dropout. PyG has RGCNConv,
RGATConv and HGTConv. DGL has RelGraphConv and HGTConv, with edges in order of relation
so that it can use them, and for R-GAT, which it does not have, GATConv in each
relation. DGL's environment is the one that `benchmarks/step.py` names.

Data are an .npz file with `src`, `dst`, `relation` [num_edges], `num_nodes`, `labels`
[num_nodes], -1 for none, and `train`, ids, or one with `paper_author` and
`paper_subject` [2, num_edges], and `labels` of papers. `--edges` draws the graph that
`benchmarks/typed_sampling.py` draws, with ten edges for each node.

Each contender is a process with the allocator settings that suit it best, and epochs go
by turns. The table has the median CPU seconds of an epoch, and the peak memory of the
process, the construction of its graph included. A contender that exceeds `--memory`
gigabytes is left out with a line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peers import HERE, Peer, PeerEnded
from step import TUNED
from typed_sampling import write_graph

MODELS = ("rgcn", "rgat", "hgt")
EDGES_PER_NODE, NUM_CLASSES = 10, 16
MILLISECONDS, GIGABYTE = 1e3, 1e9
ENVIRONMENTS = {"gnnkit": {"THP_MEM_ALLOC_ENABLE": "1"}, "pyg": TUNED, "dgl": {**TUNED, "DGLBACKEND": "pytorch"}}


def write_relations(
    folder: Path, counts: dict[str, int], edges: dict[tuple[str, str, str], Any], labels: Any, train: Any
) -> None:
    """Writes the arrays that the peers read.

    Args:
        folder: The folder.
        counts: Number of nodes of each type. The first type is labelled.
        edges: [2, num_edges] by relation, with ids within the types.
        labels: [num_nodes] of the first type.
        train: ids of its training nodes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, ((_, _, destination), (src, dst)) in enumerate(edges.items()):
        np.save(folder / f"indices_{number}.npy", src[np.argsort(dst, kind="stable")])
        degrees = np.bincount(dst, minlength=counts[destination])
        np.save(folder / f"indptr_{number}.npy", np.append(0, np.cumsum(degrees)))
    schema = {"counts": counts, "relations": list(edges), "seed_type": next(iter(counts))}
    (folder / "schema.json").write_text(json.dumps(schema))
    write_labels(folder, labels, train)


def write_labels(folder: Path, labels: Any, train: Any) -> None:
    np.save(folder / "labels.npy", labels.astype(np.int64))
    np.save(folder / "train.npy", train.astype(np.int64))


def write_data(folder: Path, path: Path) -> None:
    """Writes a graph of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    labels = arrays["labels"]
    if "paper_author" in arrays:
        author, subject = arrays["paper_author"], arrays["paper_subject"]
        counts = {"paper": len(labels), "author": int(author[1].max()) + 1, "subject": int(subject[1].max()) + 1}
        edges = {("paper", "by", "author"): author, ("paper", "about", "subject"): subject}
        write_relations(folder, counts, edges, labels, arrays["train_60"])
        return
    ends, relation = np.stack([arrays["src"], arrays["dst"]]), arrays["relation"]
    edges = {("node", str(number), "node"): ends[:, relation == number] for number in range(int(relation.max()) + 1)}
    write_relations(folder, {"node": int(arrays["num_nodes"])}, edges, labels, arrays["train"])


def write_drawn(folder: Path, num_edges: int) -> None:
    """Draws a graph, all nodes of whose first type train."""
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder, num_edges, EDGES_PER_NODE)
    num_nodes = next(iter(json.loads((folder / "schema.json").read_text())["counts"].values()))
    write_labels(folder, np.arange(num_nodes) % NUM_CLASSES, np.arange(num_nodes))


def measure(options: argparse.Namespace, folder: Path, model: str) -> None:
    """Prints the epochs of one model on one graph."""
    pythons = {"gnnkit": sys.executable, "pyg": sys.executable, "dgl": options.dgl}
    names = [name for name, python in pythons.items() if python and name in options.peers]
    cpu: dict[str, list[float]] = {name: [] for name in names}
    peak: dict[str, int] = {}
    with ExitStack() as stack:
        peer_by_label = {}
        for name in names:
            common = {"OMP_NUM_THREADS": str(options.threads), "PYTHONWARNINGS": "ignore"}
            command = [pythons[name], str(HERE / "peer" / f"typed_epoch_{name}_peer.py")]
            peer_by_label[name] = Peer(command, common | ENVIRONMENTS[name])
            limit = int(options.memory * GIGABYTE)
            resource.prlimit(peer_by_label[name].process.pid, resource.RLIMIT_DATA, (limit, limit))
            stack.callback(peer_by_label[name].process.wait)
            stack.callback(peer_by_label[name].process.stdin.close)
        for turn in range(options.rounds):
            for name in tuple(cpu):
                request = {"folder": str(folder), "threads": options.threads, "model": model}
                try:
                    answer = peer_by_label[name].ask(method="epoch", first=2 + turn, count=options.epochs, **request)
                except PeerEnded as error:
                    print(f"  {model:5} {name:7} left out: {error}, with {options.memory:g} GB", flush=True)
                    del cpu[name]
                    continue
                cpu[name] += answer["cpu"]
                peak[name] = answer["peak"]
    ours = statistics.median(cpu["gnnkit"]) if "gnnkit" in cpu else float("nan")
    for name, seconds in cpu.items():
        median = statistics.median(seconds)
        line = f"  {model:5} {name:7} {MILLISECONDS * median:10.1f} {MILLISECONDS * min(seconds):10.1f}"
        print(f"{line} {median / ours:7.2f}x {peak[name] / GIGABYTE:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help=".npz files")
    parser.add_argument("--edges", type=float, nargs="*", default=[], help="of drawn graphs")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--peers", nargs="+", default=["gnnkit", "pyg", "dgl"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="of a round")
    parser.add_argument("--memory", type=float, default=6, help="gigabytes for each contender")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for path in options.data:
            write_data(Path(temporary) / path.stem, path)
        for num_edges in options.edges:
            write_drawn(Path(temporary) / f"drawn_{int(num_edges)}", int(num_edges))
        for folder in sorted(Path(temporary).iterdir()):
            counts = json.loads((folder / "schema.json").read_text())
            print(f"\n{folder.name}: {sum(counts['counts'].values()):,} nodes, {len(counts['relations'])} relations")
            columns = ("CPU ms", "least", "ratio", "peak GB")
            print(f"  {'':13} {columns[0]:>10} {columns[1]:>10} {columns[2]:>8} {columns[3]:>8}")
            for model in options.models:
                measure(options, folder, model)


if __name__ == "__main__":
    main()
