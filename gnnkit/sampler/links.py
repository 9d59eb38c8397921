"""Edges predicted by a task, and negative pairs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Graph, Ids, Split
from gnnkit.graph.edge_order import sort_by_time
from gnnkit.graph.times import ALWAYS, NEVER, Times, has_time
from gnnkit.sampler.events import MAX_NODES, EventHistory, EventNegatives, Mask, codes
from gnnkit.sampler.targets import SEEN, LinkRelation, Targets, TaskRows, save_rows, with_times
from gnnkit.utils.checks import check_range, floats
from gnnkit.utils.ranges import MAX_COUNT, real, shown, whole
from gnnkit.utils.storage import load_arrays


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutEdges:
    """The edges of a split that are predicted."""

    pairs: Ids  # [k, 2]
    time: Times | None = None  # [k] None: edges are not split by time
    negatives: Ids | None = None  # [k, c] int64 other destinations that the data define

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def events(self) -> Ids:  # [k, 2 or 3]
        """The pairs, with their time if edges are split by time."""
        return at_times(np.asarray(self.pairs), None if self.time is None else np.asarray(self.time))


@dataclass(frozen=True, slots=True, eq=False)
class NegativeRule:
    """How negative pairs are drawn."""

    excluded: Ids | None  # [num] int64 ascending codes of edges that are no negatives, or None
    count: int  # pairs per edge
    popular: Ids | None = None  # [num] int64 nodes to draw, repeated by popularity. None: all
    historical: bool = False  # whether a quarter are earlier destinations of the source


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The times of edges and nodes, as far as the task reads them."""

    events: Ids | None = None  # [num_events, 3] int64 source, destination and time of all edges, if they have times
    event_features: Floats | None = None  # [num_events, edge_width] None: edges have no features
    train_time: Times | None = None  # [num_edges] of the graph that passes messages, by edge id. None: no time split
    node_time: Times | None = None  # [num_nodes] time after which each node exists


