"""The sampler, whose extension module is built against the core's crate first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.testing import check_sampler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test waits for the build
FOLDER = Path(__file__).resolve().parents[2]
BUILD = ["cargo", "build", "--release", "--manifest-path", str(FOLDER / "Cargo.toml")]


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds the extension module, and imports it as the package's."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    target = os.environ.get("CARGO_TARGET_DIR", str(FOLDER.parents[1] / "target"))
    subprocess.run(BUILD, check=True, env={**os.environ, "CARGO_TARGET_DIR": target})
    file = tmp_path_factory.mktemp("built") / "_law.abi3.so"
    shutil.copy(Path(target) / "release/lib_law.so", file)
    spec = importlib.util.spec_from_file_location("gnnkit_top_k._law", file)
    assert spec is not None
    assert spec.loader is not None
    import gnnkit_top_k

    gnnkit_top_k._law = importlib.util.module_from_spec(spec)  # type: ignore[attr-defined]
    sys.modules["gnnkit_top_k._law"] = gnnkit_top_k._law  # type: ignore[attr-defined]
    spec.loader.exec_module(gnnkit_top_k._law)  # type: ignore[attr-defined]


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

    batches = [check_sampler(TopKSampler(fanouts, threads), graph(), np.arange(20)) for threads in (1, 3)]
    for one, other in zip(batches[0].blocks, batches[1].blocks, strict=True):
        np.testing.assert_array_equal(one.edge_ids, other.edge_ids)


def test_a_negative_weight_is_refused_with_its_position() -> None:
    from gnnkit_top_k import TopKSampler

    csc = CSC(np.array([0, 2, 2]), np.array([0, 1]), np.array([1.0, -2.0]))
    with pytest.raises(UserError, match=r"weight\[1\] = -2 is not a finite number of at least 0"):
        TopKSampler([1]).draw(csc, np.array([0]), 0, key=0)


def test_a_run_trains_with_the_sampler_by_its_name(tmp_path: Path) -> None:
    from gnnkit.__main__ import main

    if importlib.util.find_spec("gnnkit_top_k") is None or not _is_installed():
        pytest.skip("needs the installed package: pip install plugins/gnnkit-top-k")
    keys = ["sampler=top_k", "dataset=synthetic", "dataset.num_nodes=200", "workers=2", "comm=threads", "cache=false"]
    assert main(["strategy=individual_sample", *keys, "trainer.max_epochs=1", f"output={tmp_path}/run"]) == 0


def _is_installed() -> bool:
    from gnnkit import plugins

    return "top_k" in plugins.names("sampler")
