"""gnnkit's form of the graph that `typed_case.py` reads."""

from __future__ import annotations

import numpy as np
from serve import Case
from typed_case import TypedArrays

from gnnkit.graph import Graph, Relation


def graph_of(case: Case) -> Graph:
    """Reads the graph, once for each folder."""

    def make() -> Graph:
        arrays = TypedArrays.of(case)
        num_nodes = sum(arrays.counts.values())
        dtype = np.int32 if num_nodes < 2**31 else np.int64
        edges = [(src.astype(dtype), dst.astype(dtype)) for src, dst in arrays.edges()]
        sizes = [len(src) for src, _ in edges]
        src, dst = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        del edges
        relations = tuple(Relation(*relation) for relation in arrays.relations)
        return Graph.from_edges(
            src,
            dst,
            num_nodes,
            edge_types=np.repeat(np.arange(len(sizes), dtype=np.int16), sizes),
            edge_type_names=[relation.edge_type for relation in relations],
            node_types=list(arrays.counts.items()),
            relations=relations,
        )

    return case.cached("graph", make)
