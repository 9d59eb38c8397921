"""The graph of a run, and the input rows of nodes as the key `inputs` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import Features, FeatureTable, Floats, Graph, PackedFeatures, Schema, SparseFeatures
from gnnkit.launch.phases import warnings_in_lines
from gnnkit.prepare.rounding import round_features
from gnnkit.ranges import shown
from gnnkit.storage import save_array
from gnnkit.store.manifest import NODE_IDS

# Measured: products of sparse rows are quicker than dense ones up to these.
MAX_SHARE, MIN_WIDTH = 0.1, 64
IDS = NODE_IDS  # in the run folder
_LOOKED_AT = 1 << 22  # numbers of dense features, to find the share that is not 0


def load(settings: Settings, graph: Graph | None = None) -> Graph:
    """The given graph, or that of the configured data set, without names of columns.

    Warnings of the data set are one line each.
    """
    whole = with_names(settings, graph)
    return replace(whole, feature_names=None, category_of=None, edge_feature_names=None, edge_category_of=None)


def with_names(settings: Settings, graph: Graph | None = None) -> Graph:
    """Like `load`, with names of columns."""
    if graph is not None:
        return graph
    with warnings_in_lines(settings.dataset.name):
        loaded: Graph = settings.dataset.create().load()
    return loaded


def named(graph: Graph, folder: Path) -> Graph:
    """Writes the user's ids of nodes. Returns the graph without.

    Args:
        graph: The graph.
        folder: The run folder.
    """
    if graph.node_ids is None:
        return graph
    save_array(folder / IDS, graph.node_ids)
    return replace(graph, node_ids=None)


def with_inputs(graph: Graph, inputs: str) -> Graph:
    """Returns the graph with the features that models read.

    Raises `UserError` where the data set has no features and nothing takes their place.

    Args:
        graph: The graph that trains.
        inputs: "features": of the data set. "degree": made of the number of in-edges.
            "learned": no features, as learned rows take their place.
    """
    if inputs == "learned":
        empty = np.empty((graph.num_nodes, 0), np.float32)
        return replace(graph, features=empty, missing=None, feature_tables=learned_tables(graph))
    if inputs == "degree":
        return replace(graph, features=degree_features(graph), missing=None, feature_tables=None)
    check_width(graph.features.shape[1])
    return graph


def learned_tables(graph: Graph) -> tuple[FeatureTable, ...]:  # [node types]
    return (FeatureTable("learned", 0),) * len(graph.schema.node_types)


def check_width(width: int) -> None:
    """Raises `UserError` where models would read no columns of features."""
    if width == 0:
        raise UserError(
            "inputs=features: the graph has no features of nodes, so all nodes would look alike: choose "
            "inputs=degree, inputs=learned (rows of embedding=64 numbers), or give the data set features"
        )


def check_types(model: str | None, types: Schema) -> None:
    """Raises `UserError` where a model would drop types of nodes or edges.

    Args:
        model: Name of a model that reads no types. None: types may stay unread.
        types: Of the graph.
    """
    if model is None or not types.several:
        return
    nodes, edges = [name for name, _ in types.node_types], types.edge_types
    parts = [
        f"{len(names):,} types of {what} ({shown(', '.join(names))})"
        for what, names in (("nodes", nodes), ("edges", edges))
        if len(names) > 1
    ]
    raise UserError(
        f"model={model} reads no types, and the graph has {' and '.join(parts)}: choose model=rgcn with "
        "strategy=vertex_centric, which reads types of edges, or types=ignore, which treats all alike"
    )


def degree_features(graph: Graph) -> Floats:  # [num_nodes, 2]
    """Returns log(1 + number of in-edges), and 1, of each node."""
    degree = np.log1p(np.diff(graph.csc.indptr)).astype(np.float32)
    return np.stack([degree, np.ones_like(degree)], axis=1)


def with_kept(graph: Graph, rows: str, sparse: bool, dtype: str) -> tuple[Graph, list[str]]:
    """Returns the graph with features as the ranks keep these, and lines for people.

    There is no line where nothing can be chosen.

    Args:
        graph: The graph, with the features that models read.
        rows: "dense" or "sparse". "auto": sparse, where few numbers of wide rows are
            not 0 and rows are not rounded.
        sparse: Whether strategy and model read sparse rows.
        dtype: One of DTYPES, of dense rows.
    """
    if dtype != "as_is" or isinstance(graph.features, PackedFeatures):
        return round_features(_dense(graph), dtype)
    width = graph.features.shape[1]
    if not sparse or (rows == "auto" and width < MIN_WIDTH):
        return _dense(graph), []
    share = filled(graph.features)
    chosen = rows if rows != "auto" else "sparse" if share < MAX_SHARE else "dense"
    why = f"auto, sparse below {100 * MAX_SHARE:g} %" if rows == "auto" else rows
    percent = f"{100 * share:.0f}" if share > 0.1 else f"{100 * share:.2g}"
    line = f"features: {chosen}, {percent} % of {width:,} columns are not 0 (input_rows={why})"
    if chosen == "dense":
        return _dense(graph), [line]
    return replace(graph, features=SparseFeatures.of(graph.features)), [line]


def _dense(graph: Graph) -> Graph:
    sparse = isinstance(graph.features, SparseFeatures)
    return replace(graph, features=np.asarray(graph.features)) if sparse else graph


def filled(features: Features) -> float:
    """Returns the share of numbers that are not 0. Estimates large dense features."""
    if isinstance(features, SparseFeatures):
        return features.share
    step = max(len(features) * features.shape[1] // _LOOKED_AT, 1)
    some = np.asarray(features[::step])
    return float(np.count_nonzero(some) / max(some.size, 1))
