"""Labelled edges: rows of a task that any strategy trains as one process would."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import EDGE_WIDTH, WIDTH, check_graph
from gnnkit_testing.ranks import on_ranks
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

from gnnkit.engine.remote.owned_rows import CACHES
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph, Split
from gnnkit.graph.edge_columns import CONTEXT
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.partition import Grid
from gnnkit.sampler import ClusterSampler, FullSampler, LaborSampler, NeighborSampler, Sampler
from gnnkit.sampler.links import load_rows, pairs_of
from gnnkit.sampler.targets import Targets
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.labelled_edges import LabelledEdges, inputs_of_head, label_columns
from gnnkit.task.node_classification import EdgeClassification, NodeClassification
from gnnkit.task.regression import EdgeRegression
from gnnkit.testing import check_task
from tests.cases import few
from tests.models import MODELS
from tests.task.steps import make_workers, run_steps

RNG = np.random.default_rng(0)


def with_labels(graph: Graph, labels: Any = None) -> Graph:
    """Labels most edges, all splits included."""
    split = (1 + np.arange(graph.num_edges) % 3).astype(np.int8)
    draws = RNG.integers(0, 2, graph.num_edges) if labels is None else labels
    draws[::7], split[::7] = -1, Split.NONE
    return replace(graph, edge_labels=draws, edge_split=split)


GIVEN = with_labels(check_graph(48))
GRIDS = (Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2))


def make_task() -> EdgeClassification:
    torch.manual_seed(2)
    task = EdgeClassification(width=6)
    task.size_head(2, EDGE_WIDTH)
    return task


GRAPH, TARGETS = make_task().prepare(GIVEN)


def make_model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name](WIDTH, 6, hidden=4, dropout=0.3).double()


def total(
    strategy: ExecutionStrategy,
    grid: Grid,
    model: str,
    sampler: Sampler | None = None,
    look: Callable[[Batch], None] = lambda _: None,
) -> Tensor:
    """Sums loss and gradient over the ranks, for each batch of two epochs."""
    reads = {"whole": strategy.reads.graph, "features": not strategy.reads.from_owners}
    workers = make_workers(GRAPH, grid, sampler=sampler, rows=TARGETS, **reads)
    return run_steps(strategy, make_task(), make_model(model), workers, grid.world_size, look)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@few("grid", GRIDS, default=[Grid(2, 2, 1), Grid(2, 1, 2)])
def test_full_graph_steps_have_the_loss_and_gradient_of_one_rank(grid: Grid) -> None:
    assert_equal(total(VertexCentric(), grid, "gat"), total(VertexCentric(), Grid(1, 1, 1), "gat"))


@functools.cache
def of_ranks(size: int, ranks: int, sampler: str) -> Tensor:
    return total(IndividualSample(batch_size=size), Grid(ranks, 1, 1), "sage", SAMPLERS[sampler]())


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 3], threads=1),
    "labor": lambda: LaborSampler([3, 3], threads=1),
    "full": FullSampler,
}
STRATEGIES: dict[str, Callable[[int], ExecutionStrategy]] = {
    "shared": lambda size: IndividualSample(batch_size=size),
    "features apart": lambda size: IndividualSample(batch_size=size, features="partitioned"),
    "topology apart": lambda size: IndividualSample(batch_size=size, topology="partitioned"),
    "cooperative": lambda size: JointSample(batch_size=size),
    **{
        f"cached {cache}": functools.partial(
            lambda cache, size: IndividualSample(size, features="partitioned", cache=cache, cache_rows=5), cache
        )
        for cache in CACHES
        if cache != "none"
    },
}


@few(
    "kind,sampler",
    [(kind, sampler) for kind in STRATEGIES for sampler in SAMPLERS],
    default=[
        ("shared", "neighbor"),
        ("topology apart", "neighbor"),
        ("cooperative", "labor"),
        ("features apart", "full"),
    ],
)
def test_sampled_steps_have_the_loss_and_gradient_of_one_rank(kind: str, sampler: str) -> None:
    actual = total(STRATEGIES[kind](8), Grid(3, 1, 1), "sage", SAMPLERS[sampler]())
    # Labor draws by all seeds of a batch, so only a joint batch is that of one rank.
    alone = kind == "cooperative" or sampler != "labor"
    assert_equal(actual, of_ranks(24, 1, sampler) if alone else of_ranks(8, 3, sampler))


@pytest.mark.parametrize("halo", ["none", "one_hop"])
def test_shares_predict_each_labelled_edge_that_they_hold_once(halo: str) -> None:
    rows: list[int] = []
    whole = total(PresetWorkload(halo=halo), Grid(1, 1, 1), "sage")
    total(PresetWorkload(halo=halo), Grid(3, 1, 1), "sage", look=lambda batch: rows.append(len(batch.rows)))
    train = TARGETS.of_split(Split.TRAIN)
    owner = np.arange(GRAPH.num_nodes) % 3
    inside = np.count_nonzero(owner[TARGETS.rows[train, 0]] == owner[TARGETS.rows[train, 1]])
    assert sum(rows) == 2 * (len(train) if halo == "one_hop" else inside)
    assert_equal(whole, total(VertexCentric(), Grid(1, 1, 1), "sage"))


def test_every_training_edge_is_read_once_in_an_epoch_with_its_label_and_features() -> None:
    read: list[tuple[Any, ...]] = []

    def look(batch: Batch) -> None:
        assert batch.pair_features is not None
        read.extend(zip(batch.labels.tolist(), map(tuple, batch.pair_features.tolist()), strict=True))

    total(IndividualSample(batch_size=5), Grid(2, 1, 1), "sage", FullSampler(), look)
    train = TARGETS.take(TARGETS.of_split(Split.TRAIN))
    assert train.features is not None
    reference = list(zip(train.label.tolist(), map(tuple, train.features.tolist()), strict=True))
    assert sorted(read) == sorted(2 * reference)


def test_loss_and_rows_are_those_of_plain_torch() -> None:
    """One rank, no layer between: the formula of the head on the model's rows."""
    task = make_task()
    head = task.head().double()
    outputs = torch.randn(GRAPH.num_nodes, 6, dtype=torch.float64)
    (rows,) = on_ranks(GRAPH, Grid(1, 1, 1), lambda worker: task.row_outputs(outputs, worker), rows=TARGETS)
    source, destination = (outputs[torch.from_numpy(TARGETS.rows[:, end])] for end in (0, 1))
    parts = [source, destination, source * destination, torch.from_numpy(np.array(TARGETS.features)).double()]
    first, _, last = head.layers
    reference = (torch.cat(parts, 1) @ first.weight.T + first.bias).relu() @ last.weight.T + last.bias
    assert_equal(rows, reference)
    losses = task.losses_of(
        outputs, torch.from_numpy(TARGETS.rows), torch.from_numpy(TARGETS.label).clamp(min=0), parts[-1]
    )
    assert_equal(
        losses, nn.functional.cross_entropy(reference, torch.from_numpy(TARGETS.label).clamp(min=0), reduction="none")
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_metrics_count_each_edge_once_and_predictions_are_in_the_edge_lists_order(ranks: int) -> None:
    outputs = torch.randn(GRAPH.num_nodes, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))

    def work(worker: Worker) -> tuple[dict[str, float], Tensor | None]:
        task = make_task()
        task.head().double()
        rows = task.row_outputs(outputs[torch.from_numpy(worker.owned.astype(np.int64))], worker)
        return task.measure(rows, worker), task.predictions(rows, worker)

    (figures, predictions), *others = on_ranks(GRAPH, Grid(ranks, 1, 1), work, rows=TARGETS)
    assert predictions is not None
    assert all(rows is None and metrics == figures for metrics, rows in others)
    assert predictions.shape == (GIVEN.num_edges,)
    for name, split in SPLITS.items():
        edges = TARGETS.of_split(split)
        assert figures[f"{name}_accuracy"] == pytest.approx(np.mean(predictions.numpy()[edges] == TARGETS.label[edges]))
    assert GIVEN.edge_positions is not None
    order = np.argsort(GIVEN.edge_positions)
    np.testing.assert_array_equal(TARGETS.rows, pairs_of(GIVEN.csc)[order])
    np.testing.assert_array_equal(TARGETS.label, GIVEN.edge_labels[order])  # type: ignore[index]


