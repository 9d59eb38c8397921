"""The arrays that sampling reads from PyG's containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, remote_backend_utils
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler.base import DataType
from torch_geometric.sampler.utils import reverse_edge_type, to_csc, to_hetero_csc

from gnnkit.graph import Ids
from gnnkit.pyg.relation import EdgeTimes, RelationEdges

EdgeType: TypeAlias = tuple[str, str, str]
ONE_NODE_TYPE = ""  # stands for the node type of a homogeneous graph
ONE_EDGE_TYPE: EdgeType = ("", "", "")
Container: TypeAlias = Data | HeteroData | tuple[FeatureStore, GraphStore]


@dataclass(frozen=True)
class SampleOptions:
    """How a container is read."""

    time_attr: str | None
    weight_attr: str | None
    is_sorted: bool
    share_memory: bool
    backward: bool  # sample out-edges instead of in-edges


@dataclass(frozen=True, eq=False)
class SampledGraph:
    """A graph of one or several types, by edge type, ready to be sampled."""

    typed: bool  # whether the container has node types
    num_nodes: Mapping[str, int]
    relations: Mapping[EdgeType, RelationEdges]
    permutation: Mapping[EdgeType, Tensor | None]  # position of each CSC edge in the container
    node_time: Mapping[str, Tensor]
    has_edge_time: bool
    dtype: np.dtype[Any]  # of the ids in a batch, as in the container

    @classmethod
    def of(cls, data: Container, options: SampleOptions) -> SampledGraph:
        """Reads a `Data`, a `HeteroData`, or a pair of a feature and a graph store."""
        if isinstance(data, Data):
            return _of_data(data, options)
        if isinstance(data, HeteroData):
            return _of_hetero(data, options)
        DataType.from_data(data)  # raises PyG's error for any other container
        features, graph = data
        return _of_stores(features, graph, options)


@dataclass(frozen=True, eq=False)
class _Arrays:
    """CSC arrays and columns by edge type, before they are checked."""

    num_nodes: Mapping[str, int]
    colptr: Mapping[EdgeType, Tensor]
    row: Mapping[EdgeType, Tensor]
    permutation: Mapping[EdgeType, Tensor | None]
    weight: Mapping[EdgeType, Tensor]  # in the container's order
    node_time: Mapping[str, Tensor]
    edge_time: Mapping[EdgeType, Tensor]  # in the container's order

    def graph(self, typed: bool, backward: bool) -> SampledGraph:
        relations = {}
        for edge_type, row in self.row.items():
            ends = (edge_type[2], edge_type[0]) if backward else (edge_type[0], edge_type[2])
            weight = self._sorted(edge_type, self.weight.get(edge_type))
            edges = RelationEdges.of(ends, self.colptr[edge_type], row, self.num_nodes[ends[0]], weight)
            times = self._times(edge_type, edges)
            relations[edge_type] = edges if times is None else replace(edges, times=EdgeTimes.of(edges.csc, times))
        dtype = next((row.numpy().dtype for row in self.row.values()), np.dtype(np.int64))
        return SampledGraph(
            typed, self.num_nodes, relations, self.permutation, self.node_time, bool(self.edge_time), dtype
        )

    def _sorted(self, edge_type: EdgeType, column: Tensor | None) -> Tensor | None:
        permutation = self.permutation.get(edge_type)
        return column if column is None or permutation is None else column[permutation]

    def _times(self, edge_type: EdgeType, edges: RelationEdges) -> Ids | None:
        if edge_type in self.edge_time:
            time = self._sorted(edge_type, self.edge_time[edge_type])
            return None if time is None else np.asarray(time.cpu())
        if edges.source in self.node_time:
            return np.asarray(self.node_time[edges.source].cpu())[edges.csc.indices]
        return None


def _of_data(data: Data, options: SampleOptions) -> SampledGraph:
    node_time, edge_time = None, None
    if options.time_attr is not None:
        if options.time_attr in data and data.is_node_attr(options.time_attr):
            node_time = data[options.time_attr]
        elif options.time_attr in data and data.is_edge_attr(options.time_attr):
            edge_time = data[options.time_attr]
        else:
            raise ValueError(
                f"The time attribute '{options.time_attr}' is neither a node-level or edge-level attribute"
            )
    colptr, row, permutation = to_csc(
        data,
        device="cpu",
        share_memory=options.share_memory,
        is_sorted=options.is_sorted,
        src_node_time=node_time,
        edge_time=edge_time,
        to_transpose=options.backward,
    )
    arrays = _Arrays(
        num_nodes={ONE_NODE_TYPE: data.num_nodes},
        colptr={ONE_EDGE_TYPE: colptr},
        row={ONE_EDGE_TYPE: row},
        permutation={ONE_EDGE_TYPE: permutation},
        weight={} if options.weight_attr is None else {ONE_EDGE_TYPE: data[options.weight_attr].cpu()},
        node_time={} if node_time is None else {ONE_NODE_TYPE: node_time},
        edge_time={} if edge_time is None else {ONE_EDGE_TYPE: edge_time.cpu()},
    )
    return arrays.graph(False, options.backward)


def _of_hetero(data: HeteroData, options: SampleOptions) -> SampledGraph:
    node_time: dict[str, Tensor] = {}
    edge_time: dict[EdgeType, Tensor] = {}
    if options.time_attr is not None:
        node_time, edge_time = _hetero_times(data, options.time_attr)
    colptr, row, permutation = to_hetero_csc(
        data,
        device="cpu",
        share_memory=options.share_memory,
        is_sorted=options.is_sorted,
        node_time_dict=node_time or None,
        edge_time_dict=edge_time or None,
        to_transpose=options.backward,
    )
    stored = {
        edge_type: reverse_edge_type(edge_type) if options.backward else edge_type for edge_type in data.edge_types
    }
    weight = {} if options.weight_attr is None else data.collect(options.weight_attr)
    arrays = _Arrays(
        num_nodes={node_type: data[node_type].num_nodes for node_type in data.node_types},
        colptr={edge_type: colptr[key] for edge_type, key in stored.items()},
        row={edge_type: row[key] for edge_type, key in stored.items()},
        permutation={edge_type: permutation[key] for edge_type, key in stored.items()},
        weight={edge_type: value.cpu() for edge_type, value in weight.items()},
        node_time=node_time,
        edge_time={edge_type: value.cpu() for edge_type, value in edge_time.items()},
    )
    return arrays.graph(True, options.backward)


def _hetero_times(data: HeteroData, name: str) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
    """Returns the times of nodes or of edges, whichever have the attribute."""
    of_nodes = any(name in store for store in data.node_stores)
    of_edges = any(name in store for store in data.edge_stores)
    if of_nodes and of_edges:
        raise ValueError(f"The time attribute '{name}' holds both node-level and edge-level information")
    if not of_nodes and not of_edges:
        raise ValueError(f"The time attribute '{name}' is neither a node-level or edge-level attribute")
    return (data.collect(name), {}) if of_nodes else ({}, data.collect(name))


def _of_stores(features: FeatureStore, graph: GraphStore, options: SampleOptions) -> SampledGraph:
    if options.weight_attr is not None:
        raise NotImplementedError("'weight_attr' is unsupported for '(FeatureStore, GraphStore)' inputs")
    edge_attrs = graph.get_all_edge_attrs()
    tensor_attrs = features.get_all_tensor_attrs()
    if options.time_attr is not None:
        _check_sorted_by_time(edge_attrs)
    typed = any(attr.edge_type is not None for attr in edge_attrs)
    if options.backward:
        colptr, row, permutation = graph.csr()
    else:
        row, colptr, permutation = graph.csc()
    if typed:
        num_nodes = _stored_sizes(features, graph)
        edge_types = list(dict.fromkeys(attr.edge_type for attr in edge_attrs))
    else:
        num_nodes = {ONE_NODE_TYPE: max(edge_attrs[0].size)}
        edge_types = [ONE_EDGE_TYPE]
        colptr, row, permutation = ({ONE_EDGE_TYPE: value} for value in (colptr, row, permutation))
    node_time, edge_time = _stored_times(features, tensor_attrs, options.time_attr, typed)
    arrays = _Arrays(
        num_nodes=num_nodes,
        colptr={edge_type: colptr[edge_type] for edge_type in edge_types},
        row={edge_type: row[edge_type] for edge_type in edge_types},
        permutation={edge_type: (permutation or {}).get(edge_type) for edge_type in edge_types},
        weight={},
        node_time=node_time,
        edge_time=edge_time,
    )
    return arrays.graph(typed, options.backward)


def _stored_sizes(features: FeatureStore, graph: GraphStore) -> dict[str, int]:
    """Counts the nodes of each type that has features or edges."""
    names = [attr.group_name for attr in features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
    ends = [end for attr in graph.get_all_edge_attrs() for end in (attr.edge_type[0], attr.edge_type[2])]
    return {name: remote_backend_utils.size(features, graph, name) for name in dict.fromkeys([*names, *ends])}


def _check_sorted_by_time(edge_attrs: list[Any]) -> None:
    for attr in edge_attrs:
        if attr.layout == EdgeLayout.CSR:
            raise ValueError("Temporal sampling requires that edges are stored in either COO or CSC layout")
        if not attr.is_sorted:
            raise ValueError(
                "Temporal sampling requires that edges are sorted by destination, and by source time within local "
                "neighborhoods"
            )


def _stored_times(
    features: FeatureStore, attrs: list[Any], name: str | None, typed: bool
) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
    """Reads complete time columns from a feature store."""
    if name is None:
        return {}, {}
    columns = {}
    for attr in attrs:
        if attr.attr_name == name:
            attr.index = None  # reads all rows
            columns[attr.group_name] = features.get_tensor(attr)
    if not columns or (not typed and len(columns) != 1):
        raise ValueError(f"Temporal sampling by '{name}' specified but did not find any temporal data")
    if not typed:  # PyG tells nodes and edges apart by the attribute's name
        time = next(iter(columns.values()))
        return ({ONE_NODE_TYPE: time}, {}) if name == "time" else ({}, {ONE_EDGE_TYPE: time})
    if all(isinstance(group, str) for group in columns):
        return columns, {}
    if all(isinstance(group, tuple) for group in columns):
        return {}, columns
    raise ValueError(f"Found time attribute '{name}' for both node-level and edge-level types")
