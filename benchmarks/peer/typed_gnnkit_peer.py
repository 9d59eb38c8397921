"""gnnkit's sampling by relation, in the environment that runs `typed_sampling.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve
from torch_geometric.data import HeteroData
from typed_case import TypedArrays
from typed_graph import graph_of

from gnnkit import _core
from gnnkit.graph import RelationGroups
from gnnkit.pyg import NeighborLoader
from gnnkit.sampler import NeighborSampler


def rows_of(case: Case) -> RelationGroups:
    return case.cached("rows", lambda: RelationGroups.of_graph(graph_of(case)))


def sample(redraw: bool) -> Maker:
    """One batch at a time. Each edge has a relation."""

    def maker(case: Case) -> Batches:
        rows, sampler = rows_of(case), NeighborSampler(case.fanouts, redraw=redraw, threads=case.threads)
        arrays = TypedArrays.of(case)
        first = arrays.firsts[arrays.seed_type]

        def draw(batch: int) -> Size:
            minibatch = sampler.sample(rows, case.seeds(batch) + first, key=batch)
            blocks = minibatch.blocks if redraw else minibatch.blocks[:1]
            return sum(len(block.indices) for block in blocks), len(minibatch.input_nodes)

        return one_by_one(draw)

    return maker


def load(case: Case) -> Batches:
    """`HeteroData` batches of the drop-in for PyG's loader, a batch a thread."""
    arrays, data = TypedArrays.of(case), case.cached("data", lambda: data_of(case))

    def batches(first: int) -> Iterator[Size]:
        seeds = (arrays.seed_type, torch.from_numpy(case.all_seeds(first)))
        loader = case.cached(
            f"loader {case.fanouts} {case.threads} {first}",
            lambda: NeighborLoader(data, list(case.fanouts), seeds, batch_size=BATCH_SIZE, threads=case.threads),
        )
        return ((batch.num_edges, batch.num_nodes) for batch in loader)

    return batches


def data_of(case: Case) -> HeteroData:
    arrays, data = TypedArrays.of(case), HeteroData()
    for name, count in arrays.counts.items():
        data[name].num_nodes = count
    for relation, ends in zip(arrays.relations, arrays.edges(), strict=True):
        data[tuple(relation)].edge_index = torch.from_numpy(np.stack(ends).astype(np.int64))
    return data


serve(
    {"sample": sample(redraw=False), "sample redraw": sample(redraw=True), "load": load},
    f"gnnkit {_core.__version__}",
)
