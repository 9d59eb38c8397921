"""Tasks whose rows are labelled edges, and earlier labels of their ends."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnkit.engine import Tally
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Graph, Ids, Labels, Split, labelled
from gnnkit.graph.edge_columns import CONTEXT
from gnnkit.graph.edge_order import listed_edges, visible_from
from gnnkit.graph.times import ALWAYS, NEVER, Times, before_window, check_span, has_time, newest, read_span
from gnnkit.graph.types import offsets_of, take
from gnnkit.kernels.sums import wide
from gnnkit.sampler import Sampler
from gnnkit.sampler.events import codes
from gnnkit.sampler.links import pairs_of
from gnnkit.sampler.targets import LinkRelation, Targets, count_classes, targets_of
from gnnkit.strategy import EdgeTask, ExecutionStrategy, Worker
from gnnkit.task.base import NodeTask
from gnnkit.task.decoder import EdgeMLP
from gnnkit.task.link_split import read_relation, relation_number, with_edges_before
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import MAX_WIDTH, switch, whole

LAST = 10  # labels that are averaged
_LEAST = 1e-9  # minimum share of a class, so that logarithms are finite


class EarlierLabels:
    """The labels of the edges of each node, in order of time.

    Edges before a time are strictly before it. Among edges with the same time, those
    later in the list are later. The label of an edge without a time is never read.
    Results depend on the node's own earlier edges alone.
    """

    def __init__(self, ends: Ids, times: Times, labels: npt.NDArray[np.floating]) -> None:
        """Sorts the labels.

        Args:
            ends: [n] the node that each edge belongs to, such as its destination.
            times: [n] the edges' times, with `ALWAYS` or `NEVER` for none.
            labels: [n, outputs] numbers, or a column of 0 and 1 for each class. NaN
                where unknown. Edges with NaN alone are skipped.
        """
        history = np.flatnonzero(has_time(times) & ~np.isnan(labels).all(1))
        history = history[np.lexsort((times[history], ends[history]))]  # by node, then by time
        self._moments, places = np.unique(times[history], return_inverse=True)
        self._codes = ends[history].astype(np.int64) * (len(self._moments) + 1) + places
        self._ends, self._labels = ends[history], labels[history]

    def means(self, nodes: Ids, times: Times, last: int | None = LAST) -> npt.NDArray[np.float64]:  # [k, outputs]
        """Averages the known labels of each node before a time, NaN without any.

        Args:
            nodes: [k] nodes.
            times: [k] the times. `ALWAYS` or `NEVER`, for none, have no earlier edge.
            last: Number of latest edges to average. If None, all.
        """
        first = nodes.astype(np.int64) * (len(self._moments) + 1)
        begin, end = (np.searchsorted(self._codes, first + at) for at in (0, np.searchsorted(self._moments, times)))
        counts = np.where(has_time(times), end - begin, 0)
        sums, num_known = np.zeros((2, len(nodes), self._labels.shape[1]))
        if last is None:
            reached = np.flatnonzero(counts)
            for total, running in zip((sums, num_known), self._running, strict=True):
                total[reached] = running[end[reached] - 1]
        for lag in range(1, (last or 0) + 1):
            reached = np.flatnonzero(counts >= lag)
            values = self._labels[end[reached] - lag]
            sums[reached] += np.nan_to_num(values)
            num_known[reached] += ~np.isnan(values)
        return np.divide(sums, num_known, out=np.full_like(sums, np.nan), where=num_known > 0)

    @cached_property
    def _running(self) -> tuple[Floats, Floats]:
        """Sums of labels, and of known ones, up to each edge."""
        known = (~np.isnan(self._labels)).astype(np.float64)
        return _running_sums(np.nan_to_num(self._labels), self._ends), _running_sums(known, self._ends)


def _running_sums(values: Floats, nodes: Ids) -> Floats:  # [n, width]
    """Computes prefix sums of each node's rows, in place.

    Other nodes' rows do not affect the rounding.

    Args:
        values: [n, width] rows.
        nodes: [n] their nodes, each in consecutive rows.
    """
    _, first, sizes = np.unique(nodes, return_index=True, return_counts=True)
    order, step = np.argsort(first), 1
    places = np.arange(len(nodes)) - np.repeat(first[order], sizes[order])  # within the node's rows
    while (reached := np.flatnonzero(places >= step)).size:
        values[reached] += values[reached - step]
        step *= 2
    return values


def label_columns(label: Labels, num_classes: int) -> npt.NDArray[np.float64]:  # [n, num_classes]
    """Returns numbers as they are, and a column of 0 and 1 for each class, NaN unknown.

    Args:
        label: [n, ...] labels in the form of `Graph.labels`.
        num_classes: Number of classes, or of numbers.
    """
    if label.dtype.kind == "f":
        return np.asarray(label, np.float64).reshape(len(label), -1)
    columns = label if label.ndim == 2 else label[:, None] == np.arange(num_classes)
    return np.where(labelled(label)[:, None], columns, np.nan)


def known_until(times: Times, delay: int) -> Times:  # [n]
    """Returns the times before which labels are known, `ALWAYS` without a time."""
    return np.where(has_time(times), np.maximum(times, ALWAYS + 1 + delay) - delay, ALWAYS)


def outputs_of_labels(edges: Targets, rows: Ids, width: int, delay: int = 0) -> Tensor | None:  # [k, width] float64
    """Predicts the mean of a pair's last labels, or else of its destination, or all.

    It reads all earlier labels, also held-out ones.

    Args:
        edges: All ranks' edges.
        rows: [k] positions of the edges to predict.
        width: Number of classes, or of numbers.
        delay: Time after an edge at which its label is known.

    Returns:
        Numbers, or logarithms of the classes' shares. None if the edges have no times,
        or sets of classes as labels.
    """
    if edges.time is None or edges.label.dtype.kind == "b":
        return None
    columns, until = label_columns(edges.label, width), known_until(edges.time[rows], delay)
    means = np.full((len(rows), width), np.nan)
    for ends in (pair_ids(edges.rows), edges.rows[:, 1]):
        earlier = EarlierLabels(ends, edges.time, columns).means(ends[rows], until)
        means = np.where(np.isnan(means), earlier, means)
    train = columns[edges.of_split(Split.TRAIN)]
    usual = np.nansum(train, 0) / np.maximum((~np.isnan(train)).sum(0), 1)
    outputs = torch.from_numpy(np.where(np.isnan(means), usual, means))
    return outputs if edges.label.dtype.kind == "f" else outputs.clamp(min=_LEAST).log()


def pair_ids(pairs: Ids) -> Ids:  # [n]
    """Numbers the distinct rows of [n, 2] pairs."""
    numbers: Ids = np.unique(codes(pairs, int(pairs.max(initial=-1)) + 1), return_inverse=True)[1]
    return numbers


BASELINE = "last_labels"  # in names of figures, such as `test_last_labels_mae`
NUM_COUNTS = 4  # columns that `inputs_of_head` adds
NUM_MEANS = 10  # columns that it adds for each class or number, with `label_delay`
_PIECE = 2**16  # rows whose moments are computed together
_BATCH = 2**12  # edges whose outputs are computed together. A product's last bits depend on its number of rows


class LabelledEdges(NodeTask):
    """Makes the edges the rows of another task, such as `NodeClassification`.

    The model embeds nodes, and an MLP computes an edge's outputs from the embeddings of
    its ends and from `inputs_of_head`: the edge's features, and how many edges its ends
    have. List this class first:

        class EdgeRanks(LabelledEdges, NodeRanks): ...

    The constructor takes the keys of both classes. `read`, `losses`, `counts`,
    `figures` and `predict` of the other class then receive edges instead of nodes.

    A predicted edge passes messages, because its existence is known. Its own label is
    no input. Edges without a label are predicted, but not learned from.

    Args:
        key: The task's name, for messages.
        width: Embedding size, and size of the MLP's hidden layer.
        edge_features: Whether the MLP reads the edges' features and counts.
        relation: Name of the relation of the edges, as for `LinkPrediction`. If None,
            the only one, or all edges for models that read no types.
        label_delay: Time after an edge at which its label is known: 0, a span such as
            "30 days" if times are dates, or a number of their unit. For each end, the
            MLP then reads the mean labels of the edges out of it and into it that are
            older than this, also of held-out edges: of the last ten, and of all. It
            reads those of the edges between the same two ends, too. If None, no labels.
    """

    pairs, noun, labels_nodes = True, "edge", False
    unit_of_outputs = "task.width"
    timed = frozenset({"embeddings"})

    def __init__(
        self,
        key: str,
        width: int = 64,
        edge_features: bool = True,
        relation: str | Sequence[str] | None = None,
        label_delay: int | str | None = None,
    ) -> None:
        self.key = key
        self.width = whole("task.width", width, 1, MAX_WIDTH)
        self.edge_features = switch("task.edge_features", edge_features)
        self.relation = read_relation(relation)
        self.label_delay = check_span("task.label_delay", label_delay)
        if label_delay is not None:
            age = f", older than {label_delay}" if label_delay else ""
            self.reads_labels = f"predictions read those of earlier edges{age}, also of held-out ones"
        self._sizes: tuple[int, int] | None = None  # outputs and edge features, set by `size_head`
        self._unit: tuple[Array, Array] | None = None  # mean and deviation of the features, set by `begin`
        self._head: EdgeMLP | None = None
        # The rank, its exchange of rows, and [k, 2] places
        self._reach_cache: tuple[Worker, Reach, Tensor] | None = None
        self.metrics_of_some += tuple(f"{BASELINE}_{name}" for name in (*self.metrics, *self.metrics_of_some))
        self._baseline: tuple[Targets, dict[str, float]] | None = None  # figures of the earlier labels of a rank's rows

    def check(self, strategy: ExecutionStrategy, sampler: Sampler | None) -> None:
        check_pairs(self.key, strategy, sampler)

    def prepare(self, graph: Graph) -> tuple[Graph, Targets]:
        if graph.edge_labels is None or not (targets := edge_targets(graph, self.relation)).labelled.any():
            raise UserError(
                f"task={self.key}: no edge has a label: name their column in dataset.edge_label (edge_label= of "
                "Graph.from_tables, edge_labels= of Graph.from_edges, data.edge_label of PyG)"
            )
        rows = self._read_targets(targets, graph.edge_class_names)
        targets = replace(targets, label=rows.labels, num_classes=rows.num_classes)
        return _without_labels(_before_split(graph), rows.class_names), self._with_features(graph, targets)

    def prepare_known(self, graph: Graph) -> tuple[Graph, Targets]:
        targets, names = edge_targets(graph, self.relation), graph.edge_class_names
        if self.reads_labels and graph.edge_labels is not None:
            rows = self._read_targets(replace(targets, split=np.zeros(len(targets), np.int8)), names)
            targets, names = replace(targets, label=rows.labels, num_classes=rows.num_classes), rows.class_names
        targets = self._with_features(graph, targets)
        if (is_context := targets.split == CONTEXT).any():
            targets = targets.take(np.flatnonzero(~is_context))
            targets = replace(targets, ids=np.arange(len(targets)))
        return _without_labels(graph, names), targets

    def read_rows(self, graph: Graph) -> Graph:
        return self._read_targets(edge_targets(graph, self.relation), graph.edge_class_names)

    def _read_targets(self, targets: Targets, names: Sequence[str] | None) -> Graph:
        """Returns the rows as a graph's nodes, with labels in the task's form."""
        no_edges = CSC(offsets_of(np.zeros(len(targets), np.int64)), np.zeros(0, np.int32))
        features = np.empty((len(targets), 0), np.float32)
        class_names = None if names is None else tuple(names)
        return self.read(Graph(no_edges, features, targets.label, targets.split, class_names=class_names))

    def _with_features(self, graph: Graph, targets: Targets) -> Targets:
        parts = [_with_counts(targets, _after_newest(graph), self.window)] if self.edge_features else []
        if self.label_delay is not None:
            parts.append(_labels_before(targets, self.label_delay))
            if np.isnan(parts[-1]).all():
                text = "no label is known at the time of any edge: predictions read none"
                warnings.warn(f"task.label_delay={self.label_delay}: {text}", stacklevel=2)
        return replace(targets, features=np.hstack(parts) if parts else None)

    def num_outputs(self, num_classes: int) -> int:
        return self.width

    def size_head(self, num_outputs: int, edge_width: int) -> None:
        num_outputs = max(num_outputs, 1)
        width = edge_width + NUM_COUNTS if self.edge_features else 0
        self._sizes = num_outputs, width + NUM_MEANS * num_outputs * bool(self.reads_labels)

    def begin(self, worker: Worker) -> None:
        super().begin(worker)
        targets = targets_of(worker.rows)
        if targets.features is not None:
            self._unit = _moments(targets.features, targets.of_split(Split.TRAIN))

    def head(self) -> nn.Module:
        if self._head is None:
            assert self._sizes is not None, "size_head is called first"
            num_outputs, edge_width = self._sizes
            self._head = EdgeMLP(self.width, edge_width, num_outputs, self._unit if edge_width else None)
        return self._head

    def losses_of(self, out: Tensor, rows: Tensor, labels: Tensor, features: Tensor | None = None) -> Tensor:
        outputs = self.head()(out[rows], features)
        return self.losses(outputs.to(wide(outputs.dtype)), labels)

    @torch.no_grad()
    def row_outputs(self, outputs: Tensor, worker: Worker) -> Tensor:  # [k, num_outputs]
        """Returns the outputs of the edges into this rank's nodes. Collective."""
        targets, head, parts = worker.targets, self.head(), []
        if worker.embed is not None:
            embeddings = worker.embed(targets.rows, targets.end_times).flatten(0, 1)
            ends = torch.arange(len(embeddings), device=outputs.device).reshape(-1, 2)
        else:
            # All ranks' workers are replaced together
            if self._reach_cache is None or self._reach_cache[0] is not worker:
                lookup = Lookup(worker.comm, worker.owned, worker.owner, Tally())
                self._reach_cache = worker, *lookup.find(targets.rows)
            _, reach, ends = self._reach_cache
            embeddings = reach(outputs)
        for begin in range(0, max(len(targets), 1), _BATCH):
            piece = slice(begin, begin + _BATCH)
            features = None if targets.features is None else torch.from_numpy(np.array(targets.features[piece]))
            columns = None if features is None else _padded(features.to(outputs.device))
            parts.append(head(_padded(embeddings[ends[piece]]), columns)[: len(targets) - begin])
        return torch.cat(parts)

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        if self._baseline is None or self._baseline[0] is not worker.targets:
            self._baseline = worker.targets, _measure_labels(self, outputs, worker)
        return super().measure(outputs, worker) | self._baseline[1]

    def score_warnings(self, metrics: Mapping[str, float]) -> list[str]:
        lines = super().score_warnings(metrics)
        metric = self.progress.partition("_")[2]
        for split in ("test", "val"):
            name, baseline = f"{split}_{metric}", metrics.get(f"{split}_{BASELINE}_{metric}")
            if baseline is None or name not in metrics:
                continue
            gain = baseline - metrics[name] if self.is_lower_better(name) else metrics[name] - baseline
            known = f"known, {self.label_delay} after their edge, at" if self.label_delay else "before"
            cure = "" if self.reads_labels else ": with task.label_delay=0, predictions read these labels"
            text = (
                f"the model is worse than a rule that learns nothing: {name}={metrics[name]:.4g}, and the mean of the last "
                f"{LAST} labels of the same two ends, or else of the destination, {known} each edge has {baseline:.4g}{cure}"
            )
            return [text, *lines] if gain < 0 else lines
        return lines


