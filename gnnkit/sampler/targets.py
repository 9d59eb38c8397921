"""The rows that a task predicts: nodes, or pairs of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Floats, Graph, Ids, Labels, Split, labelled
from gnnkit.graph.edge_order import sort_by_time
from gnnkit.graph.split import describe_parts, parts_of, time_spans
from gnnkit.graph.times import ALWAYS, NEVER, Times, has_time, newest, show_time
from gnnkit.graph.types import take
from gnnkit.partition.shard import Shard
from gnnkit.utils.checks import check_range
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit.utils.storage import save_arrays

_MAX_NODES = 2**48
SEEN = {
    "strict": "before its own time",
    "inclusive": "up to its own time",
    "window": "before its own time, up to the age sampler.window",
}  # the edges that a seed sees, by `Sampler.time`


@dataclass(frozen=True, slots=True)
class LinkRelation:
    """The predicted relation.

    Edges of the `hidden` relations pass no messages between the ends of a predicted
    edge: those of the relation itself, and of its reverse relations.
    """

    number: int
    hidden: tuple[int, ...]
    # The first and last node of its sources, then of its destinations, the last ones
    # excluded. Negative pairs then have another destination. None: all nodes.
    ends: tuple[int, int, int, int] | None = None

    @property
    def joins_types(self) -> bool:
        """Whether sources and destinations have different node types."""
        return self.ends is not None and self.ends[:2] != self.ends[2:]

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any] | None) -> LinkRelation | None:
        """Reads the plain values that `TaskRows.save` writes."""
        if plain is None:
            return None
        ends = plain["ends"]
        return cls(plain["number"], tuple(plain["hidden"]), None if ends is None else tuple(ends))

    def check(self, num_nodes: int) -> None:
        """Raises `UserError` if a number is out of range."""
        ends = np.array([0, 0, 0, 0] if self.ends is None else self.ends)
        for name, numbers, last in (("hidden", np.array(self.hidden), MAX_COUNT), ("ends", ends, num_nodes + 1)):
            if numbers.dtype.kind != "i" or numbers.ndim != 1:
                raise UserError(f"{name} is not a list of integers")
            check_range(name, numbers, 0, last)
        if self.number not in self.hidden:
            raise UserError(f"hidden={list(self.hidden)} must include the relation {self.number}")
        if len(ends) != 4 or ends[0] > ends[1] or ends[2] > ends[3]:
            raise UserError(f"ends={ends.tolist()} must be the first and last sources and destinations")


class RowValues(NamedTuple):
    """Properties of a task's rows."""

    label: Labels  # [n, ...] as `Graph.labels`
    split: npt.NDArray[np.int8]  # [n] values of `Split`
    time: Times | None  # [n] in the data's unit


