"""Graphs, and the one way to measure: ours against a fixed reference, in turn.

A test that calls `against(ours, reference)` is a pair, named in `baseline.json`.
`compare.py` runs all pairs but the ones marked `full`, which have the goals' sizes and
take minutes. `uv run python benchmarks/compare.py --full` runs these, and
`uv run pytest benchmarks -o addopts=` shows pytest-benchmark's own tables.
"""

from __future__ import annotations

import functools
import pkgutil
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

Call = Callable[[], object]
KERNEL = 1.4  # honest ratios moved by up to a fifth on a machine with seven times more work than cores
EPOCH = 1.15  # both sides are made of the same passes, so ratios move less


class Against(Protocol):
    def __call__(
        self, ours: Call, reference: Call, *, rounds: int = 20, tolerance: float = KERNEL, any_cpu: bool = False
    ) -> None: ...


class Edges(NamedTuple):
    indptr: npt.NDArray[np.int64]  # [num_nodes + 1]
    indices: npt.NDArray[np.int64]  # [num_edges] ascending for each destination

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def targets(self) -> npt.NDArray[np.int64]:  # [num_edges]
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, help="do our part so many times: a planted slowdown")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: of the size that the goals are about")


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info["kind"] = " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *processor()])


def processor() -> list[str]:
    """Maker, family and model: caches differ, and with them the ratios of kernels."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    values = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = ("vendor_id", "cpu family", "model")
    return [values[name].strip("\t: ") for name in names if name in values]


@pytest.fixture
def against(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Against:
    """Times `ours` and `reference` in turn, and notes the least time of each.

    A machine that is busy slows both. The gate allows the ratio `tolerance` times the
    baseline. With `any_cpu` the ratio is that of the baseline on any kind of machine.
    """
    timer = pkgutil.resolve_name(request.config.getoption("benchmark_timer"))
    repeat = request.config.getoption("repeat")

    def measure(
        ours: Call, reference: Call, *, rounds: int = 20, tolerance: float = KERNEL, any_cpu: bool = False
    ) -> None:
        times = []

        def time_reference() -> None:
            start = timer()
            reference()
            times.append(timer() - start)

        def time_ours() -> None:
            for _ in range(repeat):
                ours()

        benchmark.pedantic(time_ours, setup=time_reference, rounds=rounds, warmup_rounds=1)
        benchmark.extra_info.update(reference=min(times), tolerance=tolerance, any_cpu=any_cpu)

    return measure


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def edges() -> Callable[[str, int, int], Edges]:
    """Gives `edges(kind, num_nodes, num_edges)` with kind `sbm` or `rmat`.

    Ids are shuffled. Parallel edges are kept.
    """
    return functools.cache(make_edges)


def make_edges(kind: str, num_nodes: int, num_edges: int) -> Edges:
    rng = np.random.default_rng(0)
    src, dst = {"sbm": stochastic_blocks, "rmat": rmat}[kind](num_nodes, num_edges, rng)
    order = np.lexsort((src, dst))
    return Edges(np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=num_nodes))]), src[order])


def stochastic_blocks(num_nodes: int, num_edges: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Sixteen blocks; nine edges in ten stay inside of their block."""
    label = rng.permutation(num_nodes)  # label i is in block i * 16 // num_nodes
    size = num_nodes // 16
    src = rng.integers(0, size * 16, num_edges)
    near = src - src % size + rng.integers(0, size, num_edges)
    dst = np.where(rng.random(num_edges) < 0.9, near, rng.integers(0, num_nodes, num_edges))
    return label[src], label[dst]


def rmat(num_nodes: int, num_edges: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draws R-MAT (Chakrabarti et al., SDM 2004) with Graph500's probabilities."""
    levels = int(np.ceil(np.log2(num_nodes)))
    src, dst = np.zeros(num_edges, dtype=np.int64), np.zeros(num_edges, dtype=np.int64)
    for _ in range(levels):
        draw = rng.random(num_edges)
        src = 2 * src + (draw >= 0.76)
        dst = 2 * dst + (((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95))
    label = rng.permutation(2**levels) % num_nodes
    return label[src], label[dst]
