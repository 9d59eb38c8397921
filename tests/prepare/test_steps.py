"""The steps of preparation, which runs, stores and imports share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.prepare.facts import ModelNeeds, Needs
from gnnkit.prepare.kept import content
from gnnkit.prepare.steps import Draft, prepare_graph
from gnnkit.sampler.targets import Targets

RUN = Needs(trains=True, graph=False, reference=False, model=ModelNeeds(sparse=True))
STORE = replace(RUN, for_store=True)


def labelled_edges() -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, (2, 90))
    fields: dict[str, Any] = {"edge_labels": rng.integers(0, 2, 90), "edge_split": rng.integers(1, 4, 90)}
    return Graph.from_edges(src, dst, 20, features=rng.normal(size=(20, 3)), edge_time=np.arange(90), **fields)


@pytest.mark.parametrize(
    ("graph", "keys"),
    [
        (check_graph(), []),
        (check_graph(), ["inputs=degree"]),
        (check_graph(), ["features.dtype=int8"]),
        (check_graph(), ["task=link_prediction"]),
        (labelled_edges(), ["task=edge_classification"]),
        (labelled_edges(), ["task=edge_classification", "strategy=individual_sample", "sampler.time=strict"]),
        (labelled_edges().split_by_time(borders=[50, 70]), ["task=link_prediction", "inputs=degree"]),
    ],
    ids=["nodes", "degrees", "rounded", "links", "labelled edges", "sampled by time", "split by time"],
)
def test_runs_and_stores_prepare_the_same_graph(graph: Graph, keys: list[str], tmp_path: Path) -> None:
    strategy = [] if any(key.startswith("strategy=") for key in keys) else ["strategy=vertex_centric"]
    settings = settle(compose([*strategy, *keys]))
    run, store = (prepare_graph(settings, needs, graph, tmp_path) for needs in (RUN, STORE))
    drafts = [replace(draft, graph=draft.graph.evolve(time_borders=None)) for draft in (run, store)]
    assert content(drafts[0].graph) == content(drafts[1].graph)
    assert content(run.rows) == content(store.rows)
    assert run.notes == store.notes
    assert (run.rounding != "") == ("features.dtype=int8" in keys)


def test_only_runs_need_a_row_in_the_split(tmp_path: Path) -> None:
    graph, settings = check_graph(), settle(compose(["strategy=vertex_centric"]))
    graph = graph.evolve(split=np.zeros(graph.num_nodes, np.int8))
    assert content(prepare_graph(settings, STORE, graph, tmp_path).graph.features) == content(graph.features)
    with pytest.raises(UserError, match="no node is in the training split"):
        prepare_graph(settings, RUN, graph, tmp_path)


def test_ids_of_an_earlier_graph_are_removed(tmp_path: Path) -> None:
    graph, settings = check_graph(), settle(compose(["strategy=vertex_centric"]))
    named_graph = graph.evolve(node_ids=np.arange(graph.num_nodes) + 7)
    for one, exists in ((named_graph, True), (graph.evolve(node_ids=None), False)):
        prepare_graph(settings, RUN, one, tmp_path)
        assert (tmp_path / "node_ids.npy").exists() == exists


def test_a_step_may_select_no_rows() -> None:
    ids = np.empty(0, np.int64)
    rows = Targets(2, ids, np.empty((0, 2), np.int64), ids, np.empty(0, np.int8))
    draft = Draft(check_graph(), notes=("first",))
    after = draft.then(draft.graph, ["second"], rows)
    assert after.rows is rows
    assert after.notes == ("first", "second")
    assert draft.notes == ("first",)
