"""A schema locates the features of each node type, and survives folders and cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import CSC, FeatureTable, Graph, Relation, SparseFeatures
from gnnkit.graph.schema import pack_tables
from gnnkit.partition.shard import uncut
from gnnkit.partition.store.join import join_shards
from gnnkit.partition.store.manifest import Manifest
from gnnkit.prepare.inputs import with_inputs
from tests.cases import few

COUNTS = [3, 4, 2]
RELATIONS = (Relation("author", "writes", "paper"), Relation("paper", "in", "venue"))


def tables(*widths: int | None) -> list[Any]:
    rng = np.random.default_rng(0)
    pairs = zip(COUNTS, widths, strict=True)
    return [None if width is None else rng.normal(size=(count, width)).astype(np.float32) for count, width in pairs]


def make_typed_graph(*widths: int | None) -> Graph:
    features, packed = pack_tables(tables(*widths), COUNTS)
    return Graph.from_edges(
        [0, 1, 4],
        [3, 4, 7],
        9,
        features=features,
        edge_types=[0, 0, 1],
        edge_type_names=[relation.edge_type for relation in RELATIONS],
        node_types=tuple(zip(("author", "paper", "venue"), COUNTS, strict=True)),
        feature_tables=packed,
        relations=RELATIONS,
    )


@pytest.mark.parametrize("widths", [(2, 5, 3), (4, 4, 4), (2, None, 3), (4, 4, None), (0, 2, 2)])
def test_the_rows_of_each_type_are_found_in_its_columns(widths: tuple[int | None, ...]) -> None:
    graph = make_typed_graph(*widths)
    rows = np.asarray(graph.features)
    schema = graph.schema
    assert schema.feature_tables is not None
    for (name, count), table, reference in zip(schema.node_types, schema.feature_tables, tables(*widths), strict=True):
        placeholder = np.ones((count, 1)) if reference is None else reference
        np.testing.assert_array_equal(rows[schema.nodes(name), table.columns], placeholder)
        assert table.kind == ("none" if reference is None else "dense")
    shared = len(set(widths)) == 1
    assert isinstance(graph.features, SparseFeatures) != shared
    assert rows.shape[1] == (widths[0] if shared else sum(1 if width is None else width for width in widths))


def test_types_without_features_have_no_columns() -> None:
    assert pack_tables([None, None], [1, 2]) == (None, (FeatureTable("none", 0),) * 2)


def test_a_graph_of_one_type_is_the_plain_case() -> None:
    csc = CSC.from_edges([0], [1], 2)
    for features, table in (
        (np.ones((2, 3)), FeatureTable("dense", 3)),
        (SparseFeatures.of(np.eye(2)), FeatureTable("sparse", 2)),
        (np.ones((2, 0)), FeatureTable("none", 0)),
    ):
        schema = Graph(csc, features, np.full(2, -1), np.zeros(2, np.int8)).schema
        assert (schema.node_types, schema.feature_tables, schema.to_dict()) == ((("", 2),), (table,), {})


@pytest.mark.parametrize("widths", [(2, None, 3), (4, 4, 4)])
def test_folders_and_parts_keep_the_schema(widths: tuple[int | None, ...], tmp_path: Path) -> None:
    graph = make_typed_graph(*widths)
    graph.save(tmp_path / "graph")
    assert Graph.load(tmp_path / "graph").schema == graph.schema
    assert Graph.trusted(tmp_path / "graph").schema == graph.schema
    plain = {"node_types": graph.node_types, "edge_types": graph.edge_type_names, **graph.schema.to_dict()}
    assert join_shards([uncut(graph)], None, plain).schema == graph.schema


CHANGES: dict[str, tuple[Callable[[Graph], Graph], bool, bool]] = {
    "row_normalize": (Graph.row_normalize, True, True),
    "symmetrize": (Graph.symmetrize, True, False),
    "renumber": (lambda graph: graph.renumber(np.arange(9)[::-1]), False, False),
    "other features": (lambda graph: replace(graph, features=np.ones((9, 2))), False, True),
    "other names": (lambda graph: replace(graph, edge_type_names=("a", "b")), True, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_and_relations_that_no_longer_hold_are_dropped(change: str) -> None:
    changed, keeps_tables, keeps_relations = CHANGES[change]
    graph = changed(make_typed_graph(2, None, 3))
    assert (graph.feature_tables is not None, graph.relations is not None) == (keeps_tables, keeps_relations)


def test_learned_rows_are_tables_without_columns() -> None:
    assert with_inputs(make_typed_graph(2, None, 3), "learned").feature_tables == (FeatureTable("learned", 0),) * 3


@pytest.mark.parametrize(("kind", "width"), [("dence", 3), ("learned", 3), ("none", 2), ("dense", -1)])
def test_a_forged_table_is_refused(kind: Any, width: int) -> None:
    with pytest.raises(UserError, match="feature_tables"):
        FeatureTable(kind, width)


@pytest.mark.slow
@few(("inputs", "symmetrize"), [("features", False), ("learned", True), ("degree", False)], default=[("learned", True)])
def test_an_import_and_a_partition_keep_the_same_schema(inputs: str, symmetrize: bool, tmp_path: Path) -> None:
    graph = make_typed_graph(4, 4, 4)
    split = np.arange(9, dtype=np.int8) % 3
    replace(graph, labels=np.arange(9) % 2, split=split).save(tmp_path / "graph")
    keys = ["dataset=saved", f"dataset.root={tmp_path}/graph", f"dataset.symmetrize={symmetrize}".lower()]
    stores = [tmp_path / job for job in ("import", "partition")]
    for store in stores:
        overrides = [*keys, "workers=2", f"inputs={inputs}", "strategy=individual_sample", "model=rgcn"]
        assert main([f"job={store.name}", *overrides, f"output={store}"]) == 0
    again = tmp_path / "again"
    assert main(["job=import", "dataset=store", f"dataset.root={stores[0]}", "workers=3", f"output={again}"]) == 0
    schemas = [Manifest.load(store).types for store in (*stores, again)]
    assert schemas[0] == schemas[1] == schemas[2]
    assert (schemas[0].relations is None) == symmetrize
    tables = {"features": graph.feature_tables, "learned": (FeatureTable("learned", 0),) * 3, "degree": None}
    assert schemas[0].feature_tables == tables[inputs]