def _measure_labels(task: LabelledEdges, outputs: Tensor, worker: Worker) -> dict[str, float]:
    """Measures `outputs_of_labels` on held-out edges, by the task's metrics."""
    rows = targets_of(worker.rows)
    delay = read_span("task.label_delay", task.label_delay, rows.time_unit) or 0
    earlier = outputs_of_labels(rows, worker.targets.ids, outputs.shape[1], delay)
    if earlier is None:
        return {}
    alone = copy.copy(task)  # without the model's scale and thresholds
    alone.recall(replace(task.facts(), mean=None, deviation=None, thresholds=None))
    figures = super(LabelledEdges, alone).measure(earlier.to(outputs.device), worker)
    names = {f"{split}_{name}" for split in task.splits[1:] for name in (*task.metrics, *task.metrics_of_some)}
    pairs = ((name.partition("_"), value) for name, value in figures.items() if name in names)
    return {f"{split}_{BASELINE}_{metric}": value for (split, _, metric), value in pairs}


def edge_targets(graph: Graph, name: str | None) -> Targets:
    """Returns the edges of a relation, or all, without added reverse edges."""
    number = relation_number(graph, name)
    split = np.zeros(graph.num_edges, np.int8) if graph.edge_split is None else graph.edge_split
    label = np.full(graph.num_edges, -1) if graph.edge_labels is None else graph.edge_labels
    edges = listed_edges(graph)
    if number is not None and graph.edge_types is not None:
        edges = edges[graph.edge_types[edges] == number]
    return Targets(
        num_classes=count_classes(label, graph.edge_class_names),
        ids=np.arange(len(edges)),
        rows=pairs_of(graph.csc, edges),
        label=label[edges],
        split=split[edges],
        positions=edges if graph.edge_positions is None else graph.edge_positions[edges].astype(np.int64),
        features=take(graph.edge_features, edges),
        time=take(graph.edge_columns.get("time"), edges),
        time_unit=graph.time_unit,
        relation=None if number is None else LinkRelation(number, (number,)),
    )