def test_chance_is_the_most_frequent_class_of_training_edges() -> None:
    outputs = torch.zeros(GRAPH.num_nodes, 6, dtype=torch.float64)

    def work(worker: Worker) -> dict[str, float]:
        task = make_task()
        task.head().double()
        return task.chance(task.row_outputs(outputs[torch.from_numpy(worker.owned.astype(np.int64))], worker), worker)

    counts = np.bincount(TARGETS.label[TARGETS.of_split(Split.TRAIN)])
    for chance in on_ranks(GRAPH, Grid(3, 1, 1), work, rows=TARGETS):
        assert chance == {"train_accuracy": pytest.approx(counts.max() / counts.sum()), "train_roc_auc": 0.5}


def test_labels_outside_of_training_change_no_bit_of_a_step() -> None:
    changed = replace(TARGETS, label=np.where(TARGETS.split == Split.TRAIN, TARGETS.label, 1 - TARGETS.label))
    totals = []
    for targets in (TARGETS, changed):
        workers = make_workers(GRAPH, Grid(2, 1, 1), whole=False, rows=targets)
        totals.append(run_steps(VertexCentric(), make_task(), make_model("gat"), workers, 2))
    assert torch.equal(*totals)
    assert GRAPH.edge_labels is None
    assert GRAPH.edge_features is not None
    np.testing.assert_array_equal(GRAPH.edge_features, GIVEN.edge_features)  # type: ignore[arg-type]
    assert GRAPH.num_edges == GIVEN.num_edges, "predicted edges pass messages"


