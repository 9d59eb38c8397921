"""The speed gate: measures every pair of `benchmarks/` in one run.

Compares the ratios with `baseline.json`.

A pair is our kernel or epoch and a fixed reference (conftest.py). The ratio is the
least CPU time of ours over the least of the reference, so the machine's clock and other
processes count for little. A pair that looks slower is measured again. Exit code 1 if a
pair is slower than its baseline by more than the tolerance, or has none. To add a pair:
write a test that calls `against`, then `--update -k its_name`. Kernels are also counted
in instructions (instructions.py), which need no repetition.

On another kind of machine than the baseline's, ratios of kernels are not judged, but an
epoch's ratio to its own kernels is, and on the same architecture the instructions.

    uv run python benchmarks/compare.py                 # compare
    uv run python benchmarks/compare.py --update        # write baseline.json anew
    uv run python benchmarks/compare.py --self-test     # must find a slowdown of 2
    uv run python benchmarks/compare.py --full          # the goals' sizes, a table
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import instructions

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
ATTEMPTS = 3
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--strict-markers",
]
CPU_TIME = "--benchmark-timer=time.process_time"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What `baseline.json` holds, written at the commit that last changed a speed."""

    machine: str = ""  # kind of machine of the ratios
    ratios: Mapping[str, float] = field(default_factory=dict)  # by pair
    instructions: Mapping[str, int] = field(default_factory=dict)  # by model

    @classmethod
    def load(cls) -> Baseline:
        return cls(**json.loads(BASELINE.read_text())) if BASELINE.exists() else cls()

    def save(self) -> None:
        BASELINE.write_text(json.dumps(asdict(self), indent=1))

    def counts_on(self, machine: str) -> bool:
        """Whether instructions are those of this kind of machine."""
        return self.machine.partition(" ")[0] == machine.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Time:
    """The least seconds of a pair's two sides."""

    ours: float
    reference: float
    tolerance: float  # of the ratio, over the baseline's
    any_cpu: bool  # whether the baseline is that of any kind of machine

    @property
    def ratio(self) -> float:
        """Below 1: we are faster."""
        return self.ours / self.reference

    def least(self, again: Time) -> Time:
        """Of two measurements."""
        return replace(self, ours=min(self.ours, again.ours), reference=min(self.reference, again.reference))


@dataclass(frozen=True, slots=True)
class Report:
    """One run of pytest-benchmark."""

    machine: str  # kind of machine: a ratio depends on its registers and caches
    times: dict[str, Time]  # by the pair's name

    def least(self, report: Report) -> Report:
        """Of two measurements of the same pairs, or of some of them again."""
        again = {name: self.times[name].least(time) for name, time in report.times.items()}
        return Report(self.machine, self.times | again)


