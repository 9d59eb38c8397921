"""Array types of graphs, and checks of optional fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils import checks
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[Any]  # int64 [n] classes, bool [n, classes], or floating [n] or [n, numbers]
Fields = dict[str, Any]  # arguments of `Graph.from_edges`, by name


def take(values: npt.NDArray[np.generic] | None, positions: Ids) -> npt.NDArray[Any] | None:
    """Indexes an optional array."""
    return None if values is None else values[positions]


def offsets_of(counts: npt.ArrayLike) -> npt.NDArray[np.int64]:  # [n] -> [n + 1]
    """Returns where each of consecutive ranges begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def set_fields(value: object, **fields: object) -> None:
    """Sets validated fields of a frozen dataclass, in its constructor."""
    for name, array in fields.items():
        object.__setattr__(value, name, array)


MOST_RELATIONS = 1 << 15  # edge types are int16


def names_of(field: str, values: Sequence[str] | None, width: int | None = None) -> tuple[str, ...] | None:
    """Reads optional names.

    Raises `UserError` for duplicate names, or if the number of names is not `width`.
    """
    if values is None:
        return None
    names = tuple(values)
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise UserError(f"{field}[{number}] = {shown(name)} is no text")
    if len(set(names)) < len(names):
        number = next(i for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"{field}[{number}] = {names[number]!r} is given twice")
    if width is not None and len(names) != width:
        raise UserError(f"{field} has {len(names)} names, expected {width}")
    return names


def edge_positions_of(values: object | None, num_edges: int) -> Ids | None:
    if values is None:
        return None
    positions = checks.ids("edge_positions", checks.integers("edge_positions", values, num_edges))
    checks.check_range("edge_positions", positions, 0, 2**63)
    return positions


def narrowed_positions(positions: Ids) -> Ids:
    """Converts edge positions to int32 if they all fit."""
    return positions.astype(np.int32) if len(positions) < 2**31 else positions


def edge_types_of(values: object | None, num_edges: int, names: Sequence[str] | None) -> npt.NDArray[np.int16] | None:
    """Reads optional edge types [num_edges], numbered from 0."""
    if values is None:
        if names is not None and len(names) != 1 and num_edges:
            raise UserError(f"edge_type_names has {len(names)} names, but edge_types is missing")
        return None
    if names is not None and len(names) > MOST_RELATIONS:
        raise UserError(f"edge_type_names has {len(names)} names, at most {MOST_RELATIONS} relations are read")
    types = checks.integers("edge_types", values, num_edges)
    checks.check_range("edge_types", types, 0, MOST_RELATIONS if names is None else len(names))
    return np.ascontiguousarray(types, np.int16)


def relation_names(types: Ids | None, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the relation names. Unnamed relations are named by their numbers."""
    if types is None or names is not None:
        return None if names is None else tuple(names)
    return tuple(map(str, range(int(types.max(initial=0)) + 1)))


def nodes_of(
    name: str, values: object | None, num_nodes: int, width: int | None = None
) -> npt.NDArray[np.int64] | None:
    """Reads an optional table of nodes [num_rows, width], of any width or of pairs."""
    if values is None:
        return None
    table = checks.array(name, values)
    if table.ndim != 2 or width not in (None, table.shape[1]):
        content = "nodes" if width is None else "source and destination"
        raise UserError(f"{name} has shape {list(table.shape)}, expected rows of {content}")
    nodes = checks.int64s(name, table.reshape(-1))
    bad = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
    if len(bad):
        row, column = divmod(int(bad[0]), table.shape[1])
        raise UserError(f"{name}[{row}, {column}] = {nodes[bad[0]]} is out of range for {num_nodes} nodes")
    return np.ascontiguousarray(nodes.reshape(table.shape))


def distinct_ids(values: object) -> Array:
    """Reads the user's node ids, which must be distinct.

    NumPy drops trailing NUL characters of text, so `a` and `a\0` are equal.
    """
    ids = checks.array("node_ids", values)
    if ids.ndim == 1 and ids.dtype.kind in "iuU":
        import pyarrow as pa

        from gnnkit.graph.cells import find_ids

        cells = pa.array(ids)
        first = find_ids(cells, cells)
        if len(again := np.flatnonzero(first != np.arange(len(ids)))):
            row = int(again[0])
            raise UserError(f"node_ids[{row}] = {ids[row].item()!r} occurs a second time, after node_ids[{first[row]}]")
    return ids


def node_ids_of(values: object | None, num_nodes: int) -> Array | None:
    """Reads the user's optional node ids."""
    if values is None:
        return None
    ids = checks.array("node_ids", values)
    if ids.shape != (num_nodes,) or (ids.dtype.kind not in "iuU" and num_nodes):
        actual = f"{ids.dtype} of shape {list(ids.shape)}"
        raise UserError(f"node_ids are {actual}, expected [{num_nodes}] whole numbers or text")
    return ids