def inputs_of_head(
    edges: Graph | Targets,
    relation: str | Sequence[str] | None = None,
    window: int | None = None,
    label_delay: int | str | None = None,
) -> Floats:
    """Returns the inputs of the MLP besides embeddings, [n, edge_width + 4].

    An edge's features are followed by log(1 + count) of the edges out of the source,
    into the source, out of the destination, and into the destination. Unlike means over
    neighbours, these counts describe how active the ends are. Edges with times count
    earlier edges only, and edges without a time count all. With `label_delay`, the mean
    labels of these four kinds of edges and of those between the same two ends follow,
    of the last ten and of all: 10 columns for each class or number, with NaN where no
    label is known.

    Args:
        edges: A task's rows, or a graph, whose edges are rows in the order of the edge
            list.
        relation: The relation of a graph's rows, as `task.relation` of the run.
        window: Age up to which edges are counted, as `sampler.window` of the run. Rows
            without a time are then as of the newest edge. If None, no limit.
        label_delay: `task.label_delay` of the run. Labels of task=edge_regression must
            then be floats.
    """
    if isinstance(edges, Targets):
        rows, later = edges, NEVER if edges.time is None else newest(edges.time) + 1
    else:
        rows, later = edge_targets(edges, read_relation(relation)), _after_newest(edges)
    columns = _with_counts(rows, later, window)
    return columns if label_delay is None else np.hstack([columns, _labels_before(rows, label_delay)])