def test_added_reverse_edges_are_no_rows() -> None:
    graph = GIVEN.symmetrize()
    assert graph.num_edges > GIVEN.num_edges
    _, targets = make_task().prepare(graph)
    for name in ("rows", "label", "split", "positions", "features"):
        np.testing.assert_array_equal(getattr(targets, name), getattr(TARGETS, name))


def test_a_relations_edges_are_the_rows_and_others_pass_messages() -> None:
    task = EdgeClassification(width=6, relation="1")
    graph, targets = task.prepare(GIVEN)
    assert GIVEN.edge_types is not None
    assert GIVEN.edge_positions is not None
    np.testing.assert_array_equal(targets.positions, np.sort(GIVEN.edge_positions[GIVEN.edge_types == 1]))
    assert graph.num_edges == GIVEN.num_edges
    assert targets.relation is not None
    assert targets.relation.number == 1


@pytest.mark.parametrize("task", [EdgeClassification, EdgeRegression])
def test_tasks_keep_the_contract(task: Callable[[], LabelledEdges]) -> None:
    check_task(task)


class Agreement(NodeClassification):
    """A task of a third party, for nodes."""

    metrics = ("agreement",)
    metrics_of_some = ()

    def figures(self, counts: Tensor) -> dict[str, float]:
        return {"agreement": super().figures(counts)["accuracy"]}

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        return {name: value for name, value in super().measure(outputs, worker).items() if name in self.names}


class EdgeAgreement(LabelledEdges, Agreement):
    def __init__(self) -> None:
        Agreement.__init__(self)
        LabelledEdges.__init__(self, "edge_agreement", width=5, edge_features=False)


def test_a_third_partys_node_task_becomes_one_of_edges() -> None:
    check_task(EdgeAgreement)


def test_numbers_are_standardised_by_training_edges() -> None:
    numbers = RNG.normal(50, 7, GIVEN.num_edges)
    numbers[GIVEN.edge_labels == -1] = np.nan  # type: ignore[index]
    task = EdgeRegression(width=4)
    graph, targets = task.prepare(replace(GIVEN, edge_labels=numbers))
    task.size_head(targets.num_classes, EDGE_WIDTH)

    def work(worker: Worker) -> tuple[float, ...] | None:
        rank_task = copy.deepcopy(task)
        rank_task.begin(worker)
        return rank_task.facts().mean

    train = targets.label[targets.of_split(Split.TRAIN)]
    for mean in on_ranks(graph, Grid(3, 1, 1), work, rows=targets):
        assert mean == pytest.approx((train.mean(),))


