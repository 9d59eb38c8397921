"""The graph of a run, and the input rows of nodes as the key `inputs` says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph
from gnnkit.settings import Settings


def load(settings: Settings, graph: Graph | None = None) -> Graph:
    """The given graph, or the graph of the configured data set."""
    loaded: Graph = settings.dataset.create().load() if graph is None else graph
    return loaded


def with_inputs(graph: Graph, inputs: str) -> Graph:
    """Returns the graph with the features that models read.

    Raises `UserError` where the data set has no features and nothing takes their place.

    Args:
        graph: The graph that trains.
        inputs: "features": of the data set. "degree": made of the number of in-edges.
            "learned": no features, as learned rows take their place.
    """
    if inputs == "learned":
        return replace(graph, features=np.empty((graph.num_nodes, 0), np.float32))
    if inputs == "degree":
        return replace(graph, features=degree_features(graph))
    if graph.features.shape[1] == 0:
        raise UserError(
            "inputs=features: the graph has no features of nodes, so all nodes would look alike: choose "
            "inputs=degree, inputs=learned (rows of embedding=64 numbers), or give the data set features"
        )
    return graph


def degree_features(graph: Graph) -> Floats:  # [num_nodes, 2]
    """Returns log(1 + number of in-edges), and 1, of each node."""
    degree = np.log1p(np.diff(graph.csc.indptr)).astype(np.float32)
    return np.stack([degree, np.ones_like(degree)], axis=1)
