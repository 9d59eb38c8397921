"""Batches of one node type have the contents that PyG documents."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch_geometric.loader
from gnnkit_pyg.seeded import SeededLoader
from torch_geometric.data import Data

from gnnkit.pyg import NeighborLoader, SubgraphSampler
from tests.pyg.graphs import NUM_EDGES, NUM_NODES, homogeneous

SEEDS = torch.tensor([5, 3, 59, 17, 30, 2, 41])
CASES: list[dict[str, Any]] = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"weight_attr": "edge_weight"},
    {"weight_attr": "edge_weight", "replace": True, "disjoint": True},
    {"subgraph_type": "induced"},
    {"subgraph_type": "induced", "disjoint": True},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
]


def batches(data: Data, num_neighbors: list[int], seed: int = 0, **options: Any) -> list[Data]:
    torch.manual_seed(seed)
    arguments: dict[str, Any] = {"input_nodes": SEEDS, "batch_size": 4, **options}
    return list(NeighborLoader(data, num_neighbors, **arguments))


def same(one: list[Data], other: list[Data]) -> bool:
    """Whether all attributes of all batches are equal."""
    values = [[sorted(batch.to_dict().items()) for batch in given] for given in (one, other)]
    return str(values[0]) == str(values[1]) and all(
        torch.equal(a.n_id, b.n_id) and torch.equal(a.edge_index, b.edge_index) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("options", CASES, ids=str)
def test_edges_of_a_batch_are_edges_of_the_graph_with_their_attributes(options: dict[str, Any]) -> None:
    data = homogeneous()
    for batch, seeds in zip(batches(data, [3, 2], **options), torch.split(SEEDS, 4), strict=True):
        assert torch.equal(batch.n_id[: batch.batch_size], seeds)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        assert batch.input_id.numel() == batch.batch_size == len(seeds)


@pytest.mark.parametrize("options", [case for case in CASES if case.get("subgraph_type") != "induced"], ids=str)
def test_counts_add_up_and_no_node_draws_more_than_its_fanout(options: dict[str, Any]) -> None:
    for batch in batches(homogeneous(), [3, 2], **options):
        assert batch.num_sampled_nodes[0] == batch.batch_size
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        found = 0
        for hop, fanout in enumerate((3, 2)):
            first = sum(batch.num_sampled_edges[:hop])
            drawn = batch.edge_index[1, first : first + batch.num_sampled_edges[hop]]
            rows = range(found, found + batch.num_sampled_nodes[hop])
            found = rows.stop
            assert set(drawn.tolist()) <= set(rows)
            assert not len(drawn) or int(drawn.bincount().max()) <= fanout
            assert torch.equal(drawn, drawn.sort().values)


def test_draws_without_replacement_are_distinct_and_complete() -> None:
    data = homogeneous()
    degree = data.edge_index[1].bincount(minlength=NUM_NODES)
    for batch in batches(data, [4]):
        assert len(batch.e_id.unique()) == len(batch.e_id)
        assert torch.equal(
            batch.edge_index[1].bincount(minlength=batch.batch_size),
            degree[batch.n_id[: batch.batch_size]].clamp(max=4),
        )


def test_draws_with_replacement_fill_the_fanout() -> None:
    batch = batches(homogeneous(), [50], replace=True)[0]
    assert batch.edge_index[1].bincount(minlength=4).tolist() == [50, 50, 0, 50]


def test_all_neighbors_of_enough_hops_are_the_whole_graph() -> None:
    data = homogeneous()
    (batch,) = batches(data, [-1] * 8, input_nodes=None, batch_size=NUM_NODES)
    assert torch.equal(batch.e_id.sort().values, torch.arange(NUM_EDGES))


def test_an_induced_subgraph_has_all_edges_among_its_nodes() -> None:
    data = homogeneous()
    for batch in batches(data, [2, 1], subgraph_type="induced"):
        inside = torch.isin(data.edge_index, batch.n_id).all(0)
        assert torch.equal(batch.e_id.sort().values, inside.nonzero()[:, 0])
        assert "num_sampled_nodes" not in batch


def test_a_bidirectional_subgraph_has_each_edge_in_both_directions() -> None:
    for batch in batches(homogeneous(), [3, 2], subgraph_type="bidirectional"):
        pairs = {tuple(pair) for pair in batch.edge_index.t().tolist()}
        assert pairs == {pair[::-1] for pair in pairs}


def test_a_bidirectional_subgraph_has_the_edges_of_the_directional_one() -> None:
    data = homogeneous()
    both = batches(data, [3, 2], subgraph_type="bidirectional")
    for batch, drawn in zip(both, batches(data, [3, 2]), strict=True):
        assert torch.equal(batch.n_id, drawn.n_id)
        pairs = {tuple(pair) for pair in drawn.edge_index.t().tolist()}
        assert {tuple(pair) for pair in batch.edge_index.t().tolist()} == pairs | {pair[::-1] for pair in pairs}


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_trees_of_a_disjoint_batch_share_no_edge(subgraph_type: str) -> None:
    for batch in batches(homogeneous(), [3, 2], disjoint=True, subgraph_type=subgraph_type):
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        row, col = batch.batch[batch.edge_index]
        assert torch.equal(row, col)
        pairs = list(zip(batch.batch.tolist(), batch.n_id.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)


def test_trees_of_one_seed_draw_independently() -> None:
    seeds = torch.full((200,), 5)
    (batch,) = batches(homogeneous(), [1], input_nodes=seeds, batch_size=200, disjoint=True)
    degree = int((homogeneous().edge_index[1] == 5).sum())
    assert len(batch.e_id.unique()) == degree > 3


def test_seeds_that_repeat_keep_their_places_and_their_edges() -> None:
    data, seeds = homogeneous(), torch.tensor([5, 3, 5, 5, 3])
    (batch,) = batches(data, [-1, 1], input_nodes=seeds, batch_size=5)
    assert torch.equal(batch.n_id[:5], seeds)
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    counts = batch.edge_index[1].bincount(minlength=5)
    assert counts[0] == counts[2] == counts[3] > 0
    assert len(set(batch.n_id[5:].tolist())) == batch.num_nodes - 5


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_draws_follow_the_weights(replace: bool) -> None:
    weight = torch.tensor([0.0, 1.0, 2.0, 5.0])
    data = Data(num_nodes=5, edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), edge_weight=weight)
    seeds = torch.zeros(8000, dtype=torch.int64)
    options: dict[str, Any] = {"input_nodes": seeds, "batch_size": 8000, "replace": replace}
    (batch,) = batches(data, [1], weight_attr="edge_weight", disjoint=True, **options)
    share = batch.e_id.bincount(minlength=4) / 8000
    assert torch.allclose(share, weight / 8, atol=0.02)
    assert share[0] == 0


@pytest.mark.parametrize("fanout", [3, -1])
@pytest.mark.parametrize("replace", [False, True])
def test_edges_of_weight_zero_are_never_drawn(fanout: int, replace: bool) -> None:
    weight = torch.tensor([0.0, 1.0, 0.0, 5.0])
    data = Data(num_nodes=5, edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), edge_weight=weight)
    options: dict[str, Any] = {"input_nodes": torch.tensor([0]), "replace": replace}
    (batch,) = batches(data, [fanout], weight_attr="edge_weight", **options)
    assert set(batch.e_id.tolist()) <= {1, 3}
    assert replace or sorted(batch.e_id.tolist()) == [1, 3]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_not_finite_and_positive_are_refused(value: float) -> None:
    data = homogeneous()
    data.edge_weight[:] = value
    with pytest.raises(ValueError, match="weight"):
        batches(data, [2], weight_attr="edge_weight")


def test_integer_weights_draw_as_floats_do() -> None:
    data = homogeneous()
    data.edge_weight = torch.arange(NUM_EDGES) % 5
    drawn = batches(data, [2, 2], weight_attr="edge_weight")
    data.edge_weight = data.edge_weight.double()
    other = batches(data, [2, 2], weight_attr="edge_weight")
    assert all(torch.equal(a.e_id, b.e_id) for a, b in zip(drawn, other, strict=True))


def test_uniform_draws_are_equally_frequent() -> None:
    data = Data(num_nodes=6, edge_index=torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]]))
    seeds = torch.zeros(5000, dtype=torch.int64)
    (batch,) = batches(data, [2], input_nodes=seeds, batch_size=5000, disjoint=True)
    assert torch.allclose(batch.e_id.bincount(minlength=5) / 5000, torch.full((5,), 0.4), atol=0.03)


@pytest.mark.parametrize("attribute", ["time", "edge_time"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_edge_is_later_than_its_seed(attribute: str, strategy: str) -> None:
    data, times = homogeneous(), torch.tensor([3, 29, 8, 15, 0, 22, 10])
    options: dict[str, Any] = {"time_attr": attribute, "input_time": times, "temporal_strategy": strategy}
    for batch, bound in zip(batches(data, [2, 2], **options), torch.split(times, 4), strict=True):
        time = batch.edge_time if attribute == "edge_time" else batch.time[batch.edge_index[0]]
        tree = batch.batch[batch.edge_index[1]]
        assert (time <= bound[tree]).all()
        assert torch.equal(batch.seed_time, bound)


def test_the_last_edges_are_the_latest_visible_ones() -> None:
    data = homogeneous()
    (batch,) = batches(
        data, [2], input_nodes=torch.tensor([5]), input_time=torch.tensor([20]), time_attr="edge_time",
        temporal_strategy="last",
    )  # fmt: skip
    visible = data.edge_time[(data.edge_index[1] == 5) & (data.edge_time <= 20)]
    assert batch.edge_time.sort().values.tolist() == visible.sort().values[-2:].tolist()


def test_edges_that_are_not_sorted_by_time_are_refused() -> None:
    data = Data(num_nodes=3, edge_index=torch.tensor([[1, 2], [0, 0]]), edge_time=torch.tensor([4, 1]))
    with pytest.raises(ValueError, match="in-edges of node 0 are not sorted by time"):
        NeighborLoader(data, [1], time_attr="edge_time", is_sorted=True)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_manual_seed_fixes_the_batches(options: dict[str, Any]) -> None:
    data = homogeneous()
    first = batches(data, [2, 2], shuffle=True, **options)
    assert same(first, batches(data, [2, 2], shuffle=True, **options))
    assert not same(first, batches(data, [2, 2], seed=1, shuffle=True, **options))


def test_a_generator_fixes_the_batches() -> None:
    def drawn(seed: int, ignored: int) -> list[Data]:
        generator = torch.Generator().manual_seed(seed)
        return batches(homogeneous(), [2, 2], seed=ignored, shuffle=True, generator=generator)

    assert same(drawn(1, 0), drawn(1, 9))
    assert not same(drawn(1, 0), drawn(2, 0))


def test_epochs_draw_anew() -> None:
    loader = NeighborLoader(homogeneous(), [1, 1], input_nodes=SEEDS, batch_size=7)
    assert not same(list(loader), list(loader))


@pytest.mark.parametrize("options", [{}, {"weight_attr": "edge_weight", "disjoint": True}], ids=str)
def test_batches_do_not_depend_on_threads(options: dict[str, Any]) -> None:
    threads = torch.get_num_threads()
    drawn = []
    for number in (1, 3):
        torch.set_num_threads(number)
        drawn.append(batches(homogeneous(), [3, 3], **options))
    torch.set_num_threads(threads)
    assert same(*drawn)


@pytest.mark.slow
@pytest.mark.parametrize("filter_per_worker", [False, True])
def test_batches_do_not_depend_on_worker_processes(filter_per_worker: bool) -> None:
    def two_epochs(num_workers: int) -> list[Data]:
        torch.manual_seed(4)
        options: dict[str, Any] = {"num_workers": num_workers, "filter_per_worker": filter_per_worker}
        loader = NeighborLoader(homogeneous(), [2, 2], SEEDS, batch_size=2, shuffle=True, **options)
        return [*loader, *loader]

    assert same(two_epochs(0), two_epochs(2))


@pytest.mark.slow
def test_workers_that_persist_draw_anew_in_each_epoch() -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "batch_size": 2}
    torch.manual_seed(0)
    loader = NeighborLoader(homogeneous(), [2, 2], SEEDS, **options)
    first, second = list(loader), list(loader)
    assert same(first, batches(homogeneous(), [2, 2], batch_size=2))
    assert not same(first, second)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_batches_of_spawned_workers_are_the_same() -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert same(batches(homogeneous(), [2, 2]), batches(homogeneous(), [2, 2], **options))


def test_the_order_of_a_shuffled_epoch_is_that_of_torch() -> None:
    torch.manual_seed(3)
    loader: Any = torch.utils.data.DataLoader(SEEDS, batch_size=4, shuffle=True)  # type: ignore[arg-type]
    expected = torch.cat(list(loader))
    assert torch.equal(
        torch.cat([batch.n_id[: batch.batch_size] for batch in batches(homogeneous(), [1], 3, shuffle=True)]), expected
    )


def test_sampling_leaves_the_random_numbers_of_the_process_alone() -> None:
    iterator = iter(NeighborLoader(homogeneous(), [2], SEEDS, batch_size=1))
    next(iterator)
    torch.manual_seed(8)
    next(iterator)
    drawn = torch.rand(3)
    torch.manual_seed(8)
    assert torch.equal(drawn, torch.rand(3))


def test_a_loader_can_be_called_and_pickled_and_is_a_loader_of_pyg() -> None:
    loader = NeighborLoader(homogeneous(), [2, 2], SEEDS, batch_size=4, shuffle=True)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert str(loader) == "NeighborLoader()"
    assert len(loader) == 2
    assert len(loader.dataset) == 7
    assert pickle.loads(pickle.dumps(loader))([2, 0]).n_id[:2].tolist() == [59, 5]
    assert loader(torch.tensor([1])).n_id[0] == 3


def test_a_mask_selects_seeds_and_input_ids_are_nodes() -> None:
    mask = torch.zeros(NUM_NODES, dtype=torch.bool)
    mask[[4, 9, 12]] = True
    (batch,) = batches(homogeneous(), [1], input_nodes=mask)
    assert batch.input_id.tolist() == batch.n_id[:3].tolist() == [4, 9, 12]


def test_transforms_are_applied() -> None:
    def mark(batch: Data) -> Data:
        batch.marked = batch.num_nodes
        return batch

    def drop_edge_ids(output: Any) -> Any:
        output.edge = None
        return output

    batch = batches(homogeneous(), [2], transform=mark)[0]
    assert batch.marked == batch.num_nodes
    assert "e_id" not in batches(homogeneous(), [2], transform_sampler_output=drop_edge_ids)[0]


@pytest.mark.parametrize("disjoint", [False, True])
def test_ids_keep_the_type_of_edge_index(disjoint: bool) -> None:
    batch = batches(homogeneous(torch.int32), [2, 2], disjoint=disjoint)[0]
    assert batch.edge_index.dtype == batch.n_id.dtype == torch.int32


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=str)
def test_no_hops_and_no_edges_leave_the_seeds(options: dict[str, Any]) -> None:
    for data, fanouts in ((homogeneous(), []), (Data(x=torch.zeros(60, 1)), [2, 2])):
        batch = batches(data, fanouts, **options)[0]
        assert batch.n_id.tolist() == SEEDS[:4].tolist()
        assert batch.edge_index is None or options.get("subgraph_type") == "induced" or batch.num_edges == 0


def test_any_negative_fanout_takes_all_edges() -> None:
    data = homogeneous()
    assert same(batches(data, [-1, -5]), batches(data, [-3, -1]))


def test_a_sampler_of_pyg_can_be_passed() -> None:
    data = homogeneous()
    sampler = SubgraphSampler(data, [1])
    loader = NeighborLoader(data, [9], SEEDS, neighbor_sampler=sampler, batch_size=7)
    assert loader.node_sampler is sampler
    assert next(iter(loader)).num_edges <= 7


def test_out_edges_are_drawn_backward() -> None:
    data = homogeneous()
    sampler = SubgraphSampler(data, [2, 2], sample_direction="backward")
    for batch in NeighborLoader(data, [], SEEDS, neighbor_sampler=sampler, batch_size=4):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        first = batch.num_sampled_edges[0]
        assert set(batch.edge_index[0, :first].tolist()) <= set(range(batch.batch_size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temporal_strategy": "first"}, "temporal_strategy=first is not known: there are: last, uniform"),
        ({"input_time": torch.arange(7)}, "conflicting 'input_time' and 'time_attr'"),
        ({"time_attr": "colour"}, "'colour' is neither a node-level or edge-level attribute"),
        ({"num_neighbors": {("a", "to", "b"): [1]}}, "needs a heterogeneous graph"),
        ({"input_nodes": torch.tensor([60])}, "there are 60 nodes|out of range for 60 nodes"),
        ({"time_attr": "edge_time"}, "need 'input_time'"),
        ({"num_neighbors": [2**40]}, "use -1 for all neighbors"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"num_neighbors": [2], "input_nodes": SEEDS} | options
    with pytest.raises(ValueError, match=message):
        next(iter(NeighborLoader(homogeneous(), **arguments)))


def test_a_loader_without_batches_passes_indices_on() -> None:
    loader = SeededLoader(range(3), collate_fn=lambda index: index, batch_size=None)
    assert list(loader) == [0, 1, 2]
