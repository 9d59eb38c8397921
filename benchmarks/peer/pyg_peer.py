"""PyG's NeighborLoader and pyg-lib's sampler.

Without pyg-lib, installed or on PYTHONPATH, nothing is measured, and an error says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch_geometric
from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB


def edges(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns colptr [num_nodes + 1], and edge_index [2, num_edges] by destination.

    All methods read the same copy.
    """

    def make() -> torch.Tensor:
        indptr, indices = np.load(case.folder / "indptr.npy"), np.load(case.folder / "indices.npy")
        edge_index = torch.empty(2, len(indices), dtype=torch.int64)
        edge_index[0] = torch.from_numpy(indices)
        edge_index[1] = torch.repeat_interleave(torch.from_numpy(np.diff(indptr)))
        return edge_index

    return torch.from_numpy(case.load("indptr", np.int64)), case.cached("edge_index", make)


def sample(case: Case) -> Batches:
    colptr, edge_index = edges(case)

    def batch(number: int) -> Size:
        seeds = torch.from_numpy(case.seeds(number))
        # rowptr, col, seed, num_neighbors, three times, weight, csc, replace, directed,
        # disjoint, strategy, return_edge_id
        options = (None, None, None, None, True, False, True, False, "uniform", True)
        rows, _, nodes, *_ = torch.ops.pyg.neighbor_sample(colptr, edge_index[0], seeds, list(case.fanouts), *options)
        return len(rows), len(nodes)

    return one_by_one(batch)


def load(num_workers: int) -> Maker:
    def maker(case: Case) -> Batches:
        graph = Data(x=torch.from_numpy(case.load("features")), edge_index=edges(case)[1])

        def batches(first: int) -> Iterator[Size]:
            loader = NeighborLoader(
                graph,
                list(case.fanouts),
                input_nodes=torch.from_numpy(case.all_seeds(first)),
                batch_size=BATCH_SIZE,
                num_workers=num_workers,
                shuffle=False,
                is_sorted=True,
            )
            for batch in loader:
                yield batch.num_edges, batch.num_nodes

        return batches

    return maker


serve(
    {"sample": sample, "load, 0 workers": load(0), "load, 2 workers": load(2)} if WITH_PYG_LIB else {},
    f"torch_geometric {torch_geometric.__version__}, torch {torch.__version__}, "
    + ("pyg-lib" if WITH_PYG_LIB else "no pyg-lib"),
)
