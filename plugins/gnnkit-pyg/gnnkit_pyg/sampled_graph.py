"""The arrays that sampling reads from PyG's containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, remote_backend_utils
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler.base import DataType
from torch_geometric.sampler.utils import to_csc
from torch_geometric.typing import SparseTensor

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids
from gnnkit.utils import checks
from gnnkit.utils.memory import check_memory
from gnnkit.utils.ranges import shown, whole
from gnnkit_pyg.checks import EdgeType, check_edges, check_sorted, check_tensor, parse, read_times, read_weights
from gnnkit_pyg.relation import RelationEdges

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
    results: dict[Any, Any] = field(default_factory=dict)  # of `cached`

    @classmethod
    def of(cls, data: Container, options: SampleOptions) -> SampledGraph:
        """Reads a `Data`, a `HeteroData`, or a pair of a feature and a graph store."""
        if isinstance(data, Data | HeteroData):
            return _of_memory(data, options)
        DataType.from_data(data)  # raises PyG's error for any other container
        features, graph = data
        return _of_stores(features, graph, options)

    def cached(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function once for the same arguments."""
        key = (function, *arguments)
        if key not in self.results:
            self.results[key] = function(*arguments)
        return self.results[key]


@dataclass(frozen=True, eq=False)
class _Arrays:
    """CSC arrays and columns by edge type, before they are checked."""

    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, tuple[Tensor, Tensor, Tensor | None]]  # colptr, row, and position in the container
    weight: Mapping[EdgeType, Tensor]  # in the container's order
    node_time: Mapping[str, Tensor]
    edge_time: Mapping[EdgeType, Tensor]  # in the container's order

    def graph(self, hetero: bool, backward: bool) -> SampledGraph:
        relations = {}
        dtypes = [row.numpy().dtype for _, row, _ in self.edges.values()] or [np.dtype(np.int64)]
        is_copied = all(order is not None for _, _, order in self.edges.values())  # else the container's memory
        dtype = np.dtype(np.int32) if is_copied and max(self.num_nodes.values(), default=0) < 2**31 else max(dtypes)
        for edge_type, (colptr, row, _) in self.edges.items():
            ends = (edge_type[2], edge_type[0]) if backward else (edge_type[0], edge_type[2])
            weight = self._sorted(edge_type, self.weight.get(edge_type))
            edges = RelationEdges.of(
                ends, colptr, row.numpy().astype(dtype, copy=False), self.num_nodes[ends[0]], weight
            )
            times = self._times(edge_type, edges)
            relations[edge_type] = edges if times is None else edges.timed(times)
        orders = {edge_type: order for edge_type, (_, _, order) in self.edges.items()}
        return SampledGraph(hetero, self.num_nodes, relations, orders, self.node_time, bool(self.edge_time), dtypes[0])

    def _sorted(self, edge_type: EdgeType, column: Tensor | None) -> Tensor | None:
        order = self.edges[edge_type][2]
        return column if column is None or order is None else column.cpu()[order]

    def _times(self, edge_type: EdgeType, edges: RelationEdges) -> Ids | None:
        if edge_type in self.edge_time:
            time = self._sorted(edge_type, self.edge_time[edge_type])
            return None if time is None else time.cpu().numpy()
        if edges.source in self.node_time:
            return self.node_time[edges.source].cpu().numpy()[edges.csc.indices]
        return None


def _of_memory(data: Data | HeteroData, options: SampleOptions) -> SampledGraph:
    stores = dict(data.edge_items()) if isinstance(data, HeteroData) else {ONE_EDGE_TYPE: data}
    num_nodes = _count_nodes(data, list(stores))
    for store in data.stores:
        for name, value in store.items():
            if isinstance(value, Tensor) and value.is_meta:
                types = (store._key,) if isinstance(store._key, str) else store._key or ()
                raise UserError(f"{_name(types, name)} is on the device meta, where tensors have no values")
    for edge_type, store in stores.items():
        _check_store(edge_type, store, num_nodes, options)
    node_time, edge_time = _read_times(data, stores, num_nodes, options.time_attr)
    weight = _read_weights(stores, options.weight_attr)
    device, share_memory, is_sorted, backward = "cpu", options.share_memory, options.is_sorted, options.backward
    edges = {
        key: to_csc(store, device, share_memory, is_sorted, node_time.get(key[0]), edge_time.get(key), backward)
        for key, store in stores.items()
    }
    return _Arrays(num_nodes, edges, weight, node_time, edge_time).graph(isinstance(data, HeteroData), backward)