@dataclass(frozen=True, eq=False)
class Links(TaskRows):
    """The edges that a task predicts. Training edges are the graph's edges.

    Pairs are rows of (source, destination).
    """

    drawn = True

    num_nodes: int
    val: HeldOutEdges  # which are not in the graph
    test: HeldOutEdges
    training: NegativeRule  # negative pairs of each training edge
    evaluation: NegativeRule  # negative pairs of each held-out edge, unless the data define them
    supervision_share: float  # share of edges predicted per epoch, unless all are
    seed: int  # seed of the evaluation negatives
    given: bool = False  # whether the data set defines `val` and `test`
    relation: LinkRelation | None = None  # None: edges of all relations are predicted
    timeline: Timeline = Timeline()
    _drawing: dict[bool, EventNegatives] = field(default_factory=dict, init=False, repr=False)  # by `evaluates`

    @property
    def is_frozen(self) -> bool:
        return self.timeline.train_time is not None

    at_own_times = is_frozen

    @property
    def edge_split(self) -> str:
        return "data set" if self.given else "drawn"

    def count(self, split: Split, targets: Targets) -> int:
        """Counts held-out edges, or owned nodes for the training edges."""
        return len(targets if split == Split.TRAIN else self.val if split == Split.VAL else self.test)

    def arrange(self, graph: Graph, rule: str) -> tuple[Graph, Links]:
        """Sorts in-edges, which are predicted as of their times.

        With `inclusive`, an edge of the predicted relation is visible after its own
        time only, and so is its reverse. Links without times are recommended as of the
        moment after the newest edge, with any rule.
        """
        if rule == "none":  # edges may have other ids than in `Task.prepare`
            times = np.asarray(graph.edge_time) if self.is_frozen else None
            return graph, replace(self, timeline=replace(self.timeline, train_time=times))
        times = np.asarray(graph.edge_time)
        if not self.is_frozen:
            graph = sort_by_time(graph)[0]
            return graph.evolve(node_time=with_times(None, graph.num_nodes, graph.edge_time)), self
        is_event = self.hides(graph.edge_types) & has_time(times)
        graph, order = sort_by_time(graph.evolve(edge_time=times + (is_event if rule == "inclusive" else 0)))
        return graph, replace(self, timeline=replace(self.timeline, train_time=times[order]))

    def describe_split(self, complete: Graph, train_graph: Graph, hint: Sequence[str] = ()) -> list[str]:
        """Also counts held-out edges between nodes that an edge joins in training."""
        lines = super().describe_split(complete, train_graph, hint)
        held_out_codes = pair_codes(np.concatenate([self.val.pairs, self.test.pairs]), train_graph.num_nodes)
        pairs = pairs_of(train_graph.csc)
        if train_graph.edge_time is not None and self.is_frozen:  # later edges may pass messages, too
            pairs = pairs[train_graph.edge_time < self.first_held_out]
        count = int(np.isin(held_out_codes, pair_codes(pairs, train_graph.num_nodes)).sum())
        share = f"{100 * count / max(len(held_out_codes), 1):.0f} %"
        line = f"held-out edges: {count:,} of {len(held_out_codes):,} ({share}) join nodes that also an edge in training joins"
        return [*lines, line] if count else lines

    def describe_sampled(self, graph: Graph, rule: str, *, trains: bool) -> list[str]:
        if not trains:
            return [f"sampler.time={rule}: recommendations are as of the newest edge"]
        if not self.is_frozen:
            raise UserError(
                f"sampler.time={rule}: the edges that the task predicts are not split by time: set "
                "dataset.split='{by: time, shares: [0.7,0.15,0.15]}', or use sampler.time=none"
            )
        also = ", and edges of other relations at that time" * (rule == "inclusive" and self.relation is not None)
        visible_edges = SEEN["strict" if rule == "inclusive" else rule] + also
        return [
            f"sampler.time={rule}: each edge is predicted from the edges {visible_edges}, in training and evaluation"
        ]

    def predicts(self, types: Ids | None) -> Mask | np.bool_:  # [num_edges]
        """Returns whether edges are predicted, self-loops aside.

        Args:
            types: [num_edges] each edge's relation. If None, the graph has one
                relation.
        """
        if self.relation is None or types is None:
            return np.True_
        return np.asarray(types == self.relation.number)

    def trains(self, edges: Ids | slice = slice(None)) -> Mask | np.bool_:  # [k]
        """Returns whether edges [k] are events before the first held-out one, by id.

        True without a split by time, in which no held-out edge has an id.
        """
        if self.timeline.train_time is None:
            return np.True_
        times = self.timeline.train_time[edges]
        return np.asarray((times != ALWAYS) & (times < self.first_held_out))

    @functools.cached_property
    def first_held_out(self) -> int:
        """Time of the first held-out edge, if edges are split by time."""
        times = (split.time for split in (self.val, self.test) if split.time is not None and len(split))
        return min((int(time.min()) for time in times), default=NEVER)

    def hides(self, types: Ids | None) -> Mask | np.bool_:  # [num_edges]
        """Returns which edges pass no messages if their ends are a predicted pair.

        Args:
            types: [num_edges] each edge's relation. If None, the graph has one
                relation.
        """
        if self.relation is None or types is None:
            return np.True_
        return np.isin(types, self.relation.hidden)

    def draw_supervised(self, pairs: Ids, key: int, threads: int = 1) -> Mask:  # [k]
        """Draws the edges [k, 2] that an epoch predicts, without self-loops."""
        mask = draw_for_pairs(pairs, self.num_nodes, key, threads) < self.supervision_share
        return np.asarray(mask & (pairs[:, 0] != pairs[:, 1]))

    def with_inverse_edges(self, num_relations: int) -> Links:
        """Hides the inverse edges too. Their relations are numbered after the others.

        Args:
            num_relations: Number of relations without the inverse ones. 1 if this task
                predicts the edges of all relations.
        """
        assert self.relation is not None or num_relations == 1, "a relational model predicts one relation"
        relation = self.relation or LinkRelation(0, (0,))
        hidden = (*relation.hidden, *(number + num_relations for number in relation.hidden))
        return replace(self, relation=replace(relation, hidden=hidden))

    def save(self, folder: Path) -> None:
        training, evaluation = self.training, self.evaluation
        arrays = {column.name: getattr(self.timeline, column.name) for column in fields(Timeline)}
        arrays |= {"training": training.excluded, "known": evaluation.excluded, "popular": training.popular}
        for name, split in (("val", self.val), ("test", self.test)):
            arrays |= {name: split.pairs, f"{name}_time": split.time, f"{name}_negatives": split.negatives}
        values = {name: getattr(self, name) for name in _SCALARS} | {"historical": training.historical}
        save_rows(self, folder, arrays, values | {"negatives": training.count, "eval_negatives": evaluation.count})

    def negative_pairs(
        self,
        pairs: Ids,
        ids: Ids,
        count: int,
        key: int,
        among: Ids | None = None,
        threads: int = 1,
        *,
        evaluates: bool = False,
    ) -> Ids:  # [k, count, 2]
        """Draws negative pairs for each edge, with another source or destination.

        Draws depend only on the key and the edge's id. Both ends are replaced equally
        often, by any node that gives a valid pair, in training from `popular` if set.
        With known end types, the destination is replaced by a node of its type, or the
        source if there is none. No pair is a self-loop. Evaluation pairs exclude all
        edges, training pairs only training edges. Edges with times have the pairs of
        `EventNegatives`. Raises `UserError` if no valid pair is found.

        Args:
            pairs: [k, 2] edges, or [k, 3] with their times.
            ids: [k] edge ids.
            count: Number of pairs per edge.
            key: Key of all draws.
            among: [num_candidates] candidate nodes. If None, all nodes.
            threads: Number of threads. Default: 1.
            evaluates: Whether the pairs are used for evaluation.
        """
        negatives = self.evaluation if evaluates else self.training
        edges, rule = (_int64(pairs), _int64(ids)), (count, key % 2**64)
        try:
            if pairs.shape[1] > 2:
                return _by_time(self, among, evaluates=evaluates).draw(*edges, *rule, threads)
            nodes, ends = _candidates(self, among, negatives.popular)
            drawn = _core.negative_pairs(*edges, self.num_nodes, negatives.excluded, nodes, *rule, threads, *ends)
            return drawn.reshape(len(ids), count, 2)
        except UserError as error:
            remedy = "" if negatives.excluded is None else "; use task.filtered=false"
            raise UserError(f"task.{'eval_' * evaluates}negatives={count}: {error}{remedy}") from error

    @functools.cached_property
    def history(self) -> EventHistory:
        """The history of all edges by `codes`, if they are split by time."""
        assert self.timeline.events is not None
        return EventHistory(codes(self.timeline.events, self.num_nodes), self.timeline.events[:, 2])


