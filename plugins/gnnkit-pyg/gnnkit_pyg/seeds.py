"""Validation of a loader's seeds, and of the memory that its batches need."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader.utils import get_edge_label_index, get_input_nodes
from torch_geometric.sampler import BaseSampler

from gnnkit.errors import UserError
from gnnkit.utils.ranges import real
from gnnkit_pyg.checks import check_edges, check_ids, check_tensor, check_times, parse, read_negatives
from gnnkit_pyg.sampled_graph import ONE_NODE_TYPE
from gnnkit_pyg.subgraph_sampler import SubgraphSampler


def check_nodes(
    sampler: BaseSampler, data: Any, inputs: tuple[Any, Any, Any], threads: int, options: Mapping[str, Any]
) -> None:
    """Raises `UserError` for seeds that are no nodes, or have no valid times.

    Args:
        sampler: The loader's sampler. One that is not gnnkit's checks its own inputs.
        data: The container.
        inputs: The arguments `input_nodes`, `input_time` and `input_id`.
        threads: Batches that are drawn at the same time, or 0.
        options: `batch_size` and `batch_sampler`.
    """
    if not isinstance(sampler, SubgraphSampler):
        return
    argument, times, input_id = inputs
    graph, data = sampler.graph, copy.copy(data)  # to which PyG adds a store for an unknown type
    types = graph.num_nodes if graph.typed else ()
    node_type, nodes, _ = parse("input_nodes", lambda: get_input_nodes(data, argument, input_id), argument, types)
    count = graph.num_nodes.get(node_type or ONE_NODE_TYPE, 0)
    of_type = f" of type {node_type!r}" if node_type else ""
    check_ids("input_nodes[", nodes, count, of_type)
    mask = argument[1] if node_type and not isinstance(argument, str) else argument
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape != (count,):
        raise UserError(f"input_nodes: the mask has shape {list(mask.shape)}, expected [{count}]{of_type}")
    check_times("input_time", times, len(nodes))
    _check_rows("input_id", input_id, len(nodes))
    sampler.check_draws({node_type or ONE_NODE_TYPE: _batch_size(options, len(nodes))}, max(threads, 1))


def check_links(
    sampler: BaseSampler, data: Any, links: Mapping[str, Any], threads: int, options: Mapping[str, Any]
) -> None:
    """Raises `UserError` for labelled edges, labels, times or negatives not to be used.

    Args:
        sampler: The loader's sampler. One that is not gnnkit's checks its own inputs.
        data: The container.
        links: The arguments `edge_label_index`, `edge_label`, `edge_label_time`,
            `neg_sampling`, `neg_sampling_ratio` and `input_id`.
        threads: Batches that are drawn at the same time, or 0.
        options: `batch_size` and `batch_sampler`.
    """
    if not isinstance(sampler, SubgraphSampler):
        return
    argument, labels, times = links["edge_label_index"], links["edge_label"], links["edge_label_time"]
    rule, ratio = links["neg_sampling"], links["neg_sampling_ratio"]
    graph, data = sampler.graph, copy.copy(data)  # to which PyG adds a store for an unknown type
    types = graph.relations if graph.typed else ()
    edge_type, edges = parse("edge_label_index", lambda: get_edge_label_index(data, argument), argument, types)
    ends = (edge_type[0], edge_type[2]) if edge_type else (ONE_NODE_TYPE, ONE_NODE_TYPE)
    counts = graph.num_nodes.get(ends[0], 0), graph.num_nodes.get(ends[1], 0)
    check_edges("edge_label_index", edges, counts, ends)
    count = edges.shape[1]
    _check_rows("edge_label", labels, count)
    check_times("edge_label_time", times, count)
    _check_rows("input_id", links["input_id"], count)
    if ratio is not None and real("neg_sampling_ratio", ratio, 0):
        rule = ("binary", ratio)
    if rule is not None and labels is not None and labels.is_complex():
        raise UserError(
            f"edge_label has dtype {labels.dtype}, expected real numbers, because negatives have the label 0"
        )
    batch_size = _batch_size(options, count)
    if read_negatives(rule, batch_size * max(threads, 1), counts) is not None and not count:
        raise UserError("edge_label_index has no edges, so neg_sampling has no positives")
    sampler.check_draws(dict.fromkeys(ends, batch_size), max(threads, 1))


def _check_rows(name: str, values: Any, count: int) -> None:
    """Raises `UserError` unless an optional tensor has an entry for each seed."""
    if values is not None:
        check_tensor(name, values)
        if len(values) != count:
            raise UserError(f"{name} has {len(values)} entries, expected {count}")


def _batch_size(options: Mapping[str, Any], count: int) -> int:
    """Returns the largest number of seeds of a batch, or 1 for other batches."""
    size = options.get("batch_size", 1)
    return min(size, count) if isinstance(size, int) and options.get("batch_sampler") is None else 1
