"""Seconds and memory of job=plan's trials, beside those of runs, and auto's choice.

    uv run python benchmarks/plan.py
    uv run python benchmarks/plan.py --graphs sbm --models gcn gat --workers 2
    uv run python benchmarks/plan.py --memory --data pubmed.npz --graphs sbm

For each graph, model and number of workers, job=plan tries the layouts that
partition=auto compares. A run of each layout measures the same. `error` is predicted
over measured, less 1. The choice is good where its run is the fastest, or within 10 %
of the fastest. Seconds of a run are the least of its epochs without the first, and of
`--repeats` runs by turns, as other work on a machine only adds to these. Where other
work takes most of the machine, `--cpu` measures seconds of the processor instead, the
mean over ranks, from two runs of different length. It needs `--threads 1`.

`--memory` runs `vertex_centric` as it is planned, with an evaluation after each epoch,
and compares the peak of each rank's process up to the last step.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import resource
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gnnkit

GOOD = 1.1  # times the seconds of the fastest layout
EPOCHS = 6
SYNTHETIC = ["dataset=synthetic", "dataset.num_classes=16"]
GRAPHS = {
    "sbm": [*SYNTHETIC, "dataset.kind=sbm"],
    "rmat": [*SYNTHETIC, "dataset.kind=rmat"],
    "pystdlib": ["dataset=pystdlib"],
}
MODELS = {
    "gcn": ["model=gcn", "model.hidden=128", "model.num_layers=3"],
    "sage": ["model=sage", "model.hidden=128", "model.num_layers=3"],
    "gin": ["model=gin", "model.hidden=128", "model.num_layers=3"],
    "gat": ["model=gat", "model.hidden=16", "model.heads=8", "model.num_layers=3"],
}
QUIET = ["trainer.progress_bar=false", "trainer.checkpoint=false", "trainer.check_val_every_n_epoch=1000"]


def run(overrides: list[str], folder: Path) -> dict[str, Any]:
    """Does one job, and returns its figures."""
    return dict(gnnkit.train(strategy="vertex_centric", model="gcn", overrides=overrides, folder=folder))


def measure(overrides: list[str], folder: Path) -> tuple[float, int]:
    """Trains, and returns seconds of an epoch and peak bytes of the largest rank."""
    run([*overrides, *QUIET, f"trainer.max_epochs={EPOCHS}"], folder)
    by_epoch, memory = defaultdict[int, list[float]](list), 0
    for line in (folder / "workers.jsonl").read_text(encoding="utf-8").splitlines():
        state = json.loads(line)
        time_fields = ("seconds_wait", "seconds_compute", "seconds_exchange", "seconds_sync")
        by_epoch[state["epoch"]].append(sum(state[name] for name in time_fields))
        memory = max(memory, state["memory"])
    return min(max(seconds) for epoch, seconds in by_epoch.items() if epoch), memory


def _measure_cpu(workers: int, overrides: list[str], folder: Path) -> tuple[float, int]:
    """Trains twice, and returns seconds of the processor of an epoch and peak bytes."""
    seconds = []
    for epochs in (EPOCHS // 2, 3 * EPOCHS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run([*overrides, *QUIET, f"trainer.max_epochs={epochs}"], folder / str(epochs))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    lines = (folder / str(3 * EPOCHS) / "workers.jsonl").read_text(encoding="utf-8").splitlines()
    memory = max(json.loads(line)["memory"] for line in lines)
    return (seconds[1] - seconds[0]) / (3 * EPOCHS - EPOCHS // 2) / workers, memory


def compare(
    case: list[str],
    max_layouts: int,
    folder: Path,
    measure: Callable[[list[str], Path], tuple[float, int]],
    repeats: int,
) -> tuple[list[tuple[float, float]], float]:
    """Prints a line for each layout.

    Args:
        case: Graph, model and workers.
        max_layouts: Layouts that are run.
        folder: Takes the runs.
        measure: Gives seconds of an epoch and peak bytes of a run.
        repeats: Runs of each layout, by turns. The least seconds count.

    Returns:
        Predicted over measured seconds and bytes of each layout, and the seconds of the
        choice over those of the fastest layout.
    """
    plan = run([*case, "job=plan", "partition=auto"], folder / "plan")
    trials = {name: figures for name, figures in plan["layouts"].items() if "seconds" in figures}
    layouts = dict(sorted(trials.items(), key=lambda item: item[1]["seconds"])[:max_layouts])
    layouts[plan["choice"]] = plan["layouts"][plan["choice"]]
    runs = defaultdict[str, list[tuple[float, int]]](list)
    for repeat in range(repeats):
        for number, (name, figures) in enumerate(layouts.items()):
            runs[name].append(measure([*case, *figures["overrides"].split()], folder / f"{number}-{repeat}"))
    ratios, seconds = [], {}
    for name, figures in layouts.items():
        seconds[name], memory = min(took for took, _ in runs[name]), max(peak for _, peak in runs[name])
        ratios.append((figures["seconds"] / seconds[name], figures["memory"] / memory))
        print(
            f"  {name:<26}{figures['seconds']:>10.4f}{seconds[name]:>10.4f}{ratios[-1][0] - 1:>+9.0%}"
            f"{figures['memory'] / 2**20:>10.0f}{memory / 2**20:>10.0f}{ratios[-1][1] - 1:>+9.0%}"
            + ("  chosen" if name == plan["choice"] else ""),
            flush=True,
        )
    return ratios, seconds[plan["choice"]] / min(seconds.values())


def compare_memory(case: list[str], folder: Path) -> list[float]:
    """Prints a line for a case. Returns predicted over measured bytes by rank."""
    plan = run([*case, "job=plan"], folder / "plan")
    predictions = plan["layouts"]["chosen"]["memory_per_rank"]
    run_keys = ["trainer.progress_bar=false", "trainer.check_val_every_n_epoch=1", f"trainer.max_epochs={EPOCHS}"]
    run([*case, *run_keys], folder / "run")
    peaks = dict[int, int]()
    for line in (folder / "run" / "workers.jsonl").read_text(encoding="utf-8").splitlines():
        state = json.loads(line)
        peaks[state["rank"]] = state["memory"]  # the peak so far
    pairs = [(prediction, peaks[rank]) for rank, prediction in enumerate(predictions)]
    columns = "".join(
        f"{prediction / 2**20:>8.0f}{peak / 2**20:>8.0f}{prediction / peak - 1:>+7.0%}" for prediction, peak in pairs
    )
    print(f"  {columns}", flush=True)
    return [prediction / peak for prediction, peak in pairs]


def all_memory(graphs: dict[str, list[str]], options: argparse.Namespace) -> None:
    """Compares memory in all cases, and prints how many predictions are good."""
    ratios: list[float] = []
    for graph, model, workers, rows in itertools.product(graphs, options.models, options.workers, options.rows):
        print(f"{graph}, {model}, {workers} workers, input_rows={rows}: MiB predicted, measured, by rank", flush=True)
        case = [*graphs[graph], *MODELS[model], f"workers={workers}", f"threads={options.threads}", "comm=gloo"]
        with tempfile.TemporaryDirectory() as folder:
            ratios += compare_memory([*case, f"input_rows={rows}"], Path(folder))
    good = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
    print(f"memory: {good} of {len(ratios)} processes within 15 %, {min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}")


def main() -> None:
    """Compares all cases, and prints how many predictions and choices are good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--nodes", type=int, default=50_000, help="of sbm and rmat (default: 50000)")
    parser.add_argument("--edges", type=int, default=1_000_000, help="of sbm and rmat (default: 1000000)")
    parser.add_argument("--width", type=int, default=128, help="features of a node of sbm and rmat (default: 128)")
    parser.add_argument("--layouts", type=int, default=6, help="that are run, the best by prediction (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="of each rank (default: 1)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each layout, by turns (default: 2)")
    parser.add_argument("--cpu", action="store_true", help="seconds of the processor in place of the clock's")
    parser.add_argument("--memory", action="store_true", help="by rank, in place of layouts")
    parser.add_argument("--data", nargs="+", default=[], help="of --memory: further graphs, as .npz files")
    parser.add_argument("--rows", nargs="+", default=["auto"], help="of --memory: input_rows (default: auto)")
    parser.add_argument("--quick", action="store_true", help="a small graph, to see that the script works")
    options = parser.parse_args()
    if options.quick:
        options.graphs, options.models, options.workers, options.layouts = ["sbm"], ["gcn"], [2], 2
        options.nodes, options.edges, options.repeats = 2_000, 10_000, 1
    ratios: list[tuple[float, float]] = []
    choices: list[float] = []
    sizes = [f"dataset.num_nodes={options.nodes}", f"dataset.num_edges={options.edges // 2}"]
    sizes += [f"dataset.width={options.width}"]
    graphs = {graph: [*GRAPHS[graph], *(sizes if graph != "pystdlib" else [])] for graph in options.graphs}
    if options.memory:
        all_memory(graphs | {path: ["dataset=npz", f"dataset.root={path}"] for path in options.data}, options)
        return
    for graph, data in graphs.items():
        for model in options.models:
            for workers in options.workers:
                print(f"{graph}, {model}, {workers} workers", flush=True)
                print(
                    f"  {'layout':<26}{'predicted':>10}{'seconds':>10}{'error':>9}{'predicted':>10}{'MiB':>10}{'error':>9}"
                )
                case = [*data, *MODELS[model], f"workers={workers}", f"threads={options.threads}"]
                with tempfile.TemporaryDirectory() as folder:
                    cpu = functools.partial(_measure_cpu, workers)
                    way = cpu if options.cpu else measure
                    new_ratios, choice = compare(case, options.layouts, Path(folder), way, options.repeats)
                ratios += new_ratios
                choices.append(choice)
    for place, quantity in enumerate(("seconds", "memory")):
        errors = [abs(ratio[place] - 1) for ratio in ratios]
        good = sum(error <= 0.25 for error in errors)
        print(
            f"{quantity}: {good} of {len(errors)} predictions within 25 %, median error {statistics.median(errors):.0%}"
        )
    print(f"auto: {sum(choice <= GOOD for choice in choices)} of {len(choices)} choices within 10 % of the fastest")
    print(f"  seconds of the choice over those of the fastest: {', '.join(f'{choice:.2f}' for choice in choices)}")


if __name__ == "__main__":
    main()