def _after_newest(graph: Graph) -> int:
    """Returns the time of rows without one: the time after the newest edge."""
    return newest(visible_from(graph)) + 1


def _with_counts(rows: Targets, later: int, window: int | None) -> Floats:  # [n, edge_width + NUM_COUNTS]
    """Appends counts of the ends' edges to the features of rows.

    Args:
        rows: The rows.
        later: Time of rows that have none.
        window: As for `inputs_of_head`.
    """
    counts = _count_edges(rows.rows) if rows.time is None else _count_visible(rows.rows, rows.time, later, window)
    columns = np.log1p(np.stack(counts, 1)).astype(np.float32)
    return columns if rows.features is None else np.hstack([rows.features, columns])


def _count_edges(pairs: Ids) -> list[Ids]:  # 4 of [n]
    """Counts the edges out of and into each end of [n, 2] pairs."""
    num_nodes = int(pairs.max(initial=-1)) + 1
    degrees = [np.bincount(of, minlength=num_nodes) for of in pairs.T]
    return [degree[end] for end in pairs.T for degree in degrees]


def _count_visible(pairs: Ids, time: Times, later: int, window: int | None) -> list[Ids]:  # 4 of [n]
    """Counts the edges before each row's time and in its window."""
    times, rank = np.unique(time, return_inverse=True)
    bounds = np.where(has_time(time), time, later)
    until, num_static = np.searchsorted(times, bounds), int(ALWAYS in times[:1])
    since = np.full_like(until, num_static)
    if window is not None:
        since = np.maximum(np.searchsorted(times, before_window(bounds, window)), num_static)

    def count(codes: Ids, end: Ids) -> Ids:
        first, static, low, high = (
            np.searchsorted(codes, end * len(times) + place) for place in (0, num_static, since, until)
        )
        return (static - first) + (high - low)

    occurrences = [np.sort(of.astype(np.int64) * len(times) + rank) for of in pairs.T]
    return [count(codes, end.astype(np.int64)) for end in pairs.T for codes in occurrences]


