"""Validation of what users pass to PyG's loaders, before any native code reads it.

Messages count positions in the user's own order, and use the user's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling, NumNeighbors

from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler.fanouts import MAX_FANOUT, MAX_HOPS, MAX_REPLACED
from gnnkit.utils import checks
from gnnkit.utils.memory import check_memory
from gnnkit.utils.ranges import one_line, real, shown, whole

EdgeType: TypeAlias = tuple[str, str, str]
_PAIR_BYTES = 128  # of a negative pair: both ends, as drawn, joined, sorted and numbered


def check_ids(place: str, ids: object, num_nodes: int, of_type: str = "") -> Ids:  # [k]
    """Returns node ids as an array. Raises `UserError` for one that is no node.

    Args:
        place: beginning of the name of an id, up to its position, such as `seeds[`.
        ids: [k] integers.
        num_nodes: Number of nodes.
        of_type: End of the message, such as " of type 'paper'".
    """
    row = checks.integers(place.partition("[")[0], ids)
    if row.size and not 0 <= row.min() <= row.max() < num_nodes:
        at = np.flatnonzero((row < 0) | (row >= num_nodes))[0]
        raise UserError(f"{place}{at}] = {row[at]} is out of range for {num_nodes} nodes{of_type}")
    return row


def check_tensor(name: str, value: object, *, num_dims: int = 1) -> None:
    """Raises `UserError` unless a value is a dense tensor with entries."""
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    if not is_dense or value.dim() < num_dims:  # type: ignore[attr-defined]
        kind = list(value.shape) if isinstance(value, Tensor) else shown(value)
        raise UserError(f"{name}={kind} must be a dense tensor of {num_dims} dimensions")


def check_edges(name: str, edges: Any, counts: tuple[int, int], types: tuple[str, str] = ("", "")) -> None:
    """Raises `UserError` unless `edges` joins nodes of the graph.

    Args:
        name: The user's name of the edges, such as edge_index.
        edges: [2, num_edges] tensor, or two tensors, of sources and destinations.
        counts: Numbers of nodes at both ends.
        types: Node types of both ends. Empty: the graph has one type.
    """
    if isinstance(edges, Tensor):
        check_tensor(name, edges, num_dims=2)
    shapes = [list(getattr(end, "shape", ())) for end in edges]
    if len(shapes) != 2 or shapes[0] != shapes[1]:
        raise UserError(f"{name} has ends of shapes {shown(shapes)}, expected [2, num_edges]")
    for end, (count, node_type) in enumerate(zip(counts, types, strict=True)):
        check_tensor(f"{name}[{end}]", edges[end])
        if edges[end].dtype not in (torch.int64, torch.int32):
            raise UserError(f"{name} has dtype {edges[end].dtype}, expected torch.int64 or torch.int32")
        check_ids(f"{name}[{end}, ", edges[end], count, f" of type {node_type!r}" if node_type else "")


def check_sorted(name: str, destinations: Tensor) -> None:
    """Raises `UserError` for the first edge that is out of order."""
    descends = torch.nonzero(destinations.diff() < 0)[:1].flatten().tolist()
    for at in descends:
        raise UserError(
            f"is_sorted=True: {name}{at + 1}] = {destinations[at + 1]} follows {destinations[at]}: use is_sorted=False"
        )


def read_times(name: str, values: object, length: int | None = None) -> Ids:  # [length] int64
    """Reads times: integers, or whole floats that their type holds exactly.

    Raises `UserError` with the position of the first other number, such as NaN.
    """
    if isinstance(values, Tensor) and values.is_floating_point():
        check_tensor(name, values, num_dims=0)
        limit = 2 / torch.finfo(values.dtype).eps  # beyond it, not every integer has a number of its own
        wrong = ~((values.abs() < limit) & (values == values.round())).flatten()
        for at in torch.nonzero(wrong)[:1].flatten().tolist():
            value = values.flatten()[at].item()
            raise UserError(
                f"{name}[{at}] = {value:.17g} is not a whole number below {limit:.0f}, "
                f"the limit of {values.dtype}: use int64 times"
            )
        values = values.to(torch.int64)
    times = checks.int64s(name, values, length)
    for at in np.flatnonzero(times == np.iinfo(np.int64).min)[:1]:
        raise UserError(f"{name}[{at}] is NaT, the smallest int64: expected a time")
    return times


def read_weights(name: str, values: object, num_edges: int) -> Tensor:  # [num_edges] float32
    """Reads edge weights, which must be finite and at least 0."""
    if isinstance(values, Tensor) and values.dim() == 1 and len(values) != num_edges:
        raise UserError(f"{name} has {len(values)} entries, expected {num_edges}, one per edge")
    weights = checks.floats(name, values, (num_edges,), bound=checks.FLOAT32_MAX)
    for at in np.flatnonzero(weights < 0)[:1]:
        raise UserError(f"{name}[{at}] = {weights[at]} must be at least 0")
    return torch.from_numpy(weights.astype(np.float32, copy=False))


def check_fanouts(key: str, values: object, *, replace: bool) -> list[int]:  # [num_hops]
    """Returns fanouts for the core, with -1 for any negative number."""
    if not isinstance(values, list | tuple):
        raise UserError(f"{key}={shown(values)} must be a list of whole numbers, one per hop")
    if len(values) > MAX_HOPS:
        raise UserError(f"{key} has {len(values)} hops, expected at most {MAX_HOPS}")
    fanouts = [whole(f"{key}[{hop}]", value) for hop, value in enumerate(values)]
    most, rule = (MAX_REPLACED, " with replacement") if replace else (MAX_FANOUT, "")
    for hop, fanout in enumerate(fanouts):
        if fanout > most:
            raise UserError(f"{key}[{hop}]={fanout} exceeds {most}{rule}: use -1 for all neighbors")
    return [max(fanout, -1) for fanout in fanouts]


def read_num_neighbors(value: Any, *, replace: bool) -> NumNeighbors:
    """Reads the argument `num_neighbors`, whose edge types are checked by PyG."""
    neighbors = value if isinstance(value, NumNeighbors) else NumNeighbors(value)
    lists = neighbors.values if isinstance(neighbors.values, dict) else {"": neighbors.values}
    lists = lists if neighbors.default is None else {**lists, "default": neighbors.default}
    for name, fanouts in lists.items():
        check_fanouts(f"num_neighbors[{name!r}]" if name else "num_neighbors", fanouts, replace=replace)
    return neighbors


def parse(name: str, read: Callable[[], Any], value: object = "") -> Any:
    """Calls PyG's function that reads an argument, and names it in errors."""
    try:
        return read()
    except (AssertionError, AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{name}={shown(value)} has none of PyG's formats: {one_line(error)}") from error


def read_negatives(value: Any, num_pairs: int) -> NegativeSampling | None:
    """Reads the argument `neg_sampling`.

    Raises `UserError` if the negatives of so many positives need too much memory.
    """
    rule = parse("neg_sampling", lambda: NegativeSampling.cast(value), value)
    if rule is None:
        return None
    if not isinstance(rule, NegativeSampling):
        raise UserError(f"neg_sampling={shown(value)} must be binary, triplet or a NegativeSampling")
    for weights in (rule.src_weight, rule.dst_weight):
        if weights is not None:
            check_tensor("neg_sampling: weights", weights)
    amount = real("neg_sampling: amount", rule.amount, above=0)
    check_memory(f"neg_sampling: amount={amount:g} for {num_pairs} edges", amount * num_pairs * _PAIR_BYTES)
    return rule


def check_negatives(rule: NegativeSampling, num_nodes: tuple[int, int]) -> None:
    """Raises `UserError` unless each end has a node that can be drawn."""
    for end, weight, count in zip(("src", "dst"), (rule.src_weight, rule.dst_weight), num_nodes, strict=True):
        if weight is not None and not read_weights(f"neg_sampling: {end}_weight", weight, count).sum() > 0:
            raise UserError(f"neg_sampling: {end}_weight is 0 for all nodes: expected one positive weight")
        if weight is None and not count and (end == "dst" or rule.is_binary()):
            raise UserError(f"neg_sampling: there is no node to draw as {end}")
