"""Bytes, accuracy and time to accuracy of every way to exchange less.

    uv run python benchmarks/variants.py --data path/to/pubmed.npz --seeds 10
    sudo uv run python benchmarks/variants.py --links local shaped   # also over 1 Gb/s
    uv run --with matplotlib python benchmarks/variants.py   # also a plot, variants.svg
    uv run python benchmarks/variants.py --quick             # two variants, one seed

Prints a Markdown table, one row for each variant:

- bytes of rows that the busiest rank sends in an epoch (gradients are not counted)
- test accuracy of the model with the best validation accuracy, mean over seeds and its
  standard error
- points of accuracy more than `exact` has, and whether it loses at most 1
- for each link, mean seconds of an epoch, and seconds of training (no evaluations)
  until a validation reached 99 % of the best validation accuracy of the first row

Runs take turns, seed by seed, so that a busy machine is busy for all. Each is stored as
a line of `--store` when done. The same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runs import Figures, Measurements, main, markdown, mean, parse, seconds_to, shown, standard_error

REFERENCE = "exact"
TOLERANCE = 1.0  # points of accuracy
FULL = "strategy=vertex_centric"


def exchange(name: str, **keys: float | str) -> list[str]:
    """Returns the overrides of an exchange of rows."""
    return [FULL, f"exchange={name}", *(f"exchange.{key}={value}" for key, value in keys.items())]


def preset(name: str = "preset_workload", **keys: float | str) -> list[str]:
    """Returns the overrides of a preset workload."""
    return [f"strategy={name}", *(f"strategy.{key}={value}" for key, value in keys.items())]


# The published settings, for one's own runs of the papers' graphs:
# quantized    AdaQP (MLSys 2023): 2, 4 or 8 bits, chosen per group of 100 rows. Reddit:
#              GCN, 3 layers of 256, dropout 0.5, Adam, lr 0.01, 500 epochs.
# pipelined    PipeGCN (ICLR 2022): staleness 1, smoothing 0.95. Reddit: GraphSAGE, 4
#              layers of 256, dropout 0.5, Adam, lr 0.01, 3000 epochs, METIS.
# quantized+pipelined
#              PipeQS (ECML PKDD 2025): adapts bits and staleness. Here both are fixed.
# sampled      BNS-GCN (MLSys 2022): keep 0.1 and 0.01, as PipeGCN in all else.
# adaptive     Sancus (VLDB 2022): a block is sent again once it changed by a bound.
# local_iterations
#              local SGD with rows of the last exchange, K epochs to a superstep, the
#              last of which is a step of all workers from their mean.
# preset       PSGD-PA and LLCG (ICLR 2022): no halo, K local steps, then an average.
#              LLCG also corrects, and K grows. Here K is 4, and two steps correct. All
#              but psgd-pa have control variates (SCAFFOLD, ICML 2020).
#              clusters: Cluster-GCN (KDD 2019), on Reddit 20 of 1500 clusters a batch.
#              coverage: Grappa (2026), shares of two chunks that rotate.
# individual_sample
#              GraphSAGE (NeurIPS 2017): fanouts 25 and 10, batches of 512 seeds, here
#              128 for each of four workers.
VARIANTS: dict[str, list[str]] = {
    REFERENCE: [FULL],
    **{f"quantized, {bits} bits": exchange("quantized", bits=bits) for bits in (16, 8, 4, 2)},
    "pipelined": exchange("pipelined", staleness=1),
    "pipelined, smoothed": exchange("pipelined", staleness=1, **{"options.smoothing": 0.95}),
    "quantized+pipelined": exchange("quantized+pipelined", bits=8, staleness=1),
    **{f"sampled, keep {keep}": exchange("sampled", keep=keep) for keep in (0.1, 0.01)},
    "adaptive": exchange("adaptive"),
    **{f"local_iterations, {k}": [FULL, f"strategy.local_iterations={k}"] for k in (2, 4, 8, 16)},
    **{f"neighbour, {what}": [FULL, "sync=neighbour", f"sync.exchange={what}"] for what in ("gradients", "parameters")},
    **{f"server, {mode}": [FULL, "sync=parameter_server", f"sync.mode={mode}"] for mode in ("async", "ssp")},
    "preset": preset(),
    "preset, no halo": preset(halo="none"),
    "preset, clusters": preset("cluster"),
    "preset, averaged": preset(average="parameters", sync_every=4),
    "preset, averaged, no halo": preset(halo="none", average="parameters", sync_every=4),
    "preset, psgd-pa": preset(halo="none", average="parameters", sync_every=4, **{"options.control_variates": "false"}),
    "preset, llcg": preset("llcg", halo="none", sync_every=4),
    "preset, coverage": preset("coverage"),
    "preset, rows every 10 epochs": preset(exchange_every=10),
    "individual_sample": ["strategy=individual_sample", "sampler.fanouts=[25,10]", "strategy.batch_size=128"],
    "joint_sample": ["strategy=joint_sample", "sampler.fanouts=[25,10]", "strategy.batch_size=128"],
}


@dataclass(frozen=True)
class Summary:
    """A variant beside the reference, over all seeds."""

    megabytes: float  # an epoch
    accuracy: float  # percent
    error: float  # standard error of `accuracy`
    points: float | None  # more than the reference, None without one

    @classmethod
    def of(cls, runs: Sequence[Figures], reference: Sequence[Figures]) -> Summary:
        accuracy = [100 * run.test_accuracy for run in runs]
        exact = mean(reference, "test_accuracy", 100)
        points = None if exact is None else statistics.mean(accuracy) - exact
        return cls(
            mean(runs, "bytes_per_epoch", 1e-6) or 0.0, statistics.mean(accuracy), standard_error(accuracy), points
        )

    @property
    def within(self) -> str:
        return "-" if self.points is None else "yes" if self.points >= -TOLERANCE else "no"


def summaries(measurements: Measurements) -> dict[str, Summary]:
    """Returns a summary of each variant that has runs."""
    reference = measurements.of(REFERENCE)
    return {row: Summary.of(runs, reference) for row in measurements.rows if (runs := measurements.of(row))}


def show(measurements: Measurements, options: argparse.Namespace) -> None:
    """Prints the table, and draws the plot where matplotlib is installed."""
    goal = measurements.target
    head = ["variant", "MB an epoch", "test accuracy, %", "points", f"within {TOLERANCE}"]
    head += [f"{title}, {link}" for link in measurements.links for title in ("s an epoch", "s to accuracy")]
    lines = []
    for row, summary in summaries(measurements).items():
        points = "-" if summary.points is None else f"{summary.points:+.2f}"
        line = [
            row,
            f"{summary.megabytes:.3f}",
            f"{summary.accuracy:.2f} ± {summary.error:.2f}",
            points,
            summary.within,
        ]
        for link in measurements.links:
            runs = measurements.figures.get((row, link), ())
            line += [shown(mean(runs, "seconds_per_epoch"), 3), seconds_to(runs, goal)]
        lines.append(line)
    print(markdown(head, lines))
    print(f"\nTime is to a validation accuracy of {100 * goal:.2f} %. {options.seeds} seeds, {options.epochs} epochs.")
    try:
        plot(measurements, goal, options.store.with_suffix(".svg"))
    except ImportError:
        print("no matplotlib: no plot")


def plot(measurements: Measurements, goal: float, file: Path) -> None:
    """Draws a line for each variant: bytes, accuracy, and seconds on each link."""
    from matplotlib import pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    summary_by_row = summaries(measurements)
    times = {f"s to accuracy, {link}": _times(measurements, link, goal) for link in measurements.links}
    figure, axes = plt.subplots(
        1, 2 + len(times), sharey=True, figsize=(4 * (2 + len(times)), 1 + len(summary_by_row) / 3)
    )
    axes[0].scatter([summary.megabytes for summary in summary_by_row.values()], list(summary_by_row))
    axes[0].set_xscale("symlog", linthresh=0.001)
    axes[0].set_xlim(left=0)
    axes[0].set_xlabel("MB an epoch, busiest rank")
    axes[0].invert_yaxis()
    accuracy, errors = (
        [summary.accuracy for summary in summary_by_row.values()],
        [summary.error for summary in summary_by_row.values()],
    )
    axes[1].errorbar(accuracy, list(summary_by_row), xerr=errors, fmt="o")
    axes[1].set_xlabel("test accuracy, %")
    for panel, (label, seconds) in zip(axes[2:], times.items(), strict=True):
        panel.scatter(list(seconds.values()), list(seconds))  # no point: not reached
        panel.set_xlim(left=0)
        panel.set_xlabel(label)
    for panel in axes:
        panel.grid(axis="y")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    print(f"plot: {file}")


def _times(measurements: Measurements, link: str, goal: float) -> dict[str, float]:
    """Returns the mean seconds of the variants that reached the accuracy."""
    times = {}
    for row in measurements.rows:
        run_times = [run.seconds_to(goal) for run in measurements.figures.get((row, link), ())]
        if (seconds := [value for value in run_times if value is not None]) != []:
            times[row] = statistics.mean(seconds)
    return times


if __name__ == "__main__":
    parsed = parse(__doc__, Path("outputs/variants.jsonl"), VARIANTS, [REFERENCE, "local_iterations, 4"])
    sys.exit(main(show, *parsed))
