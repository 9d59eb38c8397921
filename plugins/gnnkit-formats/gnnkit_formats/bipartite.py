"""Edge tables with users and items, which have separate ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.ids import numbers_of
from gnnkit.graph.schema import Relation
from gnnkit.graph.types import Fields
from gnnkit.utils.checks import Array
from gnnkit_formats.values import is_text

COLUMNS = (("user", "item"), ("user_id", "item_id"), ("userId", "itemId"))  # ends that are read without a key
_DIRECTION = re.compile(
    "src|dst|dest|source|target|destination|from|to|u|v|i|j|a|b|x|y|head|tail|start|end|origin|sender|receiver|parent|"
    "child|follower|followee|citing|cited"
)  # words in names of columns whose ids are of one type
UNNAMED = "to"  # PyG's name for an unnamed relation


def check_one_type(name: str, columns: Sequence[pa.Array], ends: tuple[str, str], key: str) -> str:
    """Returns a hint if no source is a destination, of at least two each.

    Raises `UserError` if both columns hold integers under the names of different
    things, such as userId and movieId, so that equal ids may be different nodes.

    Args:
        name: The edge table.
        columns: Sources and destinations, which may be distinct.
        ends: The names of both columns.
        key: Argument or configuration key that decides.
    """
    if any(pa.types.is_nested(column.type) for column in columns):
        return ""  # which are no ids
    sources, destinations = map(pc.unique, columns)
    if sources.type != destinations.type or min(len(sources), len(destinations)) < 2:
        return ""
    num_common = int(np.count_nonzero(numbers_of(pc.is_in(sources, value_set=destinations))))
    if not num_common:
        return (
            f"no {ends[0]} is a {ends[1]}; use {key}=true to read two node types, such as users and items, "
            f"{key}=false otherwise"
        )
    if is_text(sources.type) or _name_one_type(ends):
        return ""
    raise UserError(
        f"{name}: {num_common:,} of {len(sources):,} distinct ids in {ends[0]!r} also occur among the {len(destinations):,} in "
        f"{ends[1]!r}; use {key}=true if these are two node types with separate ids, {key}=false if equal ids are one node"
    )


def _name_one_type(ends: Sequence[str]) -> bool:
    """Returns whether names share a word besides "id", or both have a direction."""
    first, second = (
        {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)} - {"id", "ids"} for name in ends
    )
    return bool(first & second) or all(any(map(_DIRECTION.fullmatch, words)) or not words for words in (first, second))


def two_types(ends: Sequence[str], counts: Sequence[int], names: Sequence[str] | None) -> Fields:
    """Returns the fields of graphs for sources and destinations of two types.

    Args:
        ends: Source and destination id columns.
        counts: Number of nodes of each type.
        names: Names of the relations, if edges have any.
    """
    source, destination = (re.sub("(?<=.)(_id|Id)$", "", name) for name in ends)  # named after the columns
    relations = tuple(Relation(source, name, destination) for name in names or ())
    return {"node_types": ((source, counts[0]), (destination, counts[1])), "relations": relations}


def join_ids(ids: Sequence[pa.Array]) -> Array:  # [num_nodes]
    """Returns both types' ids, as text if one of them has text ids."""
    if any(is_text(part.type) for part in ids):
        return np.array([str(value) for part in ids for value in part.to_pylist()], np.str_)
    return np.concatenate([numbers_of(part) for part in ids])
