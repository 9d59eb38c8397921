"""Edges to predict: their relation, and their training, validation and test split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Tally, derive
from gnnkit.engine.remote import Lookup
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Relation, Schema, Split
from gnnkit.graph.graph import HELD_OUT
from gnnkit.graph.split import parts_of
from gnnkit.graph.times import NEVER, has_time
from gnnkit.graph.types import Fields
from gnnkit.partition.shard import grouped
from gnnkit.sampler.events import Mask, codes
from gnnkit.sampler.links import HeldOutEdges, Links, Timeline, at_times, draw_for_pairs, pair_codes, pairs_of
from gnnkit.sampler.targets import LinkRelation
from gnnkit.strategy import Worker
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


EdgeSplit = tuple[HeldOutEdges, HeldOutEdges, Mask, Timeline]  # validation, test, which edges are held out, times
_CHUNK = 2**16  # pairs whose rows are in memory at a time
_POWER, _STEPS = 0.75, 8  # popularity exponent (Mikolov et al., NeurIPS 2013), and a mean node's repetitions


def draw_split(pairs: Ids, num_nodes: int, shares: tuple[float, float], key: int, is_predicted: Mask) -> EdgeSplit:
    """Samples validation and test edges.

    Args:
        pairs: [num_edges, 2] edges of the graph.
        num_nodes: Number of nodes.
        shares: Shares of validation and test edges.
        key: Random key.
        is_predicted: [num_edges] which edges to sample.

    Returns:
        Validation edges, test edges, and which of `pairs` join the ends of one.
    """
    draw = draw_for_pairs(pairs, num_nodes, key)
    draw[pairs[:, 0] == pairs[:, 1]] = 1  # self-loops are never held out
    is_held_out, val = draw < sum(shares), (draw < shares[0]) & is_predicted
    return HeldOutEdges(pairs[val]), HeldOutEdges(pairs[is_held_out & ~val & is_predicted]), is_held_out, Timeline()


def read_split(graph: Graph, pairs: Ids, number: int | None) -> EdgeSplit:
    """Returns the dataset's validation and test edges.

    Also returns which of `pairs` are such edges or their reverse edges. If more edges
    join two nodes than are held out, these are other events, and a warning counts them.

    Args:
        graph: The graph, with `val_edges` or `test_edges`.
        pairs: [num_edges, 2] its edges.
        number: The relation's position in the schema, or None.
    """
    none = np.zeros((0, 2), np.int64)
    val, test = (none if edges is None else edges for edges in (graph.val_edges, graph.test_edges))
    if number is not None:
        check_ends("val_edges", val, graph.schema, number)
        check_ends("test_edges", test, graph.schema, number)
    held_out, n = np.concatenate([val, test]), graph.num_nodes
    is_held_out = np.isin(pair_codes(pairs, n), pair_codes(held_out, n))
    if number is not None and graph.edge_types is not None:
        predicted_pairs = pairs[is_held_out & (graph.edge_types == number)]
    else:
        predicted_pairs = pairs[is_held_out]
    recurring = _find_recurring(predicted_pairs, held_out, n)
    if len(recurring):
        count = int(np.isin(pair_codes(held_out, n), recurring).sum())
        warnings.warn(
            f"{count:,} of {len(held_out):,} held-out edges join nodes that more edges of the data join: these are other events "
            "and stay in training; remove copies of held-out edges from the data, or split by time",
            stacklevel=4,
        )
    is_held_out &= ~np.isin(pair_codes(pairs, n), recurring)
    return HeldOutEdges(val), HeldOutEdges(test), is_held_out, Timeline()


def _find_recurring(pairs: Ids, held_out: Ids, num_nodes: int) -> Ids:
    """Returns codes of unordered pairs that more edges join than are held out.

    Args:
        pairs: [k, 2] edges of the data.
        held_out: [num_held, 2] held-out edges.
        num_nodes: Number of nodes.
    """
    keys, counts = _count_events(pairs, num_nodes)
    held_keys, held_counts = _count_events(held_out, num_nodes)
    return keys[counts > held_counts[np.searchsorted(held_keys, keys)]]


def _count_events(pairs: Ids, num_nodes: int) -> tuple[Ids, Ids]:
    """Counts the edges of each unordered pair, in the direction that has more."""
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    keys, numbers = np.unique(pair_codes(distinct, num_nodes), return_inverse=True)
    max_counts = np.zeros(len(keys), np.int64)
    np.maximum.at(max_counts, numbers.reshape(-1), counts)
    return keys, max_counts


def split_events(graph: Graph, pairs: Ids, is_predicted: Mask) -> EdgeSplit:
    """Holds out the edges from `Graph.time_borders` on, and no others of their pairs.

    Edges that are never visible are not events. A node exists after `Graph.node_time`,
    or after its first edge.

    Args:
        graph: The graph, with `edge_time` and `time_borders`.
        pairs: [num_edges, 2] its edges.
        is_predicted: [num_edges] which edges to predict.

    Returns:
        Validation edges, test edges, which of `pairs` are later than training, and the
        times.
    """
    assert graph.edge_time is not None
    assert graph.time_borders is not None
    times, later = np.asarray(graph.edge_time), graph.edge_time >= graph.time_borders[0]
    parts = np.where(is_predicted & (pairs[:, 0] != pairs[:, 1]), parts_of(times, graph.time_borders), Split.NONE)
    val, test = (_in_listed_order(graph, parts == part) for part in (Split.VAL, Split.TEST))
    node_time = graph.node_time
    if node_time is None:
        node_time = np.full(graph.num_nodes, NEVER)
        np.minimum.at(node_time, pairs.ravel(), times.repeat(2))
    timeline = replace(_list_events(graph, pairs, is_predicted), train_time=times[~later], node_time=node_time)
    return HeldOutEdges(pairs[val], times[val]), HeldOutEdges(pairs[test], times[test]), later, timeline


def _list_events(graph: Graph, pairs: Ids, is_predicted: Mask) -> Timeline:
    """Returns the predicted edges that have a time."""
    times = np.asarray(graph.edge_time)
    mask = is_predicted & has_time(times)
    features = None if graph.edge_features is None else np.asarray(graph.edge_features)[mask]
    return Timeline(np.concatenate([pairs[mask], times[mask, None]], 1), features)


def with_events(links: Links, graph: Graph) -> Links:
    """Returns links that are not split by time, with all events of a graph."""
    is_predicted = np.broadcast_to(links.predicts(graph.edge_types), graph.num_edges)
    return replace(links, timeline=_list_events(graph, pairs_of(graph.csc), is_predicted))


def _in_listed_order(graph: Graph, mask: Mask) -> Ids:
    """Returns the ids of some edges, in the order of the user's edge list."""
    edges = np.flatnonzero(mask)
    return edges if graph.edge_positions is None else edges[np.argsort(graph.edge_positions[edges], kind="stable")]


