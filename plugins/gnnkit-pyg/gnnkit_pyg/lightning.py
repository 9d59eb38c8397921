"""PyG's Lightning data modules, which sample by gnnkit's native core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_geometric.data.lightning import datamodule as pyg

from gnnkit_pyg.subgraph_sampler import SubgraphSampler


class LightningNodeData(pyg.LightningNodeData):  # type: ignore[misc]  # PyG is untyped
    """PyG's `LightningNodeData`, which needs neither pyg-lib nor torch-sparse.

    Takes the same arguments. Under DDP, each rank reads its own share of the nodes.
    """

    def __init__(self, data: Any, *args: Any, node_sampler: Any = None, **kwargs: Any) -> None:
        """Takes the arguments of PyG's class. Sorts the edges by destination."""
        sampler, arguments = _split_sampler(data, node_sampler, kwargs)
        super().__init__(data, *args, node_sampler=sampler, **arguments)


class LightningLinkData(pyg.LightningLinkData):  # type: ignore[misc]  # PyG is untyped
    """PyG's `LightningLinkData`, which needs neither pyg-lib nor torch-sparse.

    Takes the same arguments. Under DDP, each rank reads its own share of the edges.
    """

    def __init__(self, data: Any, *args: Any, link_sampler: Any = None, **kwargs: Any) -> None:
        """Takes the arguments of PyG's class. Sorts the edges by destination."""
        sampler, arguments = _split_sampler(data, link_sampler, kwargs)
        super().__init__(data, *args, link_sampler=sampler, **arguments)


def _split_sampler(data: Any, sampler: Any, arguments: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Returns the sampler of a data module, and its other arguments."""
    if sampler is not None or arguments.get("loader") == "full":
        return sampler, arguments
    options, arguments = pyg.split_kwargs(arguments, SubgraphSampler)
    return SubgraphSampler(data, **options, share_memory=arguments.get("num_workers", 0) > 0), arguments