def measure(*options: str) -> Report:
    """Runs pytest on the pairs of `options`. Raises `SystemExit` if a test fails."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        command = [*PYTEST, f"--benchmark-json={file}", "--benchmark-quiet", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return read(json.loads(file.read_text()))


def read(report: Mapping[str, Any]) -> Report:
    """What pytest-benchmark wrote."""
    times = {test["fullname"]: Time(test["stats"]["min"], **test["extra_info"]) for test in report["benchmarks"]}
    return Report(report["machine_info"]["kind"], times)


def verdict(time: Time, baseline: float | None) -> str:
    """`ok`, `slower` or `new`."""
    if baseline is None:
        return "new"
    return "slower" if time.ratio > time.tolerance * baseline else "ok"


def failures(times: Mapping[str, Time], baseline: Mapping[str, float]) -> list[str]:
    """Pairs that are slower than their baseline or have none."""
    return [name for name, time in times.items() if verdict(time, baseline.get(name)) != "ok"]


def table(times: Mapping[str, Time], baseline: Mapping[str, float]) -> str:
    """One line a pair."""
    width = max((len(name) for name in times), default=4)
    lines = [f"{'pair':{width}}   ours ms   ref. ms  ratio  baseline  change"]
    for name, time in sorted(times.items()):
        line = f"{name:{width}} {time.ours * 1e3:9.3f} {time.reference * 1e3:9.3f} {time.ratio:6.3f}"
        if name in baseline:
            line += f" {baseline[name]:9.3f} {time.ratio / baseline[name] - 1:+7.0%}  {verdict(time, baseline[name])}"
        lines.append(line)
    return "\n".join(lines)


def gate(selection: str, baseline: Mapping[str, float]) -> Report:
    """Measures the pairs of `selection`.

    Pairs that fail are measured again, and the least times count.
    """
    report = measure(CPU_TIME, "-m", "not full", "-k", selection, "benchmarks")
    for _ in range(ATTEMPTS - 1):
        slow = [name for name in failures(report.times, baseline) if name in baseline]
        if slow:
            report = report.least(measure(CPU_TIME, *slow))
    return report


def update(selection: str, baseline: Baseline) -> int:
    """Measures as often as the gate may, and writes ratios and counts."""
    reports = [measure(CPU_TIME, "-m", "not full", "-k", selection, "benchmarks") for _ in range(ATTEMPTS)]
    report = functools.reduce(Report.least, reports)
    ratios = {name: round(time.ratio, 4) for name, time in report.times.items()}
    old_ratios = baseline.ratios if selection else {}
    counts = counted(selection) or baseline.instructions
    Baseline(report.machine, dict(sorted((old_ratios | ratios).items())), counts).save()
    print(table(report.times, baseline.ratios))
    return 0


def counted(selection: str, repeat: int = 1) -> dict[str, int]:
    """Counts the instructions of epochs, where the selection names epochs or nothing.

    Args:
        selection: As in pytest.
        repeat: Does the kernels so many times.
    """
    return instructions.count(repeat) if selection in ("", "epoch") else {}


def too_many(counts: Mapping[str, int], baseline: Mapping[str, int]) -> list[str]:
    """Models with more instructions than the baseline allows, or without a baseline."""
    return [name for name, count in counts.items() if count > instructions.TOLERANCE * baseline.get(name, 0)]


def print_counts(counts: Mapping[str, int], baseline: Mapping[str, int]) -> None:
    """Prints a line for each model."""
    for name, count in counts.items():
        change = f"{count / baseline[name] - 1:+.1%}" if name in baseline else "new"
        print(f"kernels of an epoch of {name}: {count / 1e6:.3f} million instructions, {change}")


def compare(selection: str, baseline: Baseline) -> int:
    """Prints the tables. Returns 1 if a pair or a count fails.

    Most ratios mean little on another kind of machine than the baseline's.
    """
    report = gate(selection, baseline.ratios)
    print(table(report.times, baseline.ratios))
    counts, times = counted(selection), report.times
    if too_many(counts, baseline.instructions):
        again = counted(selection)
        counts = {name: min(count, again[name]) for name, count in counts.items()}
    print_counts(counts, baseline.instructions)
    if not counts and selection in ("", "epoch"):
        print("Instructions are not counted: there is no valgrind.")
    if report.machine != baseline.machine:
        print(f"The baseline is of {baseline.machine}, this is {report.machine}: most pairs are not judged.")
        times = {name: time for name, time in times.items() if time.any_cpu}
    slower = failures(times, baseline.ratios)
    for name in slower:
        print(f"{verdict(report.times[name], baseline.ratios.get(name))}: {name}")
    counted_names = too_many(counts, baseline.instructions) if baseline.counts_on(report.machine) else []
    for name in counted_names:
        print(f"slower: kernels of {name}, by instructions")
    return 1 if slower or counted_names else 0


def self_test(selection: str, baseline: Baseline) -> int:
    """Does our part of everything twice: 1 if the gate lets any of them pass."""
    report = measure(CPU_TIME, "--repeat=2", "-m", "not full", "-k", selection, "benchmarks")
    print(table(report.times, baseline.ratios))
    counts = counted(selection, repeat=2)
    print_counts(counts, baseline.instructions)
    num_reported = len(failures(report.times, baseline.ratios)) + len(too_many(counts, baseline.instructions))
    num_planted = len(report.times) + len(counts)
    print(f"{num_reported} of {num_planted} planted slowdowns found")
    return 1 if num_reported < num_planted else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write baseline.json anew")
    parser.add_argument("--self-test", action="store_true", help="see whether a slowdown of 2 is found")
    parser.add_argument("--full", action="store_true", help="show the goals' sizes instead")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only pairs whose names match, as in pytest")
    options = parser.parse_args()
    if options.full:
        print(table(measure("-m", "full", "-k", options.k, "benchmarks").times, {}))
        return 0
    baseline = Baseline.load()
    if options.update:
        return update(options.k, baseline)
    return self_test(options.k, baseline) if options.self_test else compare(options.k, baseline)


if __name__ == "__main__":
    sys.exit(main())
