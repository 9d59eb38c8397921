"""Batches made ahead on threads are those made on demand, in memory used once."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_pyg.pool import PooledTable, RowPool
from gnnkit_pyg.prefetch import PrefetchIterator
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from gnnkit.errors import UserError
from gnnkit.pyg import LinkNeighborLoader, NeighborLoader
from tests.pyg.graphs import heterogeneous, homogeneous

CASES: list[dict[str, Any]] = [
    {},
    {"weight_attr": "edge_weight", "disjoint": True},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"time_attr": "time"},
    {"transform": lambda batch: batch.put(torch.rand(2)), "filter_per_worker": True},
]


class Marked(Data):  # type: ignore[misc]  # PyG is untyped
    def put(self, value: Tensor) -> Data:
        self.noise = value
        return self


def flat(batch: Any) -> dict[str, Any]:
    """Returns all values of a batch by store and name."""
    stores = {str(store._key): store for store in batch.stores}
    return {f"{name}/{key}": value for name, store in stores.items() for key, value in store.items()}


def assert_same(one: list[Any], other: list[Any]) -> None:
    for first, second in zip(one, other, strict=True):
        values, expected = flat(first), flat(second)
        assert list(values) == list(expected)
        for key, value in values.items():
            if isinstance(value, Tensor):
                assert type(value) is Tensor, key
                assert torch.equal(value, expected[key]), key
                assert value.dtype == expected[key].dtype
            else:
                assert value == expected[key], key


def marked() -> Marked:
    return Marked(**homogeneous().to_dict())


def epochs(make: Any, threads: int, **options: Any) -> list[Any]:
    torch.manual_seed(5)
    loader = make(threads=threads, batch_size=9, shuffle=True, **options)
    assert isinstance(iter(loader), PrefetchIterator) == (threads > 0)
    torch.manual_seed(6)
    drawn = []
    for batch in [*loader, *loader]:
        torch.rand(3)  # the consumer draws too, at any moment
        drawn.append(batch)
    return drawn


@pytest.mark.parametrize("options", CASES, ids="-".join)
def test_nodes_give_the_same_batches_for_any_number_of_threads(options: dict[str, Any]) -> None:
    def make(**more: Any) -> NeighborLoader:
        return NeighborLoader(marked(), [3, 2], **options, **more)

    expected = epochs(make, 0)
    for threads in (1, 3):
        assert_same(epochs(make, threads), expected)


@pytest.mark.parametrize(
    "negatives",
    [None, "binary", NegativeSampling("triplet", 2), NegativeSampling("binary", 1.0, torch.rand(60), torch.rand(60))],
    ids=["none", "binary", "triplet", "weighted"],
)
def test_edges_give_the_same_batches_for_any_number_of_threads(negatives: Any) -> None:
    def make(**more: Any) -> LinkNeighborLoader:
        return LinkNeighborLoader(homogeneous(), [3, 2], neg_sampling=negatives, **more)

    expected = epochs(make, 0)
    assert_same(epochs(make, 2), expected)


def test_types_give_the_same_batches_for_any_number_of_threads() -> None:
    def make(**more: Any) -> NeighborLoader:
        return NeighborLoader(heterogeneous(), [3, 2], "paper", **more)

    expected = epochs(make, 0)
    assert_same(epochs(make, 2), expected)


def test_all_kinds_of_attributes_are_selected_as_pyg_does() -> None:
    data = homogeneous()
    data.wide = torch.rand(7, 60).t()  # not contiguous
    data.half = torch.rand(60, 3).to(torch.bfloat16)
    data.mask = torch.rand(60) < 0.5
    data.none = torch.empty(60, 0)
    data.cube = torch.rand(60, 2, 3)
    data.array = np.arange(60)
    data.learned = torch.rand(60, 2, requires_grad=True)
    data.edge_time = data.edge_time.to(torch.int32)
    data.note = "text"
    for threads in (0, 2):
        for batch in NeighborLoader(data, [3, 2], batch_size=20, threads=threads):
            for key in ("wide", "half", "mask", "none", "cube", "learned"):
                assert torch.equal(batch[key], data[key][batch.n_id]), key
            assert torch.equal(batch.edge_time, data.edge_time[batch.e_id])
            assert np.array_equal(batch.array, data.array[batch.n_id])
            assert batch.note == "text"
            batch.learned.sum().backward()
    assert data.learned.grad is not None
    assert type(data.x) is Tensor


def test_memory_is_reused_once_no_tensor_refers_to_it() -> None:
    pool, table = RowPool(), torch.rand(3000, 100)
    pooled, ids = PooledTable.of(table, pool, 1), torch.arange(2999, -1, -1)
    first = pooled[ids]
    view, place = first[5:7], first.data_ptr()
    expected = view.clone()
    del first
    second = pooled.index_select(0, ids)
    assert second.data_ptr() != place
    assert torch.equal(view, expected)
    del view
    gc.collect()
    third = torch.index_select(pooled, 0, ids)
    assert third.data_ptr() == place
    assert torch.equal(third, table[ids])
    assert torch.equal(second, table[ids])


def test_memory_that_a_backward_pass_needs_is_not_reused() -> None:
    pool, weight = RowPool(), torch.ones(100, 1, requires_grad=True)
    table = torch.rand(3000, 100)
    pooled, ids = PooledTable.of(table, pool, 1), torch.arange(3000)
    loss = (pooled[ids] @ weight).sum()
    pooled[ids.flip(0)].zero_()
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.allclose(weight.grad[:, 0], table.sum(0))


def test_other_sizes_get_other_memory() -> None:
    pool, table = RowPool(), torch.rand(6000, 100)
    pooled = PooledTable.of(table, pool, 1)
    for count in (3000, 5999, 4000, 6000, 10, 0):
        rows = pooled[torch.arange(count)]
        assert torch.equal(rows, table[:count])
    assert len(pool._buffers) <= 2


def test_all_rows_of_a_table_in_order_are_stacked_without_a_copy() -> None:
    pool, table = RowPool(), torch.randint(9, (2, 4))
    first, second = (PooledTable.of(row, pool, 1) for row in table)
    assert torch.stack([first, second]).data_ptr() == table.data_ptr()
    other = PooledTable.of(torch.arange(4), pool, 1)
    floats = [PooledTable.of(row, pool, 1) for row in table.view(torch.float64)]
    assert torch.equal(torch.stack(floats), table.view(torch.float64))
    for rows in ([second, first], [first], [first, first], [first, other], [other, second]):
        stacked = torch.stack(rows)
        assert torch.equal(stacked, torch.stack([row.as_subclass(Tensor) for row in rows]))
        assert stacked.data_ptr() != table.data_ptr()


def test_the_edges_of_a_batch_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = NeighborLoader(homogeneous(), [4], batch_size=60, threads=1)
    expected = next(iter(loader)).edge_index
    monkeypatch.setattr(np, "stack", None)
    assert next(iter(loader)).edge_index.shape == expected.shape


def test_a_pooled_table_is_a_tensor_in_all_other_functions() -> None:
    table = torch.rand(5, 2)
    pooled = PooledTable.of(table, RowPool(), 1)
    assert type(pooled + 1) is Tensor
    assert type(pooled.to("cpu")) is Tensor
    assert torch.equal(pooled[1:3], table[1:3])
    assert torch.equal(torch.stack([pooled, table]), torch.stack([table, table]))
    with pytest.raises(IndexError):
        pooled[torch.tensor([0.5])]
    with pytest.raises(UserError, match="out of range for 5 rows"):
        pooled[torch.tensor([5])]


def test_transforms_run_in_the_thread_of_the_consumer() -> None:
    threads = set()

    def note(batch: Data) -> Data:
        threads.add(threading.current_thread())
        return batch

    list(NeighborLoader(homogeneous(), [2], batch_size=20, transform=note, threads=2))
    assert threads == {threading.current_thread()}


def test_changes_between_epochs_are_read() -> None:
    data = homogeneous()
    loader = NeighborLoader(data, [2], batch_size=60, threads=2)
    next(iter(loader))
    data.x = data.x + 100
    assert next(iter(loader)).x.min() >= 100


def test_code_of_users_stays_in_the_main_thread() -> None:
    class Mine(NeighborLoader):
        def filter_fn(self, out: Any) -> Any:
            batch = super().filter_fn(out)
            batch.mine = threading.current_thread() is threading.main_thread()
            return batch

    assert all(batch.mine for batch in Mine(homogeneous(), [2], batch_size=20, threads=2))
    loader = NeighborLoader(homogeneous(), [2], transform_sampler_output=lambda out: out, threads=2)
    assert not isinstance(iter(loader), PrefetchIterator)


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gnnkit-loader")]


def test_threads_end_with_the_iterator() -> None:
    iterator = iter(NeighborLoader(homogeneous(), [2], batch_size=2, threads=2))
    next(iterator)
    assert workers()
    del iterator
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("gnnkit-loader"):
            thread.join(120)
    assert not workers()


def test_errors_of_threads_are_raised_in_order() -> None:
    data = homogeneous()
    loader = NeighborLoader(data, [0], torch.tensor([1, 57, 2]), batch_size=1, threads=2)
    data.x = data.x[:50]
    iterator = iter(loader)
    assert next(iterator).n_id[0] == 1
    with pytest.raises(ValueError, match=r"57.* out of range"):
        next(iterator)
    assert next(iterator).n_id[0] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_started_iterator_is_refused_after_a_fork() -> None:
    iterator = iter(NeighborLoader(homogeneous(), [2], batch_size=2, threads=1))
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(3 if "before a fork" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_negatives_of_another_class_are_drawn_on_demand() -> None:
    class Last(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
        def sample(self, num_samples: int, endpoint: str, num_nodes: int) -> Tensor:
            return torch.full((num_samples,), num_nodes - 1)

    loader = LinkNeighborLoader(homogeneous(), [1], neg_sampling=Last("binary"), batch_size=4, threads=2)
    batch = next(iter(loader))
    assert batch.n_id[batch.edge_label_index[:, 4:]].unique().tolist() == [59]


@pytest.mark.parametrize("threads", [0, 2])
def test_weights_of_negatives_are_one_per_node(threads: int) -> None:
    negatives = NegativeSampling("binary", 1.0, torch.rand(7), torch.rand(60))
    with pytest.raises(UserError, match=r"src_weight has shape \[7\], expected \[60\]"):
        LinkNeighborLoader(homogeneous(), [1], neg_sampling=negatives, threads=threads)


def test_a_number_of_threads_is_checked() -> None:
    with pytest.raises(UserError, match="threads"):
        NeighborLoader(homogeneous(), [2], threads=-1)


def test_a_hetero_batch_has_plain_tensors_only() -> None:
    for batch in NeighborLoader(heterogeneous(), [2, 2], "paper", batch_size=25, threads=2):
        assert isinstance(batch, HeteroData)
        for value in flat(batch).values():
            assert not isinstance(value, PooledTable)