def with_negatives(graph: Graph, val: HeldOutEdges, test: HeldOutEdges) -> tuple[HeldOutEdges, HeldOutEdges]:
    """Returns the held-out edges with the negative pairs that the data define.

    Raises `UserError` if they are not equally many for each held-out edge.

    Args:
        graph: The graph.
        val: Validation edges.
        test: Test edges.
    """
    given = [nodes for nodes in (graph.val_negatives, graph.test_negatives) if nodes is not None]
    for name, pairs in (("val_negatives", val.pairs), ("test_negatives", test.pairs)):
        nodes = getattr(graph, name)
        if nodes is None:
            continue
        if len(nodes) != len(pairs):
            raise UserError(f"{name} has {len(nodes)} rows, expected one for each of {len(pairs)} held-out edges")
        if (bad := np.argwhere(nodes == pairs[:, 1:])).size:
            raise UserError(f"{name}[{bad[0, 0]}, {bad[0, 1]}] is the destination of the edge itself: remove it")
    if len({nodes.shape[1] for nodes in given}) > 1 or any(nodes.shape[1] == 0 for nodes in given):
        raise UserError("val_negatives and test_negatives: expected equally many columns, at least one")
    return replace(val, negatives=graph.val_negatives), replace(test, negatives=graph.test_negatives)


def repeat_by_popularity(pairs: Ids, num_nodes: int) -> Ids:  # [num]
    """Repeats each node in proportion to its edge count to the power 0.75.

    Repetitions are rounded, and are 8 on average and at least 1.

    Args:
        pairs: [k, 2] training edges.
        num_nodes: Number of nodes of the graph.
    """
    weights = np.bincount(pairs.ravel(), minlength=num_nodes) ** _POWER
    repetitions = np.rint(_STEPS * weights / weights.mean()).astype(np.int64)
    return np.repeat(np.arange(num_nodes), np.maximum(repetitions, 1))


def edge_filters(pairs: Ids, is_held_out: Mask, held_out: Ids, num_nodes: int) -> tuple[Ids, Ids]:
    """Returns codes for the training edges, and for all edges.

    If each training edge has its reverse edge, the graph is undirected. The reverse of
    a held-out edge then counts as an edge, even if the dataset lists it once.

    Args:
        pairs: [k, 2] edges of the graph, or of the relation.
        is_held_out: [k] which of them are held out.
        held_out: [num_held, 2] validation and test edges.
        num_nodes: Number of nodes of the graph.
    """
    training = np.unique(codes(pairs[~is_held_out], num_nodes))
    is_undirected = np.array_equal(training, np.unique(codes(pairs[~is_held_out, ::-1], num_nodes)))
    held_out = np.concatenate([pairs[is_held_out], held_out, *([held_out[:, ::-1]] if is_undirected else [])])
    return training, np.union1d(training, codes(held_out, num_nodes))


