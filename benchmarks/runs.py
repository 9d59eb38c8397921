"""Runs of gnnkit for a table: one after the other, stored, and read from their folders.

Not a command. `variants.py` and `strategies.py` say what to run and what to show.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from csv import DictReader
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gnnkit_sweep import scheme_table
from link import Network, Shape, Unavailable, add_arguments, stop_in_order

import gnnkit

LOCAL = "loopback"  # ranks of this machine, with nothing between them
# Every run has these. `threads=1` is fair, because hosts of a link share the cores.
ALWAYS = [
    "threads=1",
    "trainer.monitor=val_accuracy",
    "trainer.checkpoint=false",
    "trainer.progress_bar=false",
    "trainer.log_every_n_steps=1000000",
]
# Neighbours tell the class only together: a GCN reaches about 80 %.
BLOCK_MODEL = ["dataset=synthetic", "dataset.in_block=0.5", "dataset.noise=8"]
Rows = Mapping[str, Sequence[str]]  # overrides by name of a row


class RunFailed(RuntimeError):
    """Raised for a command that did not end with 0."""


@dataclass(frozen=True)
class Figures:
    """The measurements of one run."""

    test_accuracy: float  # exact, of the model with the best validation accuracy
    bytes_per_epoch: int  # rows that the busiest worker sends. Gradients are not counted
    wire_bytes_per_epoch: float | None  # all that the busiest host sends: rows, gradients, evaluations. On a link
    seconds_per_epoch: float  # mean without the first epoch, of the slowest worker
    memory: int  # bytes, peak of the busiest worker
    curve: list[tuple[float, float]]  # seconds of training steps, validation accuracy

    @property
    def best(self) -> float:
        """The best validation accuracy."""
        return scheme_table.best(self.curve) or 0.0

    def seconds_to(self, accuracy: float) -> float | None:
        """Returns the seconds of training until a validation reached the accuracy."""
        return scheme_table.seconds_to(self.curve, accuracy)


@dataclass(frozen=True)
class Case:
    """One run: a row of the table, a seed and a link."""

    row: str
    link: str  # LOCAL, or what the network says of its shape
    overrides: tuple[str, ...]


class Store:
    """The runs that are done, a JSON line each."""

    def __init__(self, file: Path) -> None:
        self.file, self.done = file, dict[Case, Figures]()
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            read = json.loads(line)
            case = Case(read["row"], read["link"], tuple(read["overrides"]))
            figures = read["figures"]
            self.done[case] = Figures(**figures | {"curve": [(at, accuracy) for at, accuracy in figures["curve"]]})

    def add(self, case: Case, figures: Figures) -> None:
        self.done[case] = figures
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(case) | {"figures": asdict(figures)}) + "\n")


@dataclass(frozen=True)
class Measurements:
    """The figures of all seeds, by row and link."""

    rows: list[str]
    links: list[str]
    figures: Mapping[tuple[str, str], Sequence[Figures]]
    failed: int  # runs

    def of(self, row: str) -> list[Figures]:
        """Returns the runs of a row on the first link that has any."""
        return next((list(runs) for link in self.links if (runs := self.figures.get((row, link)))), [])

    @property
    def target(self) -> float:
        """The validation accuracy that time is measured to, from the first row."""
        return scheme_table.target(mean(self.of(self.rows[0]), "best") or 1.0)


def read_figures(folder: Path, wire_bytes: int | None) -> Figures:
    """Reads a run folder.

    Args:
        folder: The run folder.
        wire_bytes: Bytes that the busiest host sent in the whole run. None: unknown.
    """
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    states, epochs = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("workers.jsonl", "epochs.jsonl")
    )
    seconds_by_epoch = scheme_table.training_seconds(epochs)
    with (folder / "csv/metrics.csv").open(encoding="utf-8") as lines:
        accuracies = [(line["epoch"], line.get("val_accuracy")) for line in DictReader(lines)]
    return Figures(
        test_accuracy=result["test_accuracy"],
        bytes_per_epoch=result["bytes_sent"],
        wire_bytes_per_epoch=None if wire_bytes is None else wire_bytes / result["epochs"],
        seconds_per_epoch=(max(seconds_by_epoch.values()) - min(seconds_by_epoch.values()))
        / max(len(seconds_by_epoch) - 1, 1),
        memory=max(state["memory"] for state in states),
        curve=[(seconds_by_epoch[int(epoch)], float(accuracy)) for epoch, accuracy in accuracies if accuracy],
    )


def execute(overrides: Sequence[str], num_workers: int, network: Network | None) -> Figures:
    """Runs one command. Raises `RunFailed` with the last lines that it printed.

    Args:
        overrides: Of the command.
        num_workers: Number of workers.
        network: Where the ranks run, one to a host. None: on this machine.
    """
    with tempfile.TemporaryDirectory() as temporary, (Path(temporary) / "printed").open("w+") as log:
        folder = Path(temporary) / "run"
        command = [*overrides, f"workers={num_workers}", f"output={folder}", "report=false", "logger=csv"]
        before = network.sent() if network else []
        code = network.run(command, output=log) if network else _run_here(command, log)
        if code:
            log.seek(0)
            raise RunFailed("\n".join(log.read().splitlines()[-3:]))
        sent_bytes = [after - begin for after, begin in zip(network.sent(), before, strict=True)] if network else []
        return read_figures(folder, max(sent_bytes) if sent_bytes else None)


def _run_here(overrides: Sequence[str], log: IO[str]) -> int:
    if "comm=threads" in overrides:  # nothing is started, which saves most of the seconds of a short run
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            return _run_in_threads(overrides, log)
    command = [sys.executable, "-m", "gnnkit", *overrides]
    return subprocess.run(command, stdout=log, stderr=log, check=False).returncode


def _run_in_threads(overrides: Sequence[str], log: IO[str]) -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads of Python on two cores take twice the time
    try:
        gnnkit.train(overrides=overrides)
    except (gnnkit.UserError, RuntimeError) as error:
        print(error, file=log)
        return 1
    return 0


def measure(rows: Rows, options: argparse.Namespace) -> Measurements:
    """Runs all rows in turn, seed by seed, and on each link.

    So a machine that is busy for a while is busy for all rows. A run that the store
    holds is not repeated.

    Args:
        rows: Overrides by name of a row.
        options: As `parse` returns.
    """
    store, num_failures = Store(options.store), 0
    with contextlib.ExitStack() as stack:
        networks = {str(network.shape) if network else LOCAL: network for network in _networks(options, stack)}
        links = list(networks)
        cases = {
            (row, link, seed): Case(row, link, (*common(options), *rows[row], f"seed={seed}"))
            for seed in range(options.seeds)
            for row in rows
            for link in links
        }
        for number, ((row, link, seed), case) in enumerate(cases.items(), 1):
            if case in store.done:
                continue
            print(f"{number}/{len(cases)}: {row}, {link}, seed {seed}", end="", file=sys.stderr, flush=True)
            try:
                figures = execute(case.overrides, options.workers, networks[link])
            except RunFailed as error:
                num_failures += 1
                print(f": failed\n{error}", file=sys.stderr, flush=True)
                continue
            store.add(case, figures)
            print(f": {figures.test_accuracy:.4f}", file=sys.stderr, flush=True)
    figures_by_row: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for (row, link, _), case in cases.items():
        if case in store.done:
            figures_by_row[row, link].append(store.done[case])
    return Measurements(list(rows), links, figures_by_row, num_failures)


def _networks(options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Network | None]:
    """Makes the links, which stand until `stack` ends."""
    if "local" in options.links:
        yield None
    if "shaped" in options.links:
        network = stack.enter_context(Network(options.workers, Shape(options.gigabits, options.latency)))
        print(f"link: {network.shape}; measured {network.measure()}", file=sys.stderr, flush=True)
        yield network


def common(options: argparse.Namespace) -> list[str]:
    """Returns the overrides that all rows share."""
    if options.data:
        data = ["dataset=npz", f"dataset.root={options.data.absolute()}", f"dataset.row_normalize={not options.raw}"]
    else:
        data = [*BLOCK_MODEL, f"dataset.num_nodes={options.nodes}", f"dataset.num_edges={10 * options.nodes}"]
    trainer = [f"trainer.max_epochs={options.epochs}", f"trainer.check_val_every_n_epoch={options.every}"]
    if options.threads:
        data.append("comm=threads")
    return [*data, f"partition={options.partition}", f"model.hidden={options.hidden}", *trainer, *ALWAYS, *options.set]


def parse(doc: str | None, store: Path, rows: Rows, quick: Sequence[str]) -> tuple[argparse.Namespace, Rows]:
    """Reads the command line. Returns the options and the chosen rows.

    Args:
        doc: The help.
        store: Where runs are stored unless the options say otherwise.
        rows: Overrides by name of a row.
        quick: Rows of `--quick`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an .npz file as dataset=npz reads it (default: a block model)")
    parser.add_argument("--raw", action="store_true", help="features of --data as they are, rows not divided by sums")
    parser.add_argument("--nodes", type=int, default=20_000, help="of the block model (default: 20000)")
    parser.add_argument("--partition", default="1d", help="as gnnkit's key (default: 1d)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further overrides of all rows")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model (default: 64)")
    parser.add_argument("--epochs", type=int, default=100, help="of every run (default: 100)")
    parser.add_argument("--every", type=int, default=2, help="epochs between validations (default: 2)")
    parser.add_argument("--workers", type=int, default=4, help="default: 4")
    parser.add_argument("--threads", action="store_true", help="ranks are threads of this process: for accuracy only")
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    parser.add_argument("--only", nargs="+", choices=rows, metavar="ROW", help=f"of: {', '.join(rows)}")
    parser.add_argument("--links", nargs="+", choices=("local", "shaped"), default=["local"], help="default: local")
    parser.add_argument("--store", type=Path, default=store, help=f"runs that are done (default: {store})")
    parser.add_argument("--quick", action="store_true", help=f"a small graph, one seed, {' and '.join(quick)}")
    add_arguments(parser)
    options = parser.parse_args()
    if options.quick:
        small = {"nodes": 2000, "epochs": 4, "workers": 2, "seeds": 1, "only": options.only or quick}
        vars(options).update(small, store=Path(tempfile.mkdtemp()) / "runs.jsonl")
    return options, {row: rows[row] for row in options.only or rows}


