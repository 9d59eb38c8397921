"""Memory, descriptors and folder of a run with many epochs.

Trains on a small graph, and prints at each tenth of the epochs the resident memory and
the open files of every process, and the bytes of the run folder and its largest files.
Ends with 1 if the run fails, or a process grows by more than `--growth` kB per epoch
after the first tenth.

    uv run python benchmarks/soak.py --epochs 10000
    uv run python benchmarks/soak.py --epochs 1000 model=gat workers=3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

GRAPH = ["dataset=synthetic", "dataset.num_nodes=200", "dataset.num_edges=800", "threads=1"]
RUN = ["strategy=vertex_centric", "workers=2", "report=false", "trainer.progress_bar=false"]
LARGE = 20_000  # bytes of a file that is named


def processes(pid: int) -> Iterator[int]:
    """Yields a process and all its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from processes(int(child))


def usage(pid: int) -> tuple[int, int]:
    """Returns the resident kB and the open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    memory = next(line for line in status if line.startswith("VmRSS"))
    return int(memory.split()[1]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def epochs_done(folder: Path) -> int:
    """Counts the epochs, some of which have a second line with figures."""
    try:
        return len({json.loads(line)["epoch"] for line in (folder / "epochs.jsonl").open() if line.endswith("\n")})
    except FileNotFoundError:
        return 0


def report(epochs: int, pid: int, folder: Path) -> dict[int, int]:
    """Prints a line. Returns the resident kB by process."""
    usages = {}
    for process in processes(pid):
        try:
            usages[process] = usage(process)
        except (OSError, StopIteration):
            continue  # it has just ended
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    large = {name: size for name, size in sizes.items() if size > LARGE}
    print(f"{epochs} epochs; kB and files: {[*usages.values()]}; folder {sum(sizes.values())} {large}", flush=True)
    return {process: memory for process, (memory, _) in usages.items()}


def soak(epochs: int, growth: float, overrides: list[str], folder: Path) -> bool:
    """Trains, and returns whether the run completed without growing."""
    command = [sys.executable, "-m", "gnnkit", *GRAPH, *RUN, f"trainer.max_epochs={epochs}", *overrides]
    with (folder / "log").open("w") as log:
        run = subprocess.Popen([*command, f"output={folder / 'run'}"], stdout=log, stderr=subprocess.STDOUT)
        first: dict[int, int] = {}
        step, last = max(epochs // 10, 1), first
        due = step
        while run.poll() is None:
            time.sleep(1)
            if (done := epochs_done(folder / "run")) >= due and done < epochs:
                last = report(done, run.pid, folder / "run")
                first = first or last
                due = (done // step + 1) * step
    grown = {pid: (last[pid] - first[pid]) / epochs for pid in first if pid in last}
    print(f"exit code {run.returncode}, {epochs_done(folder / 'run')} epochs; growth in kB per epoch: {grown}")
    return run.returncode == 0 and bool(grown) and max(grown.values()) <= growth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--growth", type=float, default=0.5, help="kB per epoch and process that are allowed")
    options, overrides = parser.parse_known_args()
    with TemporaryDirectory() as folder:
        sys.exit(not soak(options.epochs, options.growth, overrides, Path(folder)))


if __name__ == "__main__":
    main()