_SCALARS = ("num_nodes", "supervision_share", "seed", "given")


def links_of(rows: TaskRows) -> Links:
    """Returns the rows of a task that draws them."""
    assert isinstance(rows, Links)
    return rows


def load_rows(folder: Path) -> TaskRows:
    """Maps the rows that `Links.save` or `Targets.save` wrote, read-only.

    Raises `UserError` for files that were not written by `save`, and for links of an
    earlier gnnkit, which also excluded held-out edges from training negatives.
    """
    arrays, meta = load_arrays(folder)
    if "known" in arrays and "training" not in arrays:
        raise UserError(
            f"{folder}: written by an earlier gnnkit, without the filter of training negatives; "
            "write the store again with job=partition, or restart the run in a new folder"
        )
    try:
        return Targets.of_arrays(arrays, meta) if "label" in arrays else _links_of_arrays(arrays, meta)
    except KeyError as error:
        raise UserError(f"{folder} holds no {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder}: {error}") from error


def _links_of_arrays(arrays: dict[str, Any], meta: dict[str, Any]) -> Links:
    """Restores the links from the arrays and values of `Links.save`."""
    _check_values(arrays, meta)
    _check_events(arrays, meta["num_nodes"])
    relation, read = LinkRelation.of_plain(meta.get("relation")), arrays.get
    if relation is not None:
        relation.check(meta["num_nodes"])
    val, test = (HeldOutEdges(arrays[n], read(f"{n}_time"), read(f"{n}_negatives")) for n in ("val", "test"))
    training = NegativeRule(read("training"), meta["negatives"], read("popular"), meta.get("historical") is True)
    rules = {"training": training, "evaluation": NegativeRule(read("known"), meta["eval_negatives"])}
    timeline, values = Timeline(*(read(column.name) for column in fields(Timeline))), {n: meta[n] for n in _SCALARS}
    return Links(val=val, test=test, relation=relation, timeline=timeline, **rules, **values)  # type: ignore[arg-type]


