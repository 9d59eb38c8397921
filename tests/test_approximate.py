"""Every approximate training scheme says so, and no exact one does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gnnkit.config.settings import settle
from tests.cases import few
from tests.runs import compose_once


def _variants() -> dict[str, list[str]]:
    """Returns the overrides of each training scheme that the benchmark measures."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # scripts of one folder import each other
        actual: dict[str, list[str]] = runpy.run_path(str(folder / "variants.py"))["VARIANTS"]
    return actual


def lines(overrides: list[str]) -> list[str]:
    settings = settle(compose_once(["workers=4", *overrides]))
    parts = (settings.create_strategy(), settings.sync.create())
    return [line for part in parts for line in part.costs().splitlines()]


VARIANTS = _variants()
BY_DEFAULT = [  # one of each part that makes training approximate
    *("quantized, 8 bits", "quantized+pipelined", "sampled, keep 0.1", "adaptive"),
    *("local_iterations, 2", "neighbour, parameters", "server, async", "preset", "preset, clusters"),
    *("preset, psgd-pa", "preset, llcg", "preset, coverage", "preset, rows every 10 epochs"),
    "individual_sample",
]


@pytest.mark.slow
@few(
    "name,overrides",
    [pytest.param(name, overrides, id=name) for name, overrides in VARIANTS.items()],
    default=BY_DEFAULT,
)
def test_each_approximate_scheme_says_so_and_promises_no_figure(name: str, overrides: list[str]) -> None:
    text = lines(overrides)
    assert len(text) == (0 if name == "exact" else 2 if name == "quantized+pipelined" else 1)
    for line in text:
        key, _, remainder = line.partition(": ")
        assert remainder.startswith("training is approximate, because ")
        assert "=" in key or key == "sync.average"
        assert "point" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=vertex_centric"],
        ["strategy=vertex_centric", "exchange=quantized", "exchange.bits=32"],
        ["strategy=vertex_centric", "exchange=sampled", "exchange.keep=1"],
        ["strategy=vertex_centric", "exchange=pipelined", "exchange.staleness=0"],
        ["strategy=vertex_centric", "exchange=adaptive", "exchange.variation=0"],
        ["strategy=vertex_centric", "strategy.local_iterations=1"],
        ["strategy=vertex_centric", "sync=leader"],
        ["strategy=vertex_centric", "sync=parameter_server", "sync.mode=ssp", "sync.staleness=0"],
        ["strategy=preset_workload", "strategy.exchange_every=1"],
    ],
    ids=str,
)
def test_exact_schemes_say_nothing(overrides: list[str]) -> None:
    assert lines(overrides) == []


def test_other_combinations_of_gradients_are_approximate() -> None:
    (line,) = lines(["strategy=vertex_centric", "sync=leader", "sync.average=median"])
    assert line.startswith("sync.average: training is approximate")
