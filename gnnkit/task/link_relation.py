"""The relation that a link prediction task predicts."""

from __future__ import annotations

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Relation, Schema
from gnnkit.partition.shard import grouped
from gnnkit.sampler.events import Mask, codes
from gnnkit.sampler.targets import LinkRelation
from gnnkit.utils.ranges import shown, unknown

_REVERSED = 0.5  # share of a relation's edges whose reverse is in another relation, which is then its reverse


def read_relation(value: object) -> str | None:
    """Reads the key `task.relation`: a name, or a source, name and destination.

    Raises `UserError` for other values. Unnamed relations are numbers.
    """
    ends = isinstance(value, list | tuple) and len(value) == len(Relation._fields)
    if ends and all(isinstance(part, str) and part for part in value):  # type: ignore[attr-defined]
        return Relation(*value).edge_type  # type: ignore[misc]
    if isinstance(value, bool) or not isinstance(value, str | int | None) or value == "":
        raise UserError(
            f"task.relation={shown(value)} must be the name of a relation, such as user-buys-item or [user,buys,item]"
        )
    return None if value is None else str(value)


def relation_number(graph: Graph, name: str | None) -> int | None:
    """Returns the position of a relation in the graph's schema.

    Returns None if the task predicts all edges, because no relation is named and the
    graph has several relations, or one that joins all nodes. Raises `UserError` for
    names that the graph does not have.

    Args:
        graph: The graph.
        name: One of `graph.schema.edge_types`, or None.
    """
    schema = graph.schema
    if name is None:
        is_restricted = len(schema.edge_types) == 1 and len(schema.node_types) > 1 and schema.relations is not None
        return 0 if is_restricted else None
    if name in schema.edge_types:
        return schema.edge_types.index(name)
    if graph.edge_type_names is None:
        raise UserError(f"task.relation={shown(name)}: the graph's edges have no types: remove the key")
    near = next((edge_type for edge_type in schema.edge_types if f"-{name}-" in edge_type), name)
    raise unknown(f"task.relation={shown(name)}", near, schema.edge_types)


def find_relation(graph: Graph, number: int, pairs: Ids, is_held_out: Mask) -> LinkRelation:
    """Returns a relation with its reverse relations and the node types at its ends.

    A relation is a reverse one if its end types are swapped, and if it consists of the
    reversed edges or is named `rev_NAME`, as by PyG's `ToUndirected`. Without known end
    types, the edges and names decide.

    Args:
        graph: The graph.
        number: Position of the relation in the graph's schema.
        pairs: [num_edges, 2] source and destination of the graph's edges.
        is_held_out: [num_edges] whether an edge joins the ends of a held-out edge.
    """
    schema = graph.schema
    reverse = () if graph.edge_types is None else _reverse_relations(graph, number, pairs, is_held_out)
    if schema.relations is None:
        return LinkRelation(number, (number, *reverse))
    source, _, destination = schema.relations[number]
    ranges = schema.nodes(source), schema.nodes(destination)
    sources, destinations = ((nodes.start, nodes.stop) for nodes in ranges)
    return LinkRelation(number, (number, *reverse), (*sources, *destinations))


def check_ends(name: str, pairs: Ids, schema: Schema, number: int) -> None:
    """Raises `UserError` if a pair's node types are not those of the relation.

    Args:
        name: Name of the pairs, for the message.
        pairs: [k, 2] source and destination.
        schema: The graph's types.
        number: Position of the relation in the schema.
    """
    if schema.relations is None:
        return
    relation = schema.relations[number]
    for column, (end, node_type) in enumerate((("source", relation.source), ("destination", relation.destination))):
        nodes = schema.nodes(node_type)
        outside = np.flatnonzero((pairs[:, column] < nodes.start) | (pairs[:, column] >= nodes.stop))
        if len(outside):
            raise UserError(
                f"{name}[{outside[0]}, {column}] = {pairs[outside[0], column]} is no {node_type}, the {end} type of "
                f"{relation.edge_type}, whose nodes are {nodes.start} to {nodes.stop - 1}: name the relation of "
                f"{name} in task.relation"
            )


def _reverse_relations(graph: Graph, number: int, pairs: Ids, is_held_out: Mask) -> tuple[int, ...]:
    assert graph.edge_types is not None
    n, schema = graph.num_nodes, graph.schema
    order, starts = grouped(graph.edge_types, len(schema.edge_types))

    def edges_of(relation: int) -> Ids:
        edges = order[starts[relation] : starts[relation + 1]]
        return pairs[edges[~is_held_out[edges]]]

    reversed_codes = np.unique(codes(edges_of(number)[:, ::-1], n))
    if not len(reversed_codes):
        return ()
    candidates = [candidate for candidate in range(len(schema.edge_types)) if _may_reverse(schema, number, candidate)]
    return tuple(
        candidate
        for candidate in candidates
        if _is_named_reverse(schema, number, candidate)
        or np.isin(reversed_codes, codes(edges_of(candidate), n)).mean() > _REVERSED
    )


def _may_reverse(schema: Schema, number: int, other_number: int) -> bool:
    if other_number == number or schema.relations is None:
        return other_number != number
    relation, candidate = schema.relations[number], schema.relations[other_number]
    return (candidate.source, candidate.destination) == (relation.destination, relation.source)


def _is_named_reverse(schema: Schema, number: int, other_number: int) -> bool:
    names = [
        schema.edge_types[i] if schema.relations is None else Relation(*schema.relations[i]).name
        for i in (number, other_number)
    ]
    return names[1] == f"rev_{names[0]}" or names[0] == f"rev_{names[1]}"