@pytest.mark.parametrize("timed", [False, True])
def test_the_head_reads_how_many_edges_the_ends_have(timed: bool) -> None:
    src, dst, times = RNG.integers(0, 9, (3, 60))
    features = RNG.normal(size=(60, 2)).astype(np.float32)
    graph = Graph.from_edges(src, dst, 9, edge_features=features, edge_labels=times, edge_time=times if timed else None)
    columns = inputs_of_head(graph)
    for row, ends in enumerate(zip(src, dst, strict=True)):
        seen = times < times[row] if timed else np.ones(60, np.bool_)
        counts = [(of[seen] == end).sum() for end in ends for of in (src, dst)]
        np.testing.assert_allclose(columns[row], [*features[row], *np.log1p(counts)], rtol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 2**62])
def test_the_head_counts_the_edges_that_are_visible_at_each_rows_time(window: int | None) -> None:
    """Static edges always count, edges without a time never, and both count all."""
    src, dst, times = RNG.integers(0, 6, (3, 60)) - [[0], [0], [3]]
    times[:8], times[8:12] = ALWAYS, NEVER
    fields: dict[str, Any] = {"edge_labels": np.arange(60) % 2, "edge_time": times}
    graph = Graph.from_edges(src, dst, 9, node_time=[9, *range(8)], **fields)
    task = EdgeClassification()
    task.window = window
    _, targets = task.prepare(graph)
    columns = targets.features
    assert columns is not None
    np.testing.assert_array_equal(inputs_of_head(graph, window=window), columns)
    np.testing.assert_array_equal(task.prepare_known(graph)[1].features, columns)  # type: ignore[union-attr]
    newest = max(max(time, [9, *range(8)][node]) for time, node in zip(times, src, strict=True) if time != NEVER)
    for row, ends in enumerate(zip(src, dst, strict=True)):
        bound = newest + 1 if times[row] in {ALWAYS, NEVER} else times[row]
        values = [
            time == ALWAYS or (time < bound and (window is None or int(time) >= int(bound) - window)) for time in times
        ]
        counts = [(of[np.array(values)] == end).sum() for end in ends for of in (src, dst)]
        np.testing.assert_allclose(columns[row], np.log1p(counts), rtol=1e-6)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("delay", [0, 5, 2**61])
def test_the_head_reads_the_labels_that_are_known_at_each_rows_time(kind: str, delay: int) -> None:
    graph = timed_graph(kind)
    task = (EdgeRegression if kind == "numbers" else EdgeClassification)(label_delay=delay)
    _, targets = task.prepare(graph)
    assert targets.features is not None
    assert targets.time is not None
    np.testing.assert_array_equal(inputs_of_head(graph, label_delay=delay), targets.features)
    np.testing.assert_array_equal(task.prepare_known(graph)[1].features, targets.features)  # type: ignore[union-attr]
    labels = label_columns(targets.label, targets.num_classes)
    (src, dst), times = targets.rows.T, targets.time
    for row in range(0, len(targets), 7):
        expected = []
        of_ends = [of == end for end in targets.rows[row] for of in (src, dst)]
        for edges in (*of_ends, of_ends[0] & of_ends[3]):  # these are out of the source and into the destination
            known = np.flatnonzero(edges & (times < int(times[row]) - delay) & ~np.isnan(labels).any(1))
            known = known[np.argsort(times[known], kind="stable")]
            expected += [
                labels[part].mean(0) if len(part) else np.full(labels.shape[1], np.nan) for part in (known[-10:], known)
            ]
        np.testing.assert_allclose(targets.features[row, 4:], np.hstack(expected), rtol=1e-6)


def test_no_label_is_read_without_times_or_labels_and_the_reason_names_the_keys() -> None:
    graph = timed_graph("classes")
    task = EdgeClassification(label_delay=0)
    with pytest.raises(UserError, match=r"task.label_delay=0: .* so edges need times: dataset.time names their column"):
        task.prepare(graph.evolve(edge_time=None, time_borders=None))
    with pytest.raises(UserError, match=r"edges need known labels: dataset.edge_label names their column"):
        task.prepare_known(replace(graph, edge_labels=None, edge_split=None))
    with pytest.raises(UserError, match=r"task.label_delay=-1: expected a span such as '30 days'"):
        EdgeClassification(label_delay=-1)


