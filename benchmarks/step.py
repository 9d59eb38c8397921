"""A step of mini-batch training beside PyG and DGL, and the parts of its time.

    uv run python benchmarks/step.py --dgl ENV/bin/python --converge path/to/pubmed.npz
    uv run python benchmarks/step.py --nodes 1e5 --edges 1e6 --threads 1 --no-jobs

GraphSAGE with the mean, Adam and dropout on an R-MAT with 100 random features a node
and 47 classes, 1,024 seeds a batch. `big` has 3 layers of 256 columns and fanouts
[15, 10, 5], `small` 2 layers of 64 and [10, 10]. The default graph has a million nodes
and 30 million edges. `--nodes 2449029 --edges 61859140` has the size of ogbn-products,
and needs 24 GB. The defaults take ten minutes on two cores.

DGL's environment is the one that `benchmarks/peers.py` names, with setuptools < 70,
packaging, pyyaml, pydantic and pandas < 3. PyG's steps are on batches that gnnkit
samples, because its loader needs pyg-lib: sampling and gathering are ours, and making
its `Data` is not counted. `tuned` sets the allocator by environment, as any user can.
gnnkit's own ranks set theirs. Steps go by turns, and the fastest one of each counts.
`median` and `most` tell how far the others were from it. The ratios are to gnnkit's
steps in float32 and in bfloat16.

In a job a thread samples and gathers ahead. So the table of jobs has the seconds of
epochs of 1 and 2 workers with 1,024 seeds each, and the share of an epoch that waits
for batches. An epoch is the median of all but the first. `--converge` trains on a data
file in float32 and in bfloat16, with several seeds, and compares the accuracies on the
test nodes.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers

HERE = Path(__file__).parent / "peer"
PARTS = ("sample", "gather", "forward", "backward", "rest")
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "big": {"hidden": 256, "fanouts": [15, 10, 5]},
    "small": {"hidden": 64, "fanouts": [10, 10]},
}
MILLISECONDS = 1e3


Parts = Mapping[str, float]  # seconds of a step or an epoch by part


@dataclass(frozen=True)
class Contender:
    label: str
    program: str
    method: str = "step"
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Turns:
    """The steps of a contender."""

    steps: list[Parts] = field(default_factory=list)

    @property
    def best(self) -> Parts:
        """The parts of the fastest step."""
        return min(self.steps, key=lambda parts: sum(parts.values()))

    @property
    def seconds(self) -> float:
        """Seconds of the fastest step."""
        return sum(self.best.values())

    def columns(self, parts: Sequence[str]) -> str:
        """Spells the fastest step, median, slowest, and parts of the fastest."""
        totals = [sum(step.values()) for step in self.steps]
        numbers = [min(totals), statistics.median(totals), max(totals), *(self.best[part] for part in parts)]
        return " ".join(f"{MILLISECONDS * number:9.2f}" for number in numbers)


def head(title: str, parts: Sequence[str]) -> str:
    """Names the columns of `Turns.columns`."""
    return " ".join(f"{name:>9}" for name in (title, "median", "most", *parts))


OURS = {"STEP_ALLOCATOR": "ranks", "THP_MEM_ALLOC_ENABLE": "1"}
LARGE_PAGES = {**TUNED, "THP_MEM_ALLOC_ENABLE": "1"}
PYG = "step, PyG and trim_to_layer"
CONTENDERS = [
    Contender("gnnkit", "gnnkit", environment=OURS),
    Contender("gnnkit, bfloat16", "gnnkit", "step, bfloat16", OURS),
    Contender("gnnkit, allocator as it is", "gnnkit"),
    Contender("PyG and trim_to_layer", "gnnkit", PYG),
    Contender("PyG and trim_to_layer, tuned", "gnnkit", PYG, TUNED),
    Contender("DGL", "dgl"),
    Contender("DGL, tuned", "dgl", environment=TUNED),
]


def start(
    stack: ExitStack, contenders: Sequence[Contender], pythons: Mapping[str, str], kind: str, threads: int
) -> dict[str, peers.Peer]:
    """Starts a process for each contender, which ends with the stack.

    Args:
        stack: Ends the processes.
        contenders: Who is measured.
        pythons: The interpreter of each program.
        kind: First word of the programs' files.
        threads: Threads of each process.
    """
    peer_by_label = {}
    for contender in contenders:
        environment = {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}
        command = [pythons[contender.program], str(HERE / f"{kind}_{contender.program}_peer.py")]
        peer = peers.Peer(command, environment | contender.environment)
        stack.callback(peer.process.wait)
        stack.callback(peer.process.stdin.close)
        peer_by_label[contender.label] = peer
    return peer_by_label


def by_turns(
    contenders: Sequence[Contender], peer_by_label: Mapping[str, peers.Peer], rounds: int, steps: int, **request: Any
) -> dict[str, Turns]:
    """Returns the steps of every contender, by label.

    A contender whose process ends, as for lack of memory, is left out with a line.

    Args:
        contenders: Who is measured.
        peer_by_label: Their processes.
        rounds: Turns of each contender.
        steps: Steps of a turn.
        **request: What is measured.
    """
    turns_by_label = {contender.label: Turns() for contender in contenders}
    candidates = list(contenders)
    for turn in range(rounds):
        for contender in tuple(candidates):
            try:
                answer = peer_by_label[contender.label].ask(
                    method=contender.method, first=turn * steps + 2, count=steps, **request
                )
            except peers.PeerEnded as error:
                print(f"  left out: {contender.label}, {error}", flush=True)
                candidates.remove(contender)
                del turns_by_label[contender.label]
                continue
            turns_by_label[contender.label].steps.extend(answer["parts"])
    return turns_by_label


def measure(options: argparse.Namespace, folder: Path, threads: int, case: dict[str, Any]) -> None:
    """Prints the fastest step of each contender."""
    pythons = {"gnnkit": sys.executable, "dgl": options.dgl}
    peer_contenders = [
        contender for contender in CONTENDERS[2:] if pythons[contender.program] and options.only in contender.label
    ]
    contenders = [*CONTENDERS[:2], *peer_contenders]
    request = {"folder": str(folder), "threads": threads, "dropout": options.dropout, **case}
    with ExitStack() as stack:
        peer_by_label = start(stack, contenders, pythons, "step", threads)
        turns_by_label = by_turns(contenders, peer_by_label, options.rounds, options.steps, **request)
    ours = [turns_by_label[contender.label].seconds for contender in CONTENDERS[:2]]
    for label, turns in turns_by_label.items():
        ratios = " ".join(f"{turns.seconds / seconds:7.2f}x" for seconds in ours)
        print(f"  {label:32} {turns.columns(PARTS)} {ratios}", flush=True)


def run_job(nodes: int, edges: int, workers: int, case: dict[str, Any], precision: str) -> float:
    """Prints the seconds of an epoch of a job, and the share that waits.

    Args:
        nodes: Nodes of the graph.
        edges: Edges of the graph, before the reverse ones are added.
        workers: Workers, of one thread each.
        case: A value of `CONFIGURATIONS`.
        precision: The value of `trainer.precision`.

    Returns:
        The seconds of an epoch, the median of all but the first.
    """
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *("strategy=individual_sample", "model=sage", "partition=1d", f"workers={workers}", "threads=1"),
            *("dataset=synthetic", "dataset.kind=rmat", f"dataset.num_nodes={nodes}", f"dataset.num_edges={edges}"),
            *("dataset.width=100", "dataset.num_classes=47", f"sampler.fanouts={case['fanouts']}"),
            f"trainer.precision={precision}",
            *(f"model.hidden={case['hidden']}", f"model.num_layers={len(case['fanouts'])}"),
            *("trainer.max_epochs=3", "trainer.check_val_every_n_epoch=3", "trainer.checkpoint=false"),
            *("trainer.progress_bar=false", f"output={folder}/run"),
        ]
        subprocess.run([sys.executable, "-m", "gnnkit", *overrides], check=True, stdout=subprocess.DEVNULL)
        result = json.loads((Path(folder) / "run/result.json").read_text())
    seconds, waits = result["seconds_per_epoch"], result["wait_share"]
    print(
        f"  {precision:10} {workers} workers: {seconds:8.2f} s an epoch, {waits:6.1%} waiting for batches", flush=True
    )
    return float(seconds)


def compare_jobs(nodes: int, case: dict[str, Any]) -> None:
    """Prints what a second worker gains, in float32 and in bfloat16."""
    for precision in ("32", "bf16-mixed"):
        first, two = (run_job(nodes, 10 * nodes, workers, case, precision) for workers in (1, 2))
        print(f"  {precision:10} 1 -> 2 workers: {first / two:.2f}x", flush=True)


def converge(data: Path, seeds: int, epochs: int, **keys: Any) -> None:
    """Prints test accuracies of runs in float32 and in bfloat16.

    Args:
        data: A .npz file that dataset=npz reads.
        seeds: Runs of each precision.
        epochs: Epochs of a run.
        **keys: Strategy, model, and what these read.
    """
    import gnnkit

    accuracies_by_precision: dict[int | str, list[float]] = {32: [], "bf16-mixed": []}
    for seed in range(seeds):
        for precision, accuracies in accuracies_by_precision.items():
            with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
                result = gnnkit.train(
                    dataset={"name": "npz", "root": str(data)},
                    trainer={
                        "precision": precision,
                        "max_epochs": epochs,
                        "check_val_every_n_epoch": epochs,
                        "checkpoint": False,
                        "progress_bar": False,
                    },
                    workers=1,
                    threads=1,
                    seed=seed,
                    report=False,
                    logger="none",
                    folder=Path(folder) / "run",
                    **keys,
                )
            accuracies.append(result["test_accuracy"])
    print(f"\ntest accuracy after {epochs} epochs on {data.name}, mean and deviation of {seeds} seeds")
    for precision, accuracies in accuracies_by_precision.items():
        text = " ".join(f"{accuracy:.4f}" for accuracy in accuracies)
        spread = statistics.stdev(accuracies) if seeds > 1 else 0
        print(f"  {precision:10} {statistics.mean(accuracies):.4f} +- {spread:.4f}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--nodes", type=float, default=1e6)
    parser.add_argument("--edges", type=float, default=1.5e7, help="drawn, before the reverse ones are added")
    parser.add_argument("--configurations", nargs="+", default=list(CONFIGURATIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--only", default="", metavar="TEXT", help="contenders beside gnnkit whose name has it")
    parser.add_argument("--no-jobs", action="store_true", help="leave the whole jobs out")
    parser.add_argument("--job-nodes", type=float, default=1e5)
    parser.add_argument("--converge", metavar="FILE", type=Path, help=".npz of dataset=npz, such as pubmed.npz")
    parser.add_argument("--seeds", type=int, default=5, help="of --converge")
    parser.add_argument("--epochs", type=int, default=20, help="of --converge")
    parser.add_argument("--folder", type=Path, help="keep the graph here; default: a temporary folder")
    options = parser.parse_args()
    peers.GRAPHS["step"] = (int(options.nodes), int(options.edges))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / f"step-{options.nodes:.0f}-{options.edges:.0f}"
        peers.write_graph(folder, "step")
        for threads in options.threads:
            for name in options.configurations:
                print(f"\n{name}, {threads} threads; milliseconds")
                print(f"  {'':32} {head('step', PARTS)} {'float32':>8} {'bfloat16':>8}")
                measure(options, folder, threads, CONFIGURATIONS[name])
    if not options.no_jobs:
        for name in options.configurations:
            print(f"\n{name}, jobs on an R-MAT of {options.job_nodes:.0f} nodes, 1 thread a worker")
            compare_jobs(int(options.job_nodes), CONFIGURATIONS[name])
    if options.converge is not None:
        converge(
            options.converge,
            options.seeds,
            options.epochs,
            strategy={"name": "individual_sample", "batch_size": 64},
            sampler={"name": "neighbor", "fanouts": [10, 10]},
            model={"name": "sage", "hidden": 64},
        )


if __name__ == "__main__":
    main()