def _check_values(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
    """Raises `UserError` if an array or number of `Links.save` is out of range."""
    limits = {"num_nodes": MAX_NODES, "negatives": MAX_COUNT, "eval_negatives": MAX_COUNT, "seed": 2**64 - 1}
    for name, high in limits.items():
        whole(name, meta[name], 0, high)
    real("supervision_share", meta["supervision_share"], 0, 1)
    if not isinstance(meta["given"], bool):
        raise UserError(f"given={shown(meta['given'])} must be true or false")
    for name, pairs in (("val", arrays["val"]), ("test", arrays["test"])):
        if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2:
            raise UserError(f"{name} is not a table of integers with two columns")
        check_range(name, pairs.ravel(), 0, meta["num_nodes"])
        if (negatives := arrays.get(f"{name}_negatives")) is not None:
            if negatives.dtype != np.int64 or negatives.ndim != 2 or len(negatives) != len(pairs):
                raise UserError(f"{name}_negatives is not a table of int64, with a row for each of {len(pairs)} pairs")
            check_range(f"{name}_negatives", negatives.ravel(), 0, meta["num_nodes"])
    for name in [name for name in ("training", "known") if name in arrays]:
        edge_codes = arrays[name]
        if edge_codes.dtype != np.int64 or edge_codes.ndim != 1 or np.any(np.diff(edge_codes) <= 0):
            raise UserError(f"{name} is not a list of int64 in ascending order")
        check_range(name, edge_codes, 0, meta["num_nodes"] ** 2)
    if "popular" in arrays:
        check_range("popular", arrays["popular"], 0, meta["num_nodes"])


def _check_events(arrays: dict[str, Any], num_nodes: int) -> None:
    if (events := arrays.get("events")) is None:
        return
    if events.dtype != np.int64 or events.ndim != 2 or events.shape[1] != 3:
        raise UserError("events is not a table of int64 with three columns")
    check_range("events", events[:, :2].ravel(), 0, num_nodes)
    if "event_features" in arrays:
        floats("event_features", arrays["event_features"], (len(events), None))
    val, test = len(arrays["val"]), len(arrays["test"])
    for name, size in {"train_time": None, "val_time": val, "test_time": test, "node_time": num_nodes}.items():
        times = arrays.get(name)
        if times is None and "train_time" not in arrays:
            continue
        if times is None or times.dtype != np.int64 or times.shape != (len(times) if size is None else size,):
            raise UserError(f"{name} is not a list of int64, one for each of {size or 'all'} rows")


def _by_time(links: Links, among: Ids | None, *, evaluates: bool) -> EventNegatives:
    """Returns the rule that draws destinations by time."""
    if among is None and evaluates in links._drawing:
        return links._drawing[evaluates]
    events, train_time, node_time = links.timeline.events, links.timeline.train_time, links.timeline.node_time
    rule = links.evaluation if evaluates else links.training
    assert node_time is not None
    assert events is not None
    assert train_time is not None
    nodes = _candidates(links, among, rule.popular)[0]
    nodes = np.arange(links.num_nodes) if nodes is None else nodes
    if links.relation is not None and links.relation.ends is not None:
        first, last = links.relation.ends[2:]
        nodes = nodes[(nodes >= first) & (nodes < last)]
    history, until, earlier = None if links.evaluation.excluded is None else links.history, None, None
    if not evaluates:
        until = int(train_time[train_time < links.first_held_out].max(initial=ALWAYS)) + 1
    if rule.historical:
        events = events if among is None else events[np.isin(events[:, 1], among)]
        earlier = EventHistory(events[:, 0], events[:, 2]), events[:, 1]
    negatives = EventNegatives.of(nodes, node_time, events=history, until=until, earlier=earlier)
    if among is None:
        links._drawing[evaluates] = negatives
    return negatives


def _candidates(
    links: Links, among: Ids | None, popular: Ids | None
) -> tuple[Ids | None, tuple[tuple[int, int, int, int], ...]]:
    """Returns the nodes to draw, and the ranges of the core's `ends`, if any."""
    ends = None if links.relation is None else links.relation.ends
    if popular is not None:
        among = popular if among is None else popular[np.isin(popular, among)]
    nodes = None if among is None else _int64(among)
    if nodes is None or ends is None:
        return nodes, () if ends is None else (ends,)
    sources, destinations = (nodes[(nodes >= first) & (nodes < last)] for first, last in (ends[:2], ends[2:]))
    nodes = np.concatenate([sources, destinations])
    return nodes, ((0, len(sources), len(sources), len(nodes)),)


def at_times(pairs: Ids, times: Times | None) -> Ids:  # [k, 2 or 3]
    """Appends times [k] to pairs [k, 2], if edges are split by time."""
    return pairs if times is None else np.concatenate([pairs, times[:, None]], 1)


def pair_codes(pairs: Ids, num_nodes: int) -> npt.NDArray[np.int64]:  # [k]
    """Encodes node pairs [k, 2] as integers, with the same code for the reverse."""
    return codes(np.sort(pairs, axis=1), num_nodes)


def pairs_of(csc: CSC, edge_ids: Ids | None = None) -> Ids:  # [k, 2]
    """Returns source and destination of edges, by default of all in order."""
    if edge_ids is None:
        destinations = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        return np.stack([csc.indices.astype(np.int64), destinations], 1)
    destinations = np.searchsorted(csc.indptr, edge_ids, side="right") - 1
    return np.stack([csc.indices[edge_ids].astype(np.int64), destinations], 1)


def draw_for_pairs(pairs: Ids, num_nodes: int, key: int, threads: int = 1) -> npt.NDArray[np.float64]:  # [k]
    """Draws a number in [0, 1) for each pair, the same for its reverse.

    Args:
        pairs: [k, 2] edges.
        num_nodes: Number of nodes of the graph.
        key: Key of all draws.
        threads: Number of threads. Default: 1.
    """
    return _core.pair_draws(_int64(pairs), num_nodes, key % 2**64, threads)


def edges_without(
    block: Block, excluded_codes: npt.NDArray[np.int64], num_nodes: int, hidden: Mask | None = None
) -> tuple[Ids, Ids]:
    """Returns the edges of a block that do not join given pairs, in either direction.

    Args:
        block: The block.
        excluded_codes: [k] ascending codes of pairs, from `pair_codes`.
        num_nodes: Number of nodes of the graph.
        hidden: [num_edges] edges that may be left out. If None, all.

    Returns:
        The row offsets [num_dst + 1] and positions of the remaining edges.
    """
    indptr, edges = _core.edges_without(block.indptr, block.indices, block.src_nodes, excluded_codes, num_nodes)
    if hidden is None:
        return indptr, edges
    remains = ~hidden
    remains[edges] = True
    edges = np.flatnonzero(remains)
    return np.searchsorted(edges, block.indptr), edges


def without_pairs(
    block: Block, degree: Ids, excluded_codes: npt.NDArray[np.int64], num_nodes: int, hidden: Mask | None = None
) -> Block:
    """Removes the edges of a block that join given pairs, in either direction.

    A remaining edge keeps its weight, so that sums estimate the sums over all in-edges
    that are not excluded.

    Args:
        block: The block.
        degree: [num_dst] in-degree of each destination in the graph.
        excluded_codes: [k] ascending codes of pairs, from `pair_codes`.
        num_nodes: Number of nodes of the graph.
        hidden: [num_edges] edges that may be removed. If None, all.
    """
    indptr, edges = edges_without(block, excluded_codes, num_nodes, hidden)
    remainder = block.with_edges(indptr, edges)
    if remainder.weight is not None:
        return remainder
    return replace(remainder, weight=np.repeat(degree / np.maximum(np.diff(block.indptr), 1), np.diff(indptr)))


def _int64(ids: Ids) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(ids, np.int64)


def supervised_pairs(
    links: Links, pairs: Ids, ids: Ids, key: int, among: Ids | None = None, threads: int = 1
) -> tuple[Ids, npt.NDArray[np.float32], Ids | None]:
    """Returns edges and negative pairs, with labels 1 and 0, and their events.

    Args:
        links: The task's edges, with `training.count` negative pairs per edge.
        pairs: [k, 2] edges.
        ids: [k] edge ids.
        key: Key of all draws.
        among: [num_candidates] candidate nodes. If None, all nodes.
        threads: Number of threads. Default: 1.

    Returns:
        Pairs [k * (1 + count), 2], labels [k * (1 + count)] and, if edges are split by
        time, sources, destinations and times [k * (1 + count), 3].
    """
    times = None if links.timeline.train_time is None else np.asarray(links.timeline.train_time[ids])
    edges = at_times(pairs, times)
    negative = links.negative_pairs(edges, ids, links.training.count, key, among, threads).reshape(-1, 2)
    labels = np.zeros(len(pairs) + len(negative), np.float32)
    labels[: len(pairs)] = 1
    all_pairs = np.concatenate([pairs, negative])
    pair_times = None if times is None else np.append(times, np.repeat(times, links.training.count))
    return all_pairs, labels, None if times is None else at_times(all_pairs, pair_times)