def test_a_delay_in_days_is_the_same_in_every_unit_of_dates() -> None:
    seconds = replace(timed_graph("classes"), time_unit="s")
    assert seconds.edge_time is not None
    seconds = replace(seconds, edge_time=43_200 * seconds.edge_time, time_borders=None)
    nanoseconds = replace(seconds, edge_time=10**9 * seconds.edge_time, time_unit="ns")
    columns = [inputs_of_head(graph, label_delay="2 days") for graph in (seconds, nanoseconds)]
    np.testing.assert_array_equal(*columns)
    assert not np.array_equal(columns[0], inputs_of_head(seconds, label_delay=0), equal_nan=True)
    with pytest.raises(UserError, match="label_delay=2: expected a span such as '30 days', as times are dates"):
        inputs_of_head(seconds, label_delay=2)
    with pytest.raises(UserError, match="label_delay=2 days: expected a number, as times are numbers"):
        inputs_of_head(timed_graph("classes"), label_delay="2 days")


def test_labels_after_a_rows_time_change_no_input() -> None:
    graph = timed_graph("numbers")
    assert graph.edge_labels is not None
    assert graph.edge_time is not None
    assert graph.edge_positions is not None
    before = inputs_of_head(graph, label_delay=0)
    later = graph.edge_time >= np.median(graph.edge_time)
    after = inputs_of_head(replace(graph, edge_labels=np.where(later, 1e9, graph.edge_labels)), label_delay=0)
    order = np.argsort(graph.edge_positions)
    rows = ~later[order] | (graph.edge_time[order] == graph.edge_time[later].min())
    np.testing.assert_array_equal(before[rows], after[rows])
    assert not np.array_equal(before[~rows], after[~rows], equal_nan=True)


def test_rows_of_a_relation_count_its_edges_alone() -> None:
    src, dst, types = RNG.integers(0, 9, (3, 60)) % [[9], [9], [2]]
    graph = Graph.from_edges(src, dst, 9, edge_types=types, edge_type_names=["a", "b"], edge_labels=types)
    _, targets = EdgeClassification(relation="b").prepare(graph)
    alone = Graph.from_edges(src[types == 1], dst[types == 1], 9)
    np.testing.assert_array_equal(inputs_of_head(graph, "b"), targets.features)
    np.testing.assert_array_equal(inputs_of_head(graph, "b"), inputs_of_head(alone))
    assert len(inputs_of_head(graph)) == 60


def test_features_are_standardised_by_training_edges() -> None:
    scaled = replace(GIVEN, edge_features=GIVEN.edge_features * 1e4 + 7e4)  # type: ignore[operator]
    task = make_task()
    graph, targets = task.prepare(scaled)
    on_ranks(graph, Grid(1, 1, 1), task.begin, rows=targets)
    head = task.head()
    train = targets.features[targets.of_split(Split.TRAIN)]  # type: ignore[index]
    torch.testing.assert_close(head.mean, torch.tensor(train.mean(0), dtype=torch.float32))
    torch.testing.assert_close(head.deviation, torch.tensor(train.std(0), dtype=torch.float32))


def test_rows_are_saved_and_mapped(tmp_path: Any) -> None:
    TARGETS.save(tmp_path / "rows")
    loaded_rows = load_rows(tmp_path / "rows")
    assert isinstance(loaded_rows, Targets)
    assert loaded_rows.num_classes == TARGETS.num_classes
    for name in ("ids", "rows", "label", "split", "positions", "features"):
        np.testing.assert_array_equal(getattr(loaded_rows, name), getattr(TARGETS, name))
    np.save(tmp_path / "rows" / "split.npy", np.zeros(2, np.int8))
    with pytest.raises(UserError, match="split has 2 rows"):
        load_rows(tmp_path / "rows")