def _count_nodes(data: Data | HeteroData, edge_types: list[EdgeType]) -> dict[str, int]:
    """Counts each type's nodes, before any array of this length is allocated."""
    stores = {ONE_NODE_TYPE: data}
    if isinstance(data, HeteroData):
        stores = {name: data[name] for name in [*data.node_types, *(end for key in edge_types for end in key[::2])]}
    counts = {}
    for name, store in stores.items():
        key = f"data[{name!r}].num_nodes" if name else "num_nodes"
        counts[name] = _check_count(key, parse(key, partial(getattr, store, "num_nodes")))
    return counts


def _check_count(name: str, value: object) -> int:
    count = whole(name, value, 0)
    check_memory(f"{name}={count}", 8 * count)
    return count


def _check_store(edge_type: EdgeType, store: Any, num_nodes: Mapping[str, int], options: SampleOptions) -> None:
    """Checks one type's edges before PyG sorts them."""
    for layout in ("adj", "adj_t"):
        if layout in store and not isinstance(store[layout], SparseTensor):
            raise UserError(f"{_name(edge_type, layout)} is not a SparseTensor of torch-sparse: use edge_index")
    name, ends = _name(edge_type, "edge_index"), (edge_type[0], edge_type[2])
    if "edge_index" in store:
        check_edges(name, store.edge_index, (num_nodes[ends[0]], num_nodes[ends[1]]), ends)
        if options.is_sorted:
            end = int(not options.backward)
            check_sorted(f"{name}[{end}, ", store.edge_index[end])
    elif any(edge_type) and not ("adj" in store or "adj_t" in store):
        raise UserError(f"{name} is missing")


def _num_edges(store: Any) -> int:  # PyG's may be the length of another attribute
    return int(store.edge_index.shape[1] if "edge_index" in store else store.num_edges)


def _read_weights(stores: Mapping[EdgeType, Any], name: str | None) -> dict[EdgeType, Tensor]:
    if name is None:
        return {}
    weights = {
        edge_type: read_weights(_name(edge_type, name), store[name], _num_edges(store))
        for edge_type, store in stores.items()
        if name in store
    }
    if not weights:
        raise UserError(f"weight_attr={name!r} is not an attribute of the edges")
    return weights


def _read_times(
    data: Any, stores: Mapping[EdgeType, Any], num_nodes: Mapping[str, int], name: str | None
) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
    """Returns the times of nodes or of edges, whichever have the attribute."""
    if name is None:
        return {}, {}
    nodes, edges = _stores_with(name, data, stores)
    if bool(nodes) == bool(edges):
        phrase = "both a node-level and an" if nodes else "neither a node-level or"
        raise ValueError(f"The time attribute '{name}' is {phrase} edge-level attribute")
    of_nodes = {key: _times(_name((key,), name), store[name], num_nodes[key]) for key, store in nodes.items()}
    return of_nodes, {key: _times(_name(key, name), store[name], _num_edges(store)) for key, store in edges.items()}


def _stores_with(name: str, data: Any, stores: Mapping[EdgeType, Any]) -> tuple[dict[str, Any], dict[EdgeType, Any]]:
    """Returns the stores of nodes, and of edges, that have an attribute."""
    if isinstance(data, Data):
        nodes = {ONE_NODE_TYPE: data} if name in data and data.is_node_attr(name) else {}
        edges = {ONE_EDGE_TYPE: data} if not nodes and name in data and data.is_edge_attr(name) else {}
        return nodes, edges
    nodes = {node_type: store for node_type, store in data.node_items() if name in store}
    edges = {edge_type: store for edge_type, store in stores.items() if name in store}
    return nodes, edges


def _times(name: str, values: Any, length: int | None) -> Tensor:  # [length] int64
    return torch.from_numpy(read_times(name, values, length)).to(getattr(values, "device", "cpu"))