def check_negatives(edge_codes: Ids, num_nodes: int, relation: LinkRelation | None) -> None:
    """Raises `UserError` if all pairs of different nodes are edges.

    Args:
        edge_codes: [num_codes] codes of all edges.
        num_nodes: Number of nodes of the graph.
        relation: The relation to predict, or None.
    """
    num_loops = np.count_nonzero(edge_codes % max(num_nodes, 1) == edge_codes // max(num_nodes, 1))
    ends = None if relation is None else relation.ends
    first, last, begin, end = ends or (0, num_nodes, 0, num_nodes)
    num_pairs = (last - first) * (end - begin) - max(min(last, end) - max(first, begin), 0)
    if len(edge_codes) - num_loops == num_pairs:
        reason = f"each of the {last - first} nodes has an edge to every other node"
        if ends is not None:
            reason = f"each of the {last - first} sources has an edge to all {end - begin} destinations"
        raise UserError(f"task=link_prediction: {reason}, so there are no negative pairs: use task.filtered=false")


def with_edges(graph: Graph, edge_ids: Ids) -> Graph:
    """Returns the graph with fewer edges, and no edges to predict.

    Args:
        edge_ids: [k] ascending edge ids.
    """
    csc = CSC(np.searchsorted(edge_ids, graph.csc.indptr), graph.csc.indices[edge_ids])
    no_pairs: Fields = dict.fromkeys(HELD_OUT)
    return graph.select_edges(csc, graph.edge_columns.select(edge_ids), **no_pairs)


def with_edges_before(graph: Graph, time: int) -> Graph:
    """Returns a graph with edge times, without the edges from `time` on."""
    assert graph.edge_time is not None
    return with_edges(graph, np.flatnonzero(graph.edge_time < time))


@torch.no_grad()
def held_out_scores(score: Callable[..., Tensor], outputs: Tensor, worker: Worker, links: Links, split: str) -> Tensor:
    """Scores a split's edges, each followed by its negative pairs. Collective.

    Rank r scores the edges r, r + P, ..., in chunks, because rows come from all ranks.

    Args:
        score: Scores embedding pairs [k, c, 2, width]. With a split by time, the second
            argument are the pairs with their time [k, c, 3].
        outputs: [num_owned, width] outputs for this rank's nodes.
        worker: This rank.
        links: Provides the edges, and draws the negative pairs.
        split: "val" or "test".

    Returns:
        [this rank's edges, 1 + eval_negatives] float64.
    """
    parts = []
    for candidates in held_out_candidates(worker, links, split):
        parts.append(score_at_times(score, outputs, worker, candidates))
    return torch.cat(parts) if parts else outputs.new_empty((0, 1 + links.evaluation.count), dtype=torch.float64)


def score_at_times(score: Callable[..., Tensor], outputs: Tensor, worker: Worker, pairs: Ids) -> Tensor:  # [k, c]
    """Scores pairs [k, c, 2], or [k, c, 3] with their times. Collective.

    Also takes the other arguments of `held_out_scores`.
    """
    embed = worker.embed or _lookup(outputs, worker)
    ends = embed(pairs[..., :2], pairs[..., 2:].repeat(2, -1))
    events = [] if pairs.shape[2] == 2 else [torch.from_numpy(pairs).to(outputs.device)]
    return score(ends, *events).to(torch.float64)


def _lookup(outputs: Tensor, worker: Worker) -> Callable[[Ids, Ids], Tensor]:
    """Returns a function like `Worker.embed` that reads nodes' outputs. Collective."""
    lookup = Lookup(worker.comm, worker.owned, worker.owner, Tally())

    def embed(nodes: Ids, _: Ids) -> Tensor:
        reach, rows = lookup.find(nodes)
        return reach(outputs)[rows]

    return embed


def held_out_candidates(worker: Worker, links: Links, split: str) -> Iterator[Ids]:
    """Yields chunks of a rank's held-out edges, each with its negative pairs.

    All ranks have equally many chunks.

    Args:
        worker: This rank.
        links: Provides the edges, and draws the negative pairs.
        split: "val" or "test".

    Yields:
        [k, 1 + eval_negatives, 2] pairs, or [k, 1 + eval_negatives, 3] with their time
        if edges are split by time.
    """
    num_ranks, size = worker.comm.world_size, max(_CHUNK // (1 + links.evaluation.count), 1)
    held_out: HeldOutEdges = getattr(links, split)
    pairs, times, nodes = held_out.pairs, held_out.time, held_out.negatives
    key = derive(links.seed, ("val", "test").index(split))
    for start in range(0, len(pairs), size * num_ranks):
        ids = np.arange(start + worker.comm.rank, min(start + size * num_ranks, len(pairs)), num_ranks)
        edges = at_times(np.asarray(pairs[ids]), None if times is None else np.asarray(times[ids]))
        candidates = np.repeat(edges[:, None], 1 + links.evaluation.count, 1)
        if nodes is not None:
            candidates[:, 1:, 1] = nodes[ids, : links.evaluation.count]
        else:
            candidates[:, 1:, :2] = links.negative_pairs(edges, ids, links.evaluation.count, key, evaluates=True)
        yield candidates
