"""Splits edges into training, validation and test edges."""

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
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.graph.graph import HELD_OUT
from gnnkit.graph.time_split import parts_of
from gnnkit.graph.times import NEVER, has_time
from gnnkit.graph.types import Fields
from gnnkit.sampler.events import Mask, codes
from gnnkit.sampler.links import Links, at_times, draw_for_pairs, pair_codes, pairs_of
from gnnkit.sampler.targets import LinkRelation
from gnnkit.strategy import Worker
from gnnkit.task.link_relation import check_ends

_CHUNK = 2**16  # pairs whose rows are in memory at a time


def draw_split(
    pairs: Ids, num_nodes: int, shares: tuple[float, float], key: int, is_predicted: Mask
) -> tuple[Ids, Ids, Mask]:
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
    val, is_held_out = draw < shares[0], draw < sum(shares)
    return pairs[val & is_predicted], pairs[is_held_out & ~val & is_predicted], is_held_out


def read_split(graph: Graph, pairs: Ids, number: int | None) -> tuple[Ids, Ids, Mask]:
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
    return val, test, is_held_out & ~np.isin(pair_codes(pairs, n), recurring)


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


def split_events(graph: Graph, pairs: Ids, is_predicted: Mask) -> tuple[Ids, Ids, Mask, Fields]:
    """Holds out the edges from `Graph.time_borders` on, and no others of their pairs.

    Edges that are never visible are not events. A node exists after `Graph.node_time`,
    or after its first edge.

    Args:
        graph: The graph, with `edge_time` and `time_borders`.
        pairs: [num_edges, 2] its edges.
        is_predicted: [num_edges] which edges to predict.

    Returns:
        Validation edges, test edges, which of `pairs` are later than training, and the
        fields of `Links` about times.
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
    fields = {
        **_list_events(graph, pairs, is_predicted),
        "train_time": times[~later],
        "val_time": times[val],
        "test_time": times[test],
        "node_time": node_time,
    }
    return pairs[val], pairs[test], later, fields


def _list_events(graph: Graph, pairs: Ids, is_predicted: Mask) -> Fields:
    """Returns the fields of `Links` about the predicted edges that have a time."""
    times = np.asarray(graph.edge_time)
    mask = is_predicted & has_time(times)
    features = None if graph.edge_features is None else np.asarray(graph.edge_features)[mask]
    return {"events": np.concatenate([pairs[mask], times[mask, None]], 1), "event_features": features}


def with_events(links: Links, graph: Graph) -> Links:
    """Returns links that are not split by time, with all events of a graph."""
    is_predicted = np.broadcast_to(links.predicts(graph.edge_types), graph.num_edges)
    return replace(links, **_list_events(graph, pairs_of(graph.csc), is_predicted))


def _in_listed_order(graph: Graph, mask: Mask) -> Ids:
    """Returns the ids of some edges, in the order of the user's edge list."""
    edges = np.flatnonzero(mask)
    return edges if graph.edge_positions is None else edges[np.argsort(graph.edge_positions[edges], kind="stable")]


def read_negatives(graph: Graph, val: Ids, test: Ids) -> Fields:
    """Returns the fields of `Links` about negative pairs that the data define.

    Raises `UserError` if they are not equally many for each held-out edge.

    Args:
        graph: The graph.
        val: [num_val, 2] validation edges.
        test: [num_test, 2] test edges.
    """
    fields: Fields = {}
    for name, pairs in (("val_negatives", val), ("test_negatives", test)):
        nodes = getattr(graph, name)
        if nodes is None:
            continue
        if len(nodes) != len(pairs):
            raise UserError(f"{name} has {len(nodes)} rows, expected one for each of {len(pairs)} held-out edges")
        if (bad := np.argwhere(nodes == pairs[:, 1:])).size:
            raise UserError(f"{name}[{bad[0, 0]}, {bad[0, 1]}] is the destination of the edge itself: remove it")
        fields[name] = nodes
    if len({nodes.shape[1] for nodes in fields.values()}) > 1 or any(nodes.shape[1] == 0 for nodes in fields.values()):
        raise UserError("val_negatives and test_negatives: expected equally many columns, at least one")
    return fields


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
    return torch.cat(parts) if parts else outputs.new_empty((0, 1 + links.eval_negatives), dtype=torch.float64)


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
    num_ranks, size = worker.comm.world_size, max(_CHUNK // (1 + links.eval_negatives), 1)
    pairs, times, nodes = (getattr(links, f"{split}{suffix}") for suffix in ("", "_time", "_negatives"))
    key = derive(links.seed, ("val", "test").index(split))
    for start in range(0, len(pairs), size * num_ranks):
        ids = np.arange(start + worker.comm.rank, min(start + size * num_ranks, len(pairs)), num_ranks)
        edges = at_times(np.asarray(pairs[ids]), None if times is None else np.asarray(times[ids]))
        candidates = np.repeat(edges[:, None], 1 + links.eval_negatives, 1)
        if nodes is not None:
            candidates[:, 1:, 1] = nodes[ids, : links.eval_negatives]
        else:
            candidates[:, 1:, :2] = links.negative_pairs(edges, ids, links.eval_negatives, key, evaluates=True)
        yield candidates
