"""The types of the nodes and of the edges of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnkit.errors import UserError
from gnnkit.graph.fields import names_of

NodeTypes = tuple[tuple[str, int], ...]  # name and number of nodes of each type, in the order of ids


@dataclass(frozen=True, slots=True)
class Schema:
    """Types of nodes as ranges of ids, and types of edges by number.

    A graph of one type has one range without a name, and one relation.
    """

    node_types: NodeTypes
    edge_types: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether there are several types of nodes or of edges."""
        return len(self.node_types) > 1 or len(self.edge_types) > 1

    def nodes(self, name: str) -> slice:
        """Returns the range of ids of a type of nodes.

        Raises `UserError` for another name.
        """
        begin = 0
        for each, count in self.node_types:
            if each == name:
                return slice(begin, begin + count)
            begin += count
        raise UserError(f"node type {name!r} is none of {', '.join(each for each, _ in self.node_types)}")


def node_types_of(values: Iterable[Iterable[object]] | None, num_nodes: int) -> NodeTypes | None:
    """Reads names and numbers of nodes of the types of nodes, if there are any.

    Raises `UserError` where names are equal, or numbers do not add up.

    Args:
        values: (name, number of nodes) of each type, or None.
        num_nodes: Number of nodes of the graph.
    """
    if values is None:
        return None
    types = tuple((name, count) for name, count in values)
    names_of("node_types", [name for name, _ in types])  # type: ignore[misc]
    counts = [count for _, count in types]
    if any(not isinstance(count, int) or count < 0 for count in counts) or sum(counts) != num_nodes:  # type: ignore[arg-type]
        raise UserError(f"node_types have {counts} nodes, expected numbers that add up to {num_nodes}")
    return types  # type: ignore[return-value]
