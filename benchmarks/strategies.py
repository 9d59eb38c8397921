"""The four strategies on one graph: traffic, memory, time to accuracy, accuracy.

    uv run python benchmarks/strategies.py --data path/to/coauthor_cs.npz --raw
    uv run python benchmarks/strategies.py --nodes 200000 --epochs 50
    sudo uv run python benchmarks/strategies.py --links local shaped  # also over 1 Gb/s
    uv run python benchmarks/strategies.py --quick

Two comparisons that users ask for. A preset workload, whose workers exchange no rows in
an epoch and meet at a parameter server, against full-graph training with a leader:

    uv run python benchmarks/strategies.py \\
        --only "vertex_centric, leader" "preset_workload, server"

Mini-batches against the full graph, by time to accuracy:

    uv run python benchmarks/strategies.py --only vertex_centric individual_sample

Prints a Markdown table, means over seeds:

- MB of rows that the busiest worker sends in an epoch. Gradients are not counted
- MB an epoch that the busiest host sends, gradients and evaluations included, as the
  network card counts (with `--links shaped` only)
- peak memory of the busiest worker: the resident set, pages of mapped files and about
  0.5 GB of libraries included, so differences show on graphs of hundreds of MB
- for each link, seconds of an epoch, and seconds of training (no evaluations) until a
  validation reached 99 % of the best validation accuracy of the table's first row
- test accuracy of the model with the best validation accuracy

Runs take turns, and are stored when done. The same command goes on with `--store`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runs import Measurements, main, markdown, mean, parse, seconds_to, shown

FULL = "strategy=vertex_centric"
STRATEGIES: dict[str, list[str]] = {
    "vertex_centric": [FULL],
    "vertex_centric, leader": [FULL, "sync=leader"],
    "preset_workload": ["strategy=preset_workload"],
    "preset_workload, server": ["strategy=preset_workload", "sync=parameter_server"],
    "individual_sample": ["strategy=individual_sample", "sampler.fanouts=[15,10]", "strategy.batch_size=128"],
    "joint_sample": ["strategy=joint_sample", "sampler.fanouts=[15,10]", "strategy.batch_size=128"],
}


def show(measurements: Measurements, options: argparse.Namespace) -> None:
    """Prints the table."""
    head = ["strategy", "MB of rows", "MB in all", "memory, MB"]
    head += [f"{title}, {link}" for link in measurements.links for title in ("s an epoch", "s to accuracy")]
    lines = [line(measurements, row) for row in measurements.rows if measurements.of(row)]
    print(markdown([*head, "test accuracy, %"], lines))
    print(f"\nTime is to a validation accuracy of {100 * measurements.target:.2f} %. {options.seeds} seeds.")


def line(measurements: Measurements, row: str) -> list[str]:
    """Returns the cells of a row."""
    runs = measurements.of(row)
    link_runs = [run for link in measurements.links for run in measurements.figures.get((row, link), ())]
    cells = [
        row,
        shown(mean(runs, "bytes_per_epoch", 1e-6), 3),
        shown(mean(link_runs, "wire_bytes_per_epoch", 1e-6), 3),
    ]
    cells.append(shown(mean(runs, "memory", 1e-6), 0))
    for link in measurements.links:
        runs_on_link = measurements.figures.get((row, link), ())
        cells += [shown(mean(runs_on_link, "seconds_per_epoch"), 3), seconds_to(runs_on_link, measurements.target)]
    return [*cells, shown(mean(runs, "test_accuracy", 100), 2)]


if __name__ == "__main__":
    quick = ["vertex_centric", "individual_sample"]
    parsed = parse(__doc__, Path("outputs/strategies.jsonl"), STRATEGIES, quick)
    sys.exit(main(show, *parsed))
