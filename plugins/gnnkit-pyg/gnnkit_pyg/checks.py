"""Validation of what users pass to PyG's loaders, before any native code reads it.

Messages count positions in the user's own order, and use the user's names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler.fanouts import MAX_FANOUT, MAX_HOPS, MAX_REPLACED
from gnnkit.utils import checks
from gnnkit.utils.memory import check_memory
from gnnkit.utils.ranges import MAX_COUNT, one_line, real, shown, shown_names, whole

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
    _refuse_first((row < 0) | (row >= num_nodes), place, row, f"is out of range for {num_nodes} nodes{of_type}")
    return row


def _refuse_first(wrong: Any, place: str, values: Any, rule: str) -> None:
    """Raises `UserError` for the first of some values [k] that is wrong [k]."""
    for at in np.flatnonzero(wrong)[:1]:
        raise UserError(f"{place}{at}] = {values.flat[at]} {rule}")


def check_tensor(name: str, value: object, *, num_dims: int = 1) -> None:
    """Raises `UserError` unless a value is a dense tensor with entries."""
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    if not is_dense or value.dim() < num_dims:  # type: ignore[attr-defined]
        kind = f"{list(value.shape)} on {value.device}" if isinstance(value, Tensor) else shown(value)
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
    row = checks.array(name, destinations)
    descends = np.diff(row, prepend=row[:1]) < 0
    _refuse_first(descends, f"is_sorted=True: {name}", row, "follows a larger number: use is_sorted=False")


def read_times(name: str, values: object, length: int | None = None) -> Ids:  # [length] int64
    """Reads times: integers, or whole floats that their type holds exactly.

    Raises `UserError` with the position of the first other number, such as NaN.
    """
    row = checks.array(name, values)
    if isinstance(values, Tensor) and values.is_floating_point():
        limit = 2 / torch.finfo(values.dtype).eps  # beyond it, not every integer has a number of its own
        rule = f"is not a whole number below {limit:.0f}, the limit of {values.dtype}: use int64 times"
        _refuse_first(~((np.abs(row) < limit) & (row == np.round(row))), f"{name}[", row.astype(np.float64), rule)
        row = row.astype(np.int64)
    times = checks.int64s(name, row, length)
    _refuse_first(times == np.iinfo(np.int64).min, f"{name}[", times, "is NaT: expected a time")
    return times


def check_times(name: str, times: object, count: int) -> None:
    """Raises `UserError` unless optional times are a tensor of one per input."""
    if times is not None:
        check_tensor(name, times)
        read_times(name, times, count)


def read_weights(name: str, values: object, num_edges: int) -> Tensor:  # [num_edges] float32
    """Reads edge weights, which must be finite and at least 0."""
    weights = checks.floats(name, values, (num_edges,), bound=checks.FLOAT32_MAX)
    _refuse_first(weights < 0, f"{name}[", weights, "must be at least 0")
    row = weights.astype(np.float32, copy=False)
    _refuse_first((row == 0) & (weights > 0), f"{name}[", weights, "is too small for float32: multiply all weights")
    return torch.from_numpy(row)


def check_fanouts(key: str, values: object, *, replace: bool) -> list[int]:  # [num_hops]
    """Returns fanouts for the core, with -1 for any negative number."""
    if not isinstance(values, list | tuple) or len(values) > MAX_HOPS:
        raise UserError(f"{key}={shown(values)} must be a list of whole numbers, for at most {MAX_HOPS} hops")
    limit, rule = (MAX_REPLACED, " with replacement") if replace else (MAX_FANOUT, "")
    expectation = f"a whole number up to {limit}{rule}: use -1 for all neighbors"
    return [max(whole(f"{key}[{hop}]", value, high=limit, what=expectation), -1) for hop, value in enumerate(values)]


def parse(name: str, read: Callable[[], Any], value: object = "", types: Collection[object] = ()) -> Any:
    """Calls PyG's function that reads an argument, and names it in errors.

    Args:
        name: The argument.
        read: The call.
        value: The argument's value.
        types: Node or edge types of the container, for the message.
    """
    try:
        return read()
    except (AssertionError, AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        kinds = f"types are {shown_names(types)}" if types else ""
        lines = "; ".join(filter(None, [one_line(error), kinds]))
        raise UserError(f"{name}={shown(value)} has none of PyG's formats: {lines}") from error


def read_negatives(value: Any, num_pairs: int, num_nodes: tuple[int, int]) -> NegativeSampling | None:
    """Reads the argument `neg_sampling`.

    Raises `UserError` if the negatives of so many positives need too much memory, or if
    an end has no node that can be drawn.

    Args:
        value: The argument.
        num_pairs: Number of positives.
        num_nodes: Numbers of nodes at both ends.
    """
    rule = parse("neg_sampling", lambda: NegativeSampling.cast(value), value)
    if rule is None:
        return None
    key = "neg_sampling: amount"
    amount = whole(key, rule.amount, 1, MAX_COUNT) if rule.is_triplet() else real(key, rule.amount, above=0)
    check_memory(f"{key}={amount:g} for {num_pairs} edges", amount * num_pairs * _PAIR_BYTES)
    for end, count in zip(("src", "dst"), num_nodes, strict=True):
        key, weight = f"neg_sampling: {end}_weight", getattr(rule, f"{end}_weight")
        if weight is not None and not (isinstance(weight, Tensor) and weight.is_floating_point()):
            raise UserError(f"{key}={shown(weight)} must be a tensor of a floating-point type")
        weights = torch.ones(min(count, 1)) if weight is None else read_weights(key, weight, count)
        if not weights.any() and (end == "dst" or rule.is_binary()):
            raise UserError(f"{key} is 0 for all nodes: expected one node to draw")
    return rule