def main(show: Any, options: argparse.Namespace, rows: Rows) -> int:
    """Measures, and calls `show(measurements, options)`. Returns the exit code.

    Args:
        show: Prints the table.
        options: As `parse` returns.
        rows: Overrides by name of a row.
    """
    stop_in_order()
    try:
        measurements = measure(rows, options)
    except Unavailable as error:
        print(f"error: --links shaped: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped: the same command goes on, with {options.store}", file=sys.stderr)
        return 130
    if measurements.figures:
        show(measurements, options)
    return 1 if measurements.failed else 0


def seconds_to(runs: Sequence[Figures], accuracy: float) -> str:
    """Returns the mean seconds to an accuracy, and in how many runs it was reached."""
    times = [seconds for run in runs if (seconds := run.seconds_to(accuracy)) is not None]
    if not times:
        return "not reached" if runs else "-"
    share_text = "" if len(times) == len(runs) else f" ({len(times)} of {len(runs)})"
    return f"{statistics.mean(times):.2f}{share_text}"


def mean(runs: Sequence[Figures], name: str, scale: float = 1.0) -> float | None:
    """Returns the mean of a figure over runs, or None where there is none.

    Args:
        runs: The runs.
        name: A field of `Figures`.
        scale: A factor. Default: 1.
    """
    values = [value for run in runs if (value := getattr(run, name)) is not None]
    return statistics.mean(values) * scale if values else None


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of the mean, 0 of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]

    def format_row(line: Sequence[str]) -> str:
        return "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([format_row(head), format_row(["-" * width for width in widths]), *map(format_row, lines)])
