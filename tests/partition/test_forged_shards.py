"""Forged shards of a stranger are refused in one line, and ask for no memory."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.errors import UserError
from gnnkit.partition.shard import Shard, uncut

ARRAYS = [
    "owned", "cell_nodes", "halo", "halo_cell", "partial", "partial_cell", "edge_ids", "in_degree", "out_degree",
    "looped", "labels", "split", "indptr", "indices",
]  # fmt: skip
SCALARS = ["rank", "num_nodes", "num_edges", "num_classes", "num_relations", "grid"]
OF_NODES = ["owned", "cell_nodes", "labels", "indices"]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "shard"
    uncut(check_graph()).save(folder)
    assert Shard.load(folder).num_nodes == check_graph().num_nodes
    return folder


@pytest.fixture
def folder(shard: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shard, tmp_path / "shard")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Lets this process take 4 GiB more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("forged", [np.arange(7.5), np.array(3), np.full((2, 2), 2**40), np.full(3, 2**40)])
def test_a_forged_array_is_refused(name: str, forged: np.ndarray[Any, Any], folder: Path) -> None:
    np.save(folder / f"{name}.npy", forged)
    with pytest.raises(UserError, match=str(folder)):
        Shard.load(folder)


@pytest.mark.parametrize("name", OF_NODES)
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1])
def test_a_forged_number_is_refused(name: str, value: int, folder: Path) -> None:
    array = np.load(folder / f"{name}.npy")
    array.reshape(-1)[0] = value
    np.save(folder / f"{name}.npy", array)
    with pytest.raises(UserError, match=str(folder)):
        Shard.load(folder)


@pytest.mark.parametrize("name", [*ARRAYS[:2], "halo", "labels", "indptr"])
def test_a_missing_array_is_named(name: str, folder: Path) -> None:
    (folder / f"{name}.npy").unlink()
    with pytest.raises(UserError, match=str(folder)):
        Shard.load(folder)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("value", [None, "x", -3, 2**62, 1.5, [1], {"rows": "x"}])
def test_a_forged_fact_is_refused(name: str, value: Any, folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    for forged in ({**meta, name: value}, {key: item for key, item in meta.items() if key != name}):
        (folder / "meta.json").write_text(json.dumps(forged))
        with pytest.raises(UserError, match=str(folder)):
            Shard.load(folder)


@pytest.mark.parametrize("value", ["x", -3, 2**62, [1], [-1, 31], [1.5, 28.5], [[30]], {"rows": "x"}])
def test_forged_sizes_of_node_types_are_refused(value: Any, folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "type_sizes": value}))
    with pytest.raises(UserError, match="type_sizes"):
        Shard.load(folder)