class TaskRows:
    """The rows that a task predicts, of all ranks, as `Task.prepare` returns them.

    `NodeRows` are the graph's nodes, `Targets` pairs of nodes with labels, and `Links`
    the edges themselves. Code that depends on what a task predicts asks these methods,
    which default to those of nodes.
    """

    __slots__ = ()
    pairs: ClassVar[bool] = True  # whether rows are pairs of nodes, of which another rank may own one
    drawn: ClassVar[bool] = False  # whether each epoch draws its rows: edges that it hides, and pairs without an edge
    relation: LinkRelation | None  # of the pairs. None: edges of all relations, or nodes

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the task's head per row. 0: there is no such head."""
        return 0

    @property
    def at_own_times(self) -> bool:
        """Whether nodes have an output for each row's time, if batches have times."""
        return self.pairs

    @property
    def is_frozen(self) -> bool:
        """Whether held-out edges, and all later ones, pass no messages."""
        return False

    @property
    def edge_split(self) -> str | None:
        """The held-out edges' origin, "data set" or "drawn", or None without any."""
        return None

    def values(self, graph: Graph) -> RowValues:
        """Returns the rows' values. `graph` is the graph of `Task.prepare`."""
        return RowValues(graph.labels, graph.split, graph.node_time)

    def of_rank(self, shard: Shard) -> Targets:
        """Returns the rows that a rank measures and writes. Default: its nodes."""
        return Targets(shard.num_classes, shard.owned, shard.owned, shard.labels, shard.split)

    def num_rows(self, num_nodes: int) -> int:
        """Returns the number of all ranks' rows in `of_rank`."""
        return num_nodes

    def count(self, split: Split, targets: Targets) -> int:
        """Counts a rank's rows in a split, which are its weight in a mean of models.

        Args:
            split: The split.
            targets: The rank's rows.
        """
        return len(targets.of_split(split))

    def save(self, folder: Path) -> None:
        """Writes the rows into `folder` atomically, unless they are a graph's nodes."""

    def with_inverse_edges(self, num_relations: int) -> TaskRows:
        """Returns the rows for a graph with inverse edges. Their relations come last.

        Args:
            num_relations: Number of relations without the inverse ones.
        """
        return self

    def arrange(self, graph: Graph, rule: str) -> tuple[Graph, TaskRows]:
        """Sorts the graph's in-edges, in listed order, for samplers by time.

        With `window`, nodes and edges to predict that have no time are as of the moment
        after the newest edge.

        Args:
            graph: The graph that passes messages.
            rule: `Sampler.time`. With "none", the order is that of `graph`.
        """
        if rule == "none":
            return graph, self
        graph = sort_by_time(graph)[0]
        if rule == "window":
            graph = graph.evolve(node_time=with_times(graph.node_time, graph.num_nodes, graph.edge_time))
        return graph, self

    def describe(self) -> list[str]:
        """Returns a line about the rows, if they are not the graph's nodes."""
        return []

    def describe_split(self, complete: Graph, train_graph: Graph, hint: Sequence[str] = ()) -> list[str]:
        """Returns lines about a split of the rows by time, and about recurring pairs.

        Args:
            complete: The graph with all edges.
            train_graph: The graph of `Task.prepare`.
            hint: Lines about the alternative to leaving out held-out edges.
        """
        if complete.edge_time is None or complete.time_borders is None:
            return []
        parts = parts_of(complete.edge_time, complete.time_borders)
        lines = [describe_parts(complete.edge_time, parts, complete.time_unit, "edges")]
        if (count := complete.num_edges - train_graph.num_edges) > 0:
            first = show_time(complete.time_borders[0], complete.time_unit)
            lines += [f"time: {count:,} edges from {first} on pass no messages, also in evaluation", *hint]
        return lines

    def describe_sampled(self, graph: Graph, rule: str, *, trains: bool) -> list[str]:
        """Describes what seeds see. Raises `UserError` if rows have no times.

        Args:
            graph: The graph.
            rule: `Sampler.time`, other than "none".
            trains: Whether rows are predicted at their times.
        """
        label, split, time = self.values(graph)
        is_predicted = labelled(label) & (split != Split.NONE)
        times = np.full(len(split), ALWAYS) if time is None else time
        num_untimed = int(np.count_nonzero(is_predicted & ~has_time(times)))
        noun = "edge" if self.pairs else "node"
        if num_untimed:
            raise UserError(
                f"sampler.time={rule}: {num_untimed:,} of {np.count_nonzero(is_predicted):,} {noun}s in the split have no time: give "
                f"each one ({noun}_time), or remove it from the split"
            )
        labelled_noun = "labelled " * self.pairs + noun
        return [f"sampler.time={rule}: each {labelled_noun} sees the edges {SEEN[rule]}, in training and evaluation"]


class NodeRows(TaskRows):
    """The graph's nodes, with its labels and splits."""

    __slots__ = ()
    pairs = False
    relation = None

    def describe_split(self, complete: Graph, train_graph: Graph, hint: Sequence[str] = ()) -> list[str]:
        if not time_spans(train_graph):
            return []
        assert train_graph.node_time is not None
        return [describe_parts(train_graph.node_time, train_graph.split, train_graph.time_unit, "labelled nodes")]


NODES: TaskRows = NodeRows()


