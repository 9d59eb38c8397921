"""PyG's neighbor loaders over gnnkit's native core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch_geometric.loader as pyg
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from gnnkit_pyg.prefetch import PrefetchingLoader
from gnnkit_pyg.sampled_graph import Container
from gnnkit_pyg.seeded import SeededLoader
from gnnkit_pyg.seeds import check_links, check_nodes
from gnnkit_pyg.subgraph_sampler import SubgraphSampler


class NeighborLoader(PrefetchingLoader, pyg.NeighborLoader, SeededLoader):  # type: ignore[misc]  # PyG is untyped
    """PyG's `NeighborLoader`, which needs neither pyg-lib nor torch-sparse.

    Takes the same arguments and yields the same batches, `Data` or `HeteroData`. A
    `SubgraphSampler` samples them, unless `neighbor_sampler` is given. Batches are the
    same for any `num_workers` and any number of threads.

    `threads` is the only argument that PyG's class does not have: the number of threads
    that prepare batches if `num_workers=0`. Default: the available cores, at most 4. 0
    creates each batch on request.

    Examples:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from gnnkit.pyg import NeighborLoader
        >>> data = Data(x=torch.eye(4), edge_index=torch.tensor([[1, 2, 3], [0, 0, 1]]))
        >>> loader = NeighborLoader(data, [2, 2], torch.tensor([0]), batch_size=1)
        >>> next(iter(loader)).n_id.tolist()
        [0, 1, 2, 3]
    """

    sampler_name = "node_sampler"

    def __init__(
        self,
        data: Container,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        threads: int | None = None,
        custom_cls: Any = None,
        input_id: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of PyG's class. Sorts the edges by destination."""
        neighbor_sampler = neighbor_sampler or SubgraphSampler(
            data, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted,
            share_memory=kwargs.get("num_workers", 0) > 0, directed=directed,
        )  # fmt: skip
        arguments: Mapping[str, Any] = self.keep_arguments(
            threads, num_neighbors=num_neighbors, neighbor_sampler=neighbor_sampler, time_attr=time_attr, input_id=input_id,
        )  # fmt: skip
        check_nodes(neighbor_sampler, data, (input_nodes, input_time, input_id), self.threads, kwargs)
        super().__init__(
            data, input_nodes=input_nodes, input_time=input_time, transform=transform,
            transform_sampler_output=transform_sampler_output, filter_per_worker=filter_per_worker,
            custom_cls=custom_cls, **arguments, **kwargs,
        )  # fmt: skip


class LinkNeighborLoader(PrefetchingLoader, pyg.LinkNeighborLoader, SeededLoader):  # type: ignore[misc]  # PyG is untyped
    """PyG's `LinkNeighborLoader`, which needs neither pyg-lib nor torch-sparse.

    Takes the same arguments, and `threads` as `NeighborLoader` does.
    Negative edges are drawn under the batch's seed too.

    Examples:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from gnnkit.pyg import LinkNeighborLoader
        >>> data = Data(x=torch.eye(4), edge_index=torch.tensor([[1, 2, 3], [0, 0, 1]]))
        >>> loader = LinkNeighborLoader(data, [2], neg_sampling="binary", batch_size=3)
        >>> next(iter(loader)).edge_label.tolist()  # 3 edges, and as many drawn pairs
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """

    sampler_name = "link_sampler"

    def __init__(
        self,
        data: Container,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | dict[str, Any] | str | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        threads: int | None = None,
        custom_cls: Any = None,
        input_id: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of PyG's class. Sorts the edges by destination."""
        neighbor_sampler = neighbor_sampler or SubgraphSampler(
            data, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted,
            share_memory=kwargs.get("num_workers", 0) > 0, directed=directed,
        )  # fmt: skip
        arguments: Mapping[str, Any] = self.keep_arguments(
            threads, num_neighbors=num_neighbors, neighbor_sampler=neighbor_sampler, time_attr=time_attr, input_id=input_id,
            edge_label_index=edge_label_index, edge_label=edge_label, edge_label_time=edge_label_time,
            neg_sampling=neg_sampling, neg_sampling_ratio=neg_sampling_ratio,
        )  # fmt: skip
        check_links(neighbor_sampler, data, arguments, self.threads, kwargs)
        super().__init__(
            data, transform=transform, transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker, custom_cls=custom_cls, **arguments, **kwargs,
        )  # fmt: skip