def _labels_before(rows: Targets, delay: int | str) -> Floats:  # [n, NUM_MEANS * num_classes]
    """Averages known labels of the edges of each end and of the pair, the last and all.

    Raises `UserError` for rows without times or labels.

    Args:
        rows: The rows.
        delay: As for `LabelledEdges.label_delay`.
    """
    if rows.time is None or not rows.num_classes:
        needed = "times: dataset.time" if rows.time is None else "known labels: dataset.edge_label"
        raise UserError(
            f"task.label_delay={delay}: predictions read labels of earlier edges, so edges need {needed} names their "
            "column (null: read no labels)"
        )
    until = known_until(rows.time, read_span("task.label_delay", delay, rows.time_unit) or 0)
    labels, pairs = label_columns(rows.label, rows.num_classes), pair_ids(rows.rows)
    of_roles = [EarlierLabels(ends, rows.time, labels) for ends in rows.rows.T]
    kinds = [(earlier, nodes) for nodes in rows.rows.T for earlier in of_roles]
    kinds.append((EarlierLabels(pairs, rows.time, labels), pairs))
    means = [earlier.means(ids, until, last) for earlier, ids in kinds for last in (LAST, None)]
    return np.hstack(means).astype(np.float32)


def _padded(rows: Tensor) -> Tensor:  # [_BATCH, ...]
    """Appends rows of zeros, so that all outputs are computed alike."""
    return torch.cat([rows, rows.new_zeros(_BATCH - len(rows), *rows.shape[1:])])