@pytest.mark.parametrize(
    ("graph", "task", "told"),
    [
        (check_graph(), EdgeClassification(), "no edge has a label: name their column in dataset.edge_label"),
        (
            replace(GIVEN, edge_labels=np.full(GIVEN.num_edges, -1), edge_split=None),
            EdgeRegression(),
            "no edge has a label",
        ),
        (GIVEN, EdgeClassification(relation="9"), "task.relation=9 is not known"),
        (
            replace(GIVEN, edge_labels=np.where(GIVEN.edge_labels < 0, np.nan, 0.5)),  # type: ignore[operator]
            EdgeClassification(),
            "task=edge_classification needs classes 0, 1, ..., but labels are floating-point numbers: use task=edge_regression",
        ),
        (
            replace(GIVEN, edge_labels=np.eye(3)[np.arange(GIVEN.num_edges) % 3]),
            EdgeClassification(),
            r"labels are one-hot rows of 3 numbers: .*labels\.argmax\(1\)",
        ),
        (
            replace(GIVEN, edge_class_names=("a", "b")),
            EdgeRegression(),
            "task=edge_regression: labels must be numbers.*task=edge_classification",
        ),
    ],
)
def test_wrong_labels_are_errors(graph: Graph, task: LabelledEdges, told: str) -> None:
    with pytest.raises(UserError, match=told):
        task.prepare(graph)


def test_unsuitable_strategies_and_samplers_are_errors() -> None:
    with pytest.raises(UserError, match=r"task=edge_classification: .* other edges"):
        EdgeClassification().check(VertexCentric(local_iterations=2), None)
    with pytest.raises(UserError, match="task=edge_regression: ClusterSampler reads more"):
        EdgeRegression().check(IndividualSample(), ClusterSampler(np.zeros(4, np.int64), 2))


def splits_of(graph: Graph) -> Sequence[int]:
    assert graph.edge_split is not None
    return [int(np.count_nonzero(graph.edge_split == part)) for part in SPLITS.values()]


def test_a_drawn_split_is_stratified_and_follows_the_edge_list() -> None:
    graph = replace(GIVEN, edge_split=None)
    split_graph = graph.draw_edge_split([0.5, 0.25, 0.25], seed=3)
    assert sum(splits_of(split_graph)) == np.count_nonzero(graph.edge_labels >= 0)  # type: ignore[operator]
    order = RNG.permutation(graph.num_nodes)
    renumbered = graph.renumber(order).draw_edge_split([0.5, 0.25, 0.25], seed=3)
    by_position = [copied.edge_split[np.argsort(copied.edge_positions)] for copied in (split_graph, renumbered)]  # type: ignore[index, arg-type]
    np.testing.assert_array_equal(*by_position)
    reversed_edges = graph.symmetrize().draw_edge_split([0.5, 0.25, 0.25], seed=3)
    assert splits_of(reversed_edges) == splits_of(split_graph)


def test_edges_that_are_split_by_time_are_rows_but_later_ones_pass_no_messages() -> None:
    """Equal times are in one part, and an edge without a label is in none."""
    times, labels = [0, 1, 2, 2, 3, 4], [0, 1, 0, 1, -1, 1]
    graph = Graph.from_edges(range(6), range(1, 7), 7, edge_labels=labels, edge_time=times)
    graph = graph.symmetrize().split_by_time(borders=[2, 4])
    training_graph, targets = EdgeClassification().prepare(graph)
    assert len(targets) == 6
    assert [targets.of_split(part).tolist() for part in (Split.TRAIN, Split.VAL, Split.TEST)] == [[0, 1], [2, 3], [5]]
    assert training_graph.edge_time is not None
    assert sorted(training_graph.edge_time.tolist()) == [0, 0, 1, 1], "each with its reverse"
    assert training_graph.edge_labels is None


def last_labels(graph: Graph, outputs: int) -> Any:  # [num_edges, outputs] in the order of the edge list
    """Computes the mean of the last ten labels of each pair or destination."""
    order = np.argsort(graph.edge_positions)  # type: ignore[arg-type]
    pairs, labels = pairs_of(graph.csc)[order], graph.edge_labels[order]  # type: ignore[index]
    times, split = graph.edge_time[order], graph.edge_split[order]  # type: ignore[index]
    is_known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    columns = labels[:, None] if outputs == 1 else np.eye(outputs)[labels]
    means = np.repeat(columns[is_known & (split == Split.TRAIN)].mean(0)[None], len(labels), 0)
    for edge in range(len(labels)):
        known = is_known & (times < times[edge])
        for read in (known & (pairs[:, 1] == pairs[edge, 1]), known & (pairs == pairs[edge]).all(1)):
            earlier = np.flatnonzero(read)
            earlier = earlier[np.argsort(times[earlier], kind="stable")][-10:]
            means[edge] = columns[earlier].mean(0) if len(earlier) else means[edge]
    return means, labels, split


