"""Validation of a loader's seeds, and of the memory that its batches need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader.utils import get_edge_label_index, get_input_nodes
from torch_geometric.sampler import NegativeSampling

from gnnkit.errors import UserError
from gnnkit.pyg.checks import check_edges, check_ids, check_negatives, read_times
from gnnkit.pyg.sampled_graph import ONE_NODE_TYPE
from gnnkit.pyg.subgraph_sampler import SubgraphSampler
from gnnkit.utils.ranges import one_line, real, shown

_MISREAD = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


def check_nodes(sampler: SubgraphSampler, data: Any, inputs: tuple[Any, Any, Any], options: Mapping[str, Any]) -> None:
    """Raises `UserError` for seeds that are no nodes, or have no valid times.

    Args:
        sampler: The loader's sampler.
        data: The container.
        inputs: The arguments `input_nodes`, `input_time` and `input_id`.
        options: Arguments of torch's loader, such as `batch_size`.
    """
    argument, times, input_id = inputs
    node_type, nodes, _ = _parse("input_nodes", lambda: get_input_nodes(data, argument, input_id), argument)
    count = sampler.graph.num_nodes.get(node_type or ONE_NODE_TYPE, 0)
    of_type = f" of type {node_type!r}" if node_type else ""
    check_ids("input_nodes[", nodes, count, of_type)
    mask = argument[1] if node_type and not isinstance(argument, str) else argument
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape != (count,):
        raise UserError(
            f"input_nodes: the mask has shape {list(mask.shape)}, expected [{count}] for the nodes{of_type}"
        )
    if times is not None:
        read_times("input_time", times, len(nodes))
    sampler.check_draws({node_type or ONE_NODE_TYPE: _batch_size(options, len(nodes))})


def check_links(sampler: SubgraphSampler, data: Any, links: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises `UserError` for labelled edges, labels, times or negatives not to be used.

    Args:
        sampler: The loader's sampler.
        data: The container.
        links: The arguments `edge_label_index`, `edge_label`, `edge_label_time`,
            `neg_sampling` and `neg_sampling_ratio`.
        options: Arguments of torch's loader, such as `batch_size`.
    """
    argument, labels, times, rule, ratio = links.values()
    edge_type, edges = _parse("edge_label_index", lambda: get_edge_label_index(data, argument), argument)
    ends = (edge_type[0], edge_type[2]) if edge_type else (ONE_NODE_TYPE, ONE_NODE_TYPE)
    counts = sampler.graph.num_nodes.get(ends[0], 0), sampler.graph.num_nodes.get(ends[1], 0)
    check_edges("edge_label_index", edges, counts, ends)
    count = edges.shape[1]
    if labels is not None and (not isinstance(labels, Tensor) or labels.shape[:1] != (count,)):
        raise UserError(f"edge_label={shown(labels)} must be a tensor with {count} entries, one per labelled edge")
    if times is not None:
        read_times("edge_label_time", times, count)
    if ratio is not None and real("neg_sampling_ratio", ratio, 0):
        rule = ("binary", ratio)
    rule = _parse("neg_sampling", lambda: NegativeSampling.cast(rule), rule)
    batch_size = _batch_size(options, count)
    if rule is not None and not isinstance(rule, NegativeSampling):
        raise UserError(f"neg_sampling={shown(rule)} must be binary, triplet or a NegativeSampling")
    if rule is not None and not count:
        raise UserError("edge_label_index has no edges, so neg_sampling has no positives")
    if type(rule) is NegativeSampling:
        check_negatives(rule, counts, batch_size)
    sampler.check_draws(dict.fromkeys(ends, batch_size))


def _parse(name: str, read: Callable[[], Any], value: object) -> Any:
    """Calls PyG's function that reads an argument, and names it in errors."""
    try:
        return read()
    except _MISREAD as error:
        raise UserError(f"{name}={shown(value)} has none of PyG's formats: {one_line(error)}") from error


def _batch_size(options: Mapping[str, Any], count: int) -> int:
    """Returns the largest number of seeds of a batch, or 1 for other batches."""
    size = options.get("batch_size", 1)
    return min(size, count) if isinstance(size, int) and options.get("batch_sampler") is None else 1