@dataclass(frozen=True, slots=True, eq=False)
class Targets(TaskRows):
    """The rows that a task predicts, with their labels and splits.

    A row is a node, or a pair of nodes joined by an edge. All edges are rows, also
    unlabelled ones, in the order of the user's edge list.
    """

    num_classes: int  # as `Graph.num_classes`, of the labels
    ids: Ids  # [n] global row numbers, ascending
    rows: Ids  # [n] nodes, or [n, 2] sources and destinations
    label: Labels  # [n, ...] as `Graph.labels`
    split: npt.NDArray[np.int8]  # [n] values of `Split`
    positions: Ids | None = None  # [n] edges in the user's edge list. None: rows are nodes, or join no edge
    features: Floats | None = None  # [n, edge_width] the edges' features
    time: Times | None = None  # [n] in the data's unit. None: the data have no times
    relation: LinkRelation | None = None  # the relation of the edges. None: edges of all relations
    time_unit: str | None = None  # as `Graph.time_unit`

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [n]
        """Whether each row has a label."""
        return labelled(self.label)

    @property
    def end_times(self) -> Times:  # [n, 2]
        """The time of each row, once for each end. Ends without times see all edges."""
        time = np.full(len(self), NEVER) if self.time is None else self.time
        return np.repeat(time[:, None], 2, 1)

    def of_split(self, split: Split) -> npt.NDArray[np.int64]:  # [k] ascending
        """Returns the places of a split's labelled rows."""
        return np.flatnonzero(self.labelled & (self.split == split))

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    @property
    def is_frozen(self) -> bool:
        if self.time is None:
            return False
        trains, is_held_out = self.split == Split.TRAIN, self.split > Split.TRAIN
        return bool(is_held_out.any() and self.time[trains].max(initial=ALWAYS) < self.time[is_held_out].min())

    def values(self, graph: Graph) -> RowValues:
        return RowValues(self.label, self.split, self.time)

    def of_rank(self, shard: Shard) -> Targets:
        """Returns the pairs into a rank's nodes."""
        is_owned = np.zeros(shard.num_nodes, np.bool_)
        is_owned[shard.owned] = True
        return self.take(np.flatnonzero(is_owned[self.rows[:, 1]]))

    def num_rows(self, num_nodes: int) -> int:
        return len(self)

    def arrange(self, graph: Graph, rule: str) -> tuple[Graph, Targets]:
        graph = super(Targets, self).arrange(graph, rule)[0]
        times = with_times(self.time, len(self), graph.edge_time) if rule == "window" else self.time
        return graph, replace(self, time=times)

    def take(self, places: Ids) -> Targets:
        """Selects rows."""
        columns: dict[str, Any] = {name: take(getattr(self, name), places) for name in _ARRAYS}
        return replace(self, **columns)

    def describe(self) -> list[str]:
        if not self.labelled.any():
            return []
        counts = ", ".join(f"{len(self.of_split(part)):,} {name}" for name, part in SPLITS.items())
        return [f"edges: {np.count_nonzero(self.labelled):,} of {len(self):,} have a label ({counts})"]

    def save(self, folder: Path) -> None:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_rows(self, folder, arrays, {"num_classes": self.num_classes, "time_unit": self.time_unit})

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, object], meta: dict[str, Any]) -> Targets:
        """Restores the rows from the arrays and values of `save`."""
        rows = cls(
            num_classes=whole("num_classes", meta["num_classes"], 0, MAX_COUNT),
            relation=LinkRelation.of_plain(meta["relation"]),
            time_unit=meta.get("time_unit"),
            **{name: arrays.get(name) for name in _ARRAYS},  # type: ignore[arg-type]
        )
        for name in ("ids", "label", "split", *{"positions"}.intersection(arrays)):
            if len(getattr(rows, name)) != len(rows.rows):
                raise UserError(f"{name} has {len(getattr(rows, name))} rows, expected {len(rows.rows)}")
        if rows.rows.ndim != 2 or rows.rows.shape[1] != 2 or rows.rows.dtype.kind not in "iu":
            raise UserError("rows is not a table of integers with two columns")
        check_range("rows", rows.rows.ravel(), 0, _MAX_NODES)
        return rows


_ARRAYS = tuple(field.name for field in fields(Targets) if field.name not in ("num_classes", "relation", "time_unit"))


def save_rows(rows: TaskRows, folder: Path, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Writes rows into `folder` atomically.

    Args:
        rows: The rows.
        folder: The folder.
        arrays: Their arrays by name. None is left out.
        values: Their plain values besides the relation.
    """
    relation = None if rows.relation is None else asdict(rows.relation)
    save_arrays(folder, arrays, {**values, "relation": relation})


def targets_of(rows: TaskRows) -> Targets:
    """Returns the rows of a task on labelled pairs."""
    assert isinstance(rows, Targets)
    return rows


def count_classes(label: Labels, names: object) -> int:
    """Counts classes or numbers to predict, like `Graph.num_classes`."""
    if label.ndim == 2:
        return int(label.shape[1])
    if label.dtype.kind == "f":
        return 1
    return int(label.max(initial=-1)) + 1 if names is None else len(names)  # type: ignore[arg-type]


def with_times(times: Times | None, count: int, edge_time: Times | None) -> Times:  # [count]
    """Returns times, with the moment after the newest edge in place of missing ones."""
    times = np.full(count, ALWAYS) if times is None else np.asarray(times)
    return np.where(has_time(times), times, newest(np.asarray(edge_time)) + 1)
