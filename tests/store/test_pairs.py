"""What a store knows of pairs of parts comes back, and is not in the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.partition.store.manifest import FILE, PARTS, Manifest
from gnnkit.partition.store.pairs import PAIRS, with_pairs, without_pairs
from tests.cases import exhaustive
from tests.runs import within_process

CUT = ["job=partition", "strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=200", "cache=false"]


def store(folder: Path, workers: int, partition: str = "1d") -> Manifest:
    with within_process():
        assert main([*CUT, f"partition={partition}", f"workers={workers}", f"output={folder}"]) == 0
    return Manifest.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "partition"), [(5, "1d"), exhaustive((8, "3d")), (1, "1d")])
def test_pairs_come_back_as_they_were_measured(tmp_path: Path, workers: int, partition: str) -> None:
    lean = store(tmp_path, workers, partition)
    actual = with_pairs(lean, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert actual.quality["peers"] == result["peers"]
    assert actual.coordination["peers"] == result["peers"]
    assert actual.coordination["regions"] == result["regions"]
    assert len(actual.picture["edges"]) == workers
    assert sum(map(sum, actual.picture["edges"])) == actual.picture["counted_edges"]
    assert [len(peers) for peers in actual.prepared["peers"]] == [workers - 1] * workers  # a random graph
    assert without_pairs(actual, tmp_path / "again") == lean


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_manifest_grows_with_the_parts_and_not_with_their_pairs(tmp_path: Path) -> None:
    sizes = {}
    for workers in (3, 6, 12):
        store(tmp_path / str(workers), workers)
        sizes[workers] = (tmp_path / str(workers) / FILE).stat().st_size
    assert (sizes[12] - sizes[6]) / 6 < 1.2 * (sizes[6] - sizes[3]) / 3


@pytest.mark.slow
def test_damaged_pairs_are_named(tmp_path: Path) -> None:
    manifest = store(tmp_path, 2)
    path = tmp_path / PARTS / PAIRS / "1.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"the store is damaged, parts/pairs/1.npy"):
        with_pairs(manifest, tmp_path)