def check_pairs(name: str, strategy: ExecutionStrategy, sampler: Sampler | None) -> None:
    """Raises `UserError` for a strategy or a sampler without batches of pairs.

    Args:
        name: The task's name.
        strategy: The strategy.
        sampler: The sampler, if any.
    """
    if strategy.ability(EdgeTask) is None:
        raise UserError(f"task={name}: {strategy.lacks(EdgeTask)}")
    if sampler is not None and not (getattr(sampler, "draws_edges", True) and type(sampler).groups is Sampler.groups):
        raise UserError(
            f"task={name}: {type(sampler).__name__} reads more than the sampled in-edges of a pair's ends, "
            "and may read the edge to predict: use another sampler, such as sampler=neighbor"
        )


def _moments(features: Floats, rows: Ids) -> tuple[Array, Array]:  # [width] twice
    """Returns mean and deviation of rows' numbers, which are read in pieces."""
    pieces = np.split(rows, range(_PIECE, len(rows), _PIECE))
    counts = np.maximum(sum((~np.isnan(features[piece])).sum(0) for piece in pieces), 1)
    mean = sum(np.nansum(features[piece], 0, dtype=np.float64) for piece in pieces) / counts
    variance = sum(np.nansum(np.square(features[piece] - mean), 0) for piece in pieces) / counts
    return mean, np.sqrt(variance)


def _before_split(graph: Graph) -> Graph:
    """Returns the graph without the edges that a split by time holds out."""
    if graph.time_borders is None or graph.edge_time is None:
        return graph
    return with_edges_before(graph, graph.time_borders[0])


def _without_labels(graph: Graph, names: Sequence[str] | None) -> Graph:
    """Returns the graph without labels, and with the names of the edges' classes."""
    return graph.evolve(
        labels=np.full(graph.num_nodes, -1),
        split=np.zeros(graph.num_nodes, np.int8),
        class_names=None if names is None else tuple(names),
        edge_labels=None,
        edge_split=None,
        edge_class_names=None,
    )