def _name(types: tuple[str, ...], attribute: str) -> str:
    """Returns the name of an attribute in a container of one type or several."""
    return f"data{list(types)!r}.{attribute}" if any(types) else attribute


def _of_stores(features: FeatureStore, graph: GraphStore, options: SampleOptions) -> SampledGraph:
    if options.weight_attr is not None:
        raise NotImplementedError("'weight_attr' is unsupported for '(FeatureStore, GraphStore)' inputs")
    edge_attrs = graph.get_all_edge_attrs()
    for attr in edge_attrs:
        _check_stored(graph, attr)
    hetero = any(attr.edge_type is not None for attr in edge_attrs)
    if options.backward:
        colptr, row, permutation = graph.csr()
    else:
        row, colptr, permutation = graph.csc()
    if hetero:
        num_nodes = _stored_sizes(features, graph)
        edge_types = list(dict.fromkeys(attr.edge_type for attr in edge_attrs))
    else:
        num_nodes = {ONE_NODE_TYPE: _check_count("num_nodes", max(edge_attrs[0].size or (None,)))}
        edge_types = [ONE_EDGE_TYPE]
        colptr, row, permutation = ({ONE_EDGE_TYPE: value} for value in (colptr, row, permutation))
    edges = {name: (colptr[name], row[name], (permutation or {}).get(name)) for name in edge_types}
    sizes = {**num_nodes, **{name: len(sources) for name, (_, sources, _) in edges.items()}}
    node_time, edge_time = _stored_times(features, options.time_attr, hetero, sizes)
    return _Arrays(num_nodes, edges, {}, node_time, edge_time).graph(hetero, options.backward)


def _stored_sizes(features: FeatureStore, graph: GraphStore) -> dict[str, int]:
    """Counts the nodes of each type that has features or edges."""
    names = [attr.group_name for attr in features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
    ends = [end for attr in graph.get_all_edge_attrs() for end in attr.edge_type[::2]]
    return {
        name: _check_count(f"num_nodes of {name!r}", remote_backend_utils.size(features, graph, name))
        for name in dict.fromkeys([*names, *ends])
    }


def _check_stored(graph: GraphStore, attr: Any) -> None:
    """Checks edges before PyG converts them."""
    first, second = graph.get_edge_index(attr)
    name = f"edge_index of {attr.edge_type}"
    if not (attr.size is None or (isinstance(attr.size, tuple | list) and len(attr.size) == 2)):
        raise UserError(f"{name}: size={shown(attr.size)} must be the numbers of sources and destinations")
    for end, ids in enumerate((first, second)):
        check_tensor(f"{name}[{end}]", ids)
    largest = [int(checks.int64s(name, ids).max(initial=-1)) + 1 for ids in (first, second)]
    size = [_check_count(f"{name}: size[{end}]", count) for end, count in enumerate(attr.size or largest)]
    if attr.layout == EdgeLayout.COO:
        check_edges(name, (first, second), (size[0], size[1]))
        if attr.is_sorted:
            check_sorted(f"{name}[1, ", second)
    elif attr.layout == EdgeLayout.CSR:
        CSC(first, second, num_sources=size[1])
    else:
        CSC(second, first, num_sources=size[0])


def _stored_times(
    features: FeatureStore, name: str | None, hetero: bool, sizes: Mapping[Any, int]
) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
    """Reads complete time columns from a feature store."""
    if name is None:
        return {}, {}
    columns: dict[Any, Tensor] = {}  # by node or edge type
    for attr in features.get_all_tensor_attrs():
        if attr.attr_name == name:
            attr.index = None  # reads all rows
            # without types, PyG distinguishes nodes and edges by the attribute's name
            group = attr.group_name if hetero else ONE_NODE_TYPE if name == "time" else ONE_EDGE_TYPE
            key = f"{name} of {group!r}" if hetero else name
            columns[group] = _times(key, features.get_tensor(attr), sizes.get(group))
    if not columns:
        raise ValueError(f"Temporal sampling by '{name}' specified but did not find any temporal data")
    of_nodes = {isinstance(group, str) for group in columns}
    if len(of_nodes) > 1:
        raise ValueError(f"Found time attribute '{name}' for both node-level and edge-level types")
    return (columns, {}) if True in of_nodes else ({}, columns)
