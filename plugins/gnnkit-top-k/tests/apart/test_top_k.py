"""The sampler, whose extension module is built against the core's crate first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.testing import check_sampler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test waits for the build
FOLDER = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Builds the wheel, and puts its files on the path, as an installation does."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    target = os.environ.get("CARGO_TARGET_DIR", str(FOLDER.parents[1] / "target"))
    build = [sys.executable, "-m", "maturin", "build", "--release", "--out", str(wheels)]
    subprocess.run(build, cwd=FOLDER, check=True, env={**os.environ, "CARGO_TARGET_DIR": target})
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield site


def graph(dtype: Any = np.int32, weight: Any = np.float32, num_nodes: int = 300) -> CSC:
    """Returns a graph with parallel edges, isolated nodes and equal weights."""
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], rng.integers(0, 40, num_nodes).cumsum()])
    indices = rng.integers(0, num_nodes, indptr[-1]).astype(dtype)
    return CSC(indptr, indices, None if weight is None else rng.integers(0, 9, len(indices)).astype(weight))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weight", [np.float32, np.float64, None])
def test_each_node_draws_its_heaviest_edges(dtype: Any, weight: Any) -> None:
    from gnnkit_top_k import TopKSampler

    csc, nodes = graph(dtype, weight), np.arange(300)[::-1]
    hop = TopKSampler([5]).draw(csc, nodes, 0, key=0)
    assert hop.edge_ids is not None
    weights = np.ones(csc.num_edges) if csc.weight is None else csc.weight
    for at, node in enumerate(nodes):
        first, last = csc.indptr[node : node + 2]
        expected = first + np.sort(np.argsort(-weights[first:last], kind="stable")[:5])
        np.testing.assert_array_equal(hop.edge_ids[hop.indptr[at] : hop.indptr[at + 1]], expected)
    np.testing.assert_array_equal(hop.sources, csc.indices[hop.edge_ids])


@pytest.mark.parametrize("fanouts", [[3, 3], [4, -1], [0, 2]])
def test_the_sampler_keeps_the_contract_on_any_number_of_threads(fanouts: list[int]) -> None:
    from gnnkit_top_k import TopKSampler

    samplers = (TopKSampler(fanouts, threads) for threads in (1, 3))
    batches = [check_sampler(sampler, graph(), np.arange(20), deterministic=True) for sampler in samplers]
    for one, other in zip(batches[0].blocks, batches[1].blocks, strict=True):
        np.testing.assert_array_equal(one.edge_ids, other.edge_ids)


def test_a_negative_weight_is_refused_with_its_position() -> None:
    from gnnkit_top_k import TopKSampler

    csc = CSC(np.array([0, 2, 2]), np.array([0, 1]), np.array([1.0, -2.0]))
    with pytest.raises(UserError, match=r"weight\[1\] = -2 is not a finite number of at least 0"):
        TopKSampler([1]).draw(csc, np.array([0]), 0, key=0)


@pytest.mark.parametrize("strategy", ["individual_sample", "joint_sample"])
def test_a_run_trains_with_the_sampler_by_its_name(strategy: str, site: Path, tmp_path: Path) -> None:
    keys = ["sampler=top_k", "dataset=synthetic", "dataset.num_nodes=200", "workers=2", "comm=threads", "cache=false"]
    command = [sys.executable, "-m", "gnnkit", f"strategy={strategy}", *keys, "trainer.max_epochs=1"]
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    subprocess.run([*command, "output=run"], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": path})
    assert "top_k" in (tmp_path / "run/config.yaml").read_text(encoding="utf-8")
