"""PyG's clusters, found by gnnkit's partitioner."""

from __future__ import annotations

import sys
from typing import Any, Literal

import torch
import torch_geometric.loader as pyg
from torch import Tensor
from torch_geometric.data import Data

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.partition.base import undirected
from gnnkit.utils.ranges import MAX_COUNT, one_of, shown, whole
from gnnkit_pyg.checks import check_edges, parse

_BUFFER = 262_144  # nodes that are clustered together, as in `partition=buffered`
_BOUND = 1.03  # largest cluster over the mean, as METIS allows
_PASSES = 2


class ClusterData(pyg.ClusterData):  # type: ignore[misc]  # PyG is untyped
    """PyG's `ClusterData`, which needs neither pyg-lib nor torch-sparse.

    Takes the same arguments. Clusters come from gnnkit's `buffered` partitioner instead
    of METIS, so they differ from PyG's. They are the same on every machine.
    `recursive` changes only the name of the saved file.
    """

    def __init__(
        self,
        data: Any,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
    ) -> None:
        """Takes the arguments of PyG's class. Partitions the graph, or reads a file."""
        if not isinstance(data, Data) or data.edge_index is None:
            raise UserError(f"data={shown(type(data).__name__)} must be a Data with edge_index")
        num_parts = whole("num_parts", num_parts, 1, MAX_COUNT)
        one_of("sparse_format", sparse_format, ("csr", "csc"))
        num_nodes = whole("num_nodes", parse("num_nodes", lambda: data.num_nodes), 0)
        check_edges("edge_index", data.edge_index, (num_nodes, num_nodes))
        for name, values in data.items():
            num_rows = values.shape[:1] if isinstance(values, Tensor) and name != "edge_index" else None
            if "edge" in name and num_rows not in (None, data.edge_index.shape[1:]):
                raise UserError(f"{name} has shape {list(values.shape)}, expected {data.edge_index.shape[1]} rows")
        self._log = log
        super().__init__(data, num_parts, recursive, save_dir, filename, False, keep_inter_cluster_edges, sparse_format)

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:  # [num_nodes]
        if self._log:
            print(f"Partitioning {num_nodes} nodes into {self.num_parts} clusters...", file=sys.stderr)
        source, destination = edge_index.cpu().numpy()
        csc, _ = undirected(CSC.from_edges(source, destination, num_nodes))
        clusters = _core.buffer_nodes(csc.indptr, csc.indices, self.num_parts, _BUFFER, _BOUND, _PASSES)
        return torch.from_numpy(clusters).to(edge_index.device, torch.int64)


class ClusterLoader(pyg.ClusterLoader):  # type: ignore[misc]
    """PyG's `ClusterLoader`, which also makes batches of clusters without any edge.

    Takes a `ClusterData` and the arguments of PyG's class.
    """

    def _collate(self, batch: list[int] | Tensor) -> Data:
        parts, data, batch = self.cluster_data.partition, self.cluster_data.data, torch.as_tensor(batch)
        spans = torch.stack([parts.partptr[batch], parts.partptr[batch + 1]], 1)
        if (parts.indptr[spans[:, 0]] < parts.indptr[spans[:, 1]]).any():
            return super()._collate(batch)
        data = data.edge_subgraph(parts.edge_perm[:0])
        data.edge_index = parts.edge_perm.new_empty(2, 0)
        return data.subgraph(torch.cat([torch.arange(*span) for span in spans.tolist()]))
