"""What gnnkit does with stores where this package is not installed."""

from __future__ import annotations

from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

import gnnkit
from gnnkit import plugins
from gnnkit.errors import UserError
from tests.runs import BARE


@pytest.mark.slow
def test_a_store_is_read_without_the_package_and_partitioned_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = plugins._points

    def others(kind: str) -> EntryPoints:
        return EntryPoints(point for point in points(kind) if point.dist is None or point.dist.name != "gnnkit-import")

    monkeypatch.setattr(plugins, "_points", others)
    data = {"name": "synthetic", "num_nodes": 60}
    gnnkit.train(job="partition", dataset=data, strategy="individual_sample", workers=1, folder=tmp_path / "store")
    store = {"name": "store", "root": str(tmp_path / "store")}
    result = gnnkit.train(dataset=store, strategy="individual_sample", trainer={"max_epochs": 1}, cache=False, **BARE)
    assert result["train_loss"] > 0
    with pytest.raises(UserError, match=r"^job=import: the package gnnkit-import is not installed: pip install gnnkit"):
        gnnkit.train(job="partition", dataset=store, strategy="auto", workers=2, folder=tmp_path / "again")
    monkeypatch.undo()
    gnnkit.train(job="partition", dataset=store, strategy="auto", workers=2, folder=tmp_path / "again")
    assert (tmp_path / "again/store.json").is_file()
