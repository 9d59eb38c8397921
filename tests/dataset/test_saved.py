from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnnkit.__main__ import main
from gnnkit.dataset.saved import Saved
from gnnkit.errors import UserError
from tests.graphs import random_graph
from tests.runs import within_process


def test_a_saved_graph_is_the_data_set(tmp_path: Path) -> None:
    graph = replace(random_graph(), node_ids=np.arange(40) + 5, class_names=("a", "b", "c"))
    graph.save(tmp_path / "graph")
    actual = Saved(str(tmp_path / "graph")).load()
    for name in ("labels", "split", "features", "node_ids"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(graph, name))
    assert actual.class_names == graph.class_names
    assert Saved(str(tmp_path / "graph"), symmetrize=True).load().num_edges > graph.num_edges
    with pytest.raises(UserError, match=r"dataset\.split=.*: the data already has a split"):
        Saved(str(tmp_path / "graph"), split=[0.6, 0.2, 0.2]).load()
    replace(graph, split=np.zeros(40, np.int8)).save(tmp_path / "graph")
    assert np.bincount(Saved(str(tmp_path / "graph"), split=[0.5, 0.25, 0.25]).load().split).tolist() == [0, 20, 10, 10]


def test_what_is_no_saved_graph_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"dataset\.root=.*meta\.json"):
            Saved(str(folder)).load()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_trains_on_a_saved_graph(tmp_path: Path) -> None:
    random_graph().save(tmp_path / "graph")
    overrides = [f"dataset.root={tmp_path}/graph", "comm=threads", "workers=2", "trainer.max_epochs=1"]
    overrides += ["report=false", "logger=none"]
    with within_process(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["strategy=vertex_centric", "dataset=saved", *overrides, f"output={tmp_path}/run"]) == 0
    assert np.load(tmp_path / "run/predictions.npy").shape == (40,)
