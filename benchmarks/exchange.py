"""Milliseconds of an exchange between the ranks of one host.

    uv run python benchmarks/exchange.py [--ranks N] [--width N] [--quick]

Each rank sends rows of float32 to each other rank. `gloo` is torch's
`all_to_all_single` over TCP, of rows that were gathered before. The ways take turns
within one run, and a barrier stands before each turn. Given are medians on rank 0.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.comm.process import ProcessGroup
from gnnkit.launch.processes import launch


class Gloo(ProcessGroup):
    """The ranks as torch connects them."""

    backend = "gloo"


def ways_of(comm: Communicator, gloo: Communicator, num_rows: int, width: int) -> dict[str, Callable[[], None]]:
    """Returns the ways to exchange rows, by name."""
    counts = [0 if peer == comm.rank else num_rows for peer in range(comm.world_size)]
    source = torch.randn(num_rows * comm.world_size, width)
    index = torch.randint(len(source), (sum(counts),)).sort().values
    rows = source[index]

    def borrow() -> None:
        with comm.start(source, counts, counts, index=index).borrow():
            pass

    return {
        "gloo": lambda: void(gloo.all_to_all(rows, counts, counts)),
        "gather, gloo": lambda: void(gloo.all_to_all(source[index], counts, counts)),
        "start, wait": lambda: void(comm.start(rows, counts, counts).wait()),
        "start with index, wait": lambda: void(comm.start(source, counts, counts, index=index).wait()),
        "start with index, borrow": borrow,
    }


def void(_: torch.Tensor) -> None:
    """Lets go of rows."""


def measure(comm: Communicator, ways: dict[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Returns the median milliseconds of each way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            comm.all_reduce(torch.zeros(1))
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=128, help="numbers of a row")
    parser.add_argument("--quick", action="store_true", help="few turns")
    options = parser.parse_args()

    def rank(rank: int, world_size: int) -> dict[str, Any]:
        from gnnkit.comm.process import Gloo as Shared

        torch.set_num_threads(1)
        comm = Shared.connect(rank, world_size, device=torch.device("cpu"), timeout=60)
        assert isinstance(comm, Shared)
        gloo = Gloo(comm.split(range(world_size)).group, comm.device, comm.timeout)
        results = {
            str(num_rows): measure(comm, ways_of(comm, gloo, num_rows, options.width), 5 if options.quick else turns)
            for num_rows, turns in ((1, 200), (100, 200), (5_000, 50), (50_000, 25))
        }
        comm.close()
        return results

    results = launch(rank, options.ranks)[0]
    print(f"{'rows for each rank':26}" + "".join(f"{int(num_rows):>10,}" for num_rows in results))
    for name in next(iter(results.values())):
        print(f"{name:26}" + "".join(f"{times[name]:10.3f}" for times in results.values()))


if __name__ == "__main__":
    main()