def timed_graph(task: str) -> Graph:
    rng = np.random.default_rng(5)
    src, dst, times = rng.integers(0, 12, (3, 600)) * [[1], [1], [9]] + rng.integers(0, 9, (3, 600)) * [[0], [0], [1]]
    labels: Any = rng.normal(dst, 2.0) if task == "numbers" else (rng.random(600) < 0.1 + dst / 20).astype(np.int64)
    labels[::9] = np.nan if task == "numbers" else -1
    features = rng.normal(size=(12, 3))
    graph = Graph.from_edges(src, dst, 12, features=features, edge_labels=labels, edge_time=times, one_class=True)
    return graph.split_by_time([0.6, 0.2, 0.2])


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_mean_of_earlier_labels_is_measured_beside_the_model(kind: str, ranks: int) -> None:
    task = EdgeRegression(width=4) if kind == "numbers" else EdgeClassification(width=4, threshold=0.3)
    source = timed_graph(kind)
    graph, targets = task.prepare(source)
    task.size_head(1 if kind == "numbers" else 2, 0)

    def work(worker: Worker) -> tuple[dict[str, float], list[str]]:
        rank_task = copy.deepcopy(task)
        rank_task.begin(worker)
        rank_task.head().double()
        outputs = torch.zeros(len(worker.owned), 4, dtype=torch.float64)
        figures = rank_task.measure(rank_task.row_outputs(outputs, worker), worker)
        return figures, rank_task.score_warnings(figures)

    (figures, lines), *others = on_ranks(graph, Grid(ranks, 1, 1), work, rows=targets)
    assert all(other == (figures, lines) for other in others)
    means, labels, split = last_labels(source, 1 if kind == "numbers" else 2)
    test = (split == Split.TEST) & (~np.isnan(labels) if kind == "numbers" else labels >= 0)
    if kind == "numbers":
        reference = {"mae": np.abs(means[:, 0] - labels)[test].mean()}
    else:
        reference = {
            "roc_auc": roc_auc_score(labels[test], means[test, 1]),
            "average_precision": average_precision_score(labels[test], means[test, 1]),
            "accuracy": np.mean((means[test, 1] >= 0.3) == labels[test]),
        }
    for name, value in reference.items():
        assert figures[f"test_last_labels_{name}"] == pytest.approx(value, rel=1e-6)
    assert not [name for name in figures if name.startswith("train_last_labels") or name.endswith("last_labels_loss")]
    metric = task.progress.removeprefix("val_")
    best = figures[f"test_last_labels_{metric}"]
    assert (
        f"last 10 labels of the same two ends, or else of the destination, before each edge has {best:.4g}" in lines[0]
    )
    assert task.score_warnings(figures | {f"test_{metric}": 0.0 if kind == "numbers" else 1.0}) == []


def test_edges_without_times_have_no_earlier_labels() -> None:
    outputs = torch.zeros(GRAPH.num_nodes, 6, dtype=torch.float64)

    def work(worker: Worker) -> dict[str, float]:
        task = make_task()
        task.head().double()
        return task.measure(task.row_outputs(outputs, worker), worker)

    (figures,) = on_ranks(GRAPH, Grid(1, 1, 1), work, rows=TARGETS)
    assert not [name for name in figures if "last_labels" in name]


def test_edges_that_are_context_count_but_are_not_predicted() -> None:
    marked = replace(GIVEN, edge_split=np.where(np.arange(GIVEN.num_edges) % 2, CONTEXT, 0).astype(np.int8))
    _, every = make_task().prepare_known(replace(GIVEN, edge_split=None))
    _, targets = make_task().prepare_known(marked)
    assert isinstance(every, Targets)
    assert isinstance(targets, Targets)
    assert len(targets) == (GIVEN.num_edges + 1) // 2
    np.testing.assert_array_equal(targets.ids, np.arange(len(targets)))
    rows = np.flatnonzero(np.isin(every.positions, targets.positions))  # type: ignore[arg-type]
    np.testing.assert_array_equal(targets.features, every.features[rows])  # type: ignore[index]
    np.testing.assert_array_equal(targets.rows, every.rows[rows])
