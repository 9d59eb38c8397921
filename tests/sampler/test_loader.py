from __future__ import annotations

import gc
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, MiniBatch
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    Hop,
    LaborSampler,
    LoadedBatch,
    Loader,
    MetropolisHastingsSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.sampler.batching import _report
from tests.waiting import GUARD

NUM_NODES = 300
FANOUTS = [4, 3]


def random_graph(id_type: type = np.int32) -> Graph:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, NUM_NODES, (2, 2_500))
    csc = CSC.from_edges(src, (dst * rng.random(2_500)).astype(np.int64), NUM_NODES)
    return Graph(
        CSC(csc.indptr, csc.indices.astype(id_type)),
        rng.random((NUM_NODES, 5), np.float32),
        rng.integers(0, 7, NUM_NODES),
        np.ones(NUM_NODES, np.int8),
        rng.random((2_500, 2), np.float32),
    )


GRAPH = random_graph()


class PythonSampler(Sampler):
    """A third party's sampler of all in-edges. Node `fail_at` raises."""

    def __init__(self, fail_at: int = -1, delay: float = 0.0) -> None:
        self.fail_at = fail_at
        self.delay = delay

    def draw(self, graph: CSC, nodes: np.ndarray, hop: int, *, key: int) -> Hop:
        time.sleep(self.delay)
        if self.fail_at in nodes:
            raise OverflowError(f"node {self.fail_at} is too much")
        ranges = [np.arange(graph.indptr[node], graph.indptr[node + 1]) for node in nodes]
        edges = np.concatenate([np.empty(0, np.int64), *ranges])
        indptr = np.concatenate([[0], np.cumsum([len(r) for r in ranges])]).astype(np.int64)
        return Hop(indptr, graph.indices[edges], edges)


class Overriding(NeighborSampler):
    """Native draws, but other batches."""

    def sample(self, graph: CSC, seeds: np.ndarray, *, key: int) -> Any:
        return super().sample(graph, seeds, key=key + 1)


def loader(**changes: Any) -> Loader:
    return Loader(**{"graph": GRAPH, "sampler": NeighborSampler(FANOUTS), "batch_size": 32, "seed": 3} | changes)


def leaves(batch: LoadedBatch) -> list[np.ndarray]:
    tree = batch.arrays()
    return [array for part in (tree, *tree["blocks"]) for name, array in part.items() if name != "blocks"]


def content(batches: Iterator[LoadedBatch] | Loader) -> list[list[list[Any]]]:
    return [[array.tolist() for array in leaves(batch)] for batch in batches]


def loader_threads() -> int:
    names = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread of somebody else that has just ended
            names += (task / "comm").read_text().startswith("gnnkit-loader")
    return names


def loader_threads_left() -> int:
    """The system lists a thread that was joined for a moment more."""
    deadline = time.monotonic() + GUARD
    while (left := loader_threads()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return left


def in_fresh_python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False, **options)


MAKE = """
import os, sys, time
import numpy as np
from gnnkit.graph import CSC
from gnnkit.sampler import Loader, NeighborSampler, Sampler
class Python(Sampler):
    def draw(self, graph, nodes, hop, *, key):
        return NeighborSampler([3, 3]).draw(graph, nodes, hop, key=key)
rng = np.random.default_rng(0)
csc = CSC.from_edges(rng.integers(0, 1000, 5000), rng.integers(0, 1000, 5000), 1000)
def loader(sampler=NeighborSampler([3, 3])):
    return Loader(csc, sampler, None, 8, features=np.ones((1000, 4), np.float32), threads=3)
"""


SAMPLERS = [
    NeighborSampler(FANOUTS),
    NeighborSampler(FANOUTS, redraw=True, edge_ids=False, importance="mean"),
    WeightedSampler(FANOUTS, alpha=0.5),
    BalancedSampler(FANOUTS),
    LaborSampler(FANOUTS),
    MetropolisHastingsSampler(FANOUTS),
    ClusterSampler(np.arange(NUM_NODES) % 9),
    FullSampler(),
    PythonSampler(),
    Overriding(FANOUTS),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_batches_are_what_the_sampler_gives_for_the_planned_seeds(sampler: Sampler) -> None:
    own = loader(sampler=sampler, rank=1, world_size=3, threads=2)
    epoch = own.plan(0)
    key = _core.derive(_core.derive(3, 0), 1)
    for step, batch in enumerate(own):
        positions = epoch.batch(step, 1)
        expected = sampler.sample(GRAPH.csc, own.seeds[positions], key=_core.derive(key, step))
        np.testing.assert_array_equal(batch.positions, positions)
        np.testing.assert_array_equal(batch.seeds, expected.seeds)
        for block, other in zip(batch.blocks, expected.blocks, strict=True):
            np.testing.assert_array_equal(block.indices, other.indices)
            np.testing.assert_array_equal(block.edge_ids, other.edge_ids)
            np.testing.assert_array_equal(block.weight, other.weight)
        np.testing.assert_array_equal(batch.x, GRAPH.features[batch.input_nodes])
        np.testing.assert_array_equal(batch.y, GRAPH.labels[batch.seeds])
    assert step + 1 == len(own) == epoch.num_steps


@pytest.mark.slow
def test_threads_depth_and_id_type_do_not_show() -> None:
    expected = content(loader(threads=1, prefetch=1))
    for threads, prefetch in [(2, 1), (3, 2), (16, 40)]:
        assert content(loader(threads=threads, prefetch=prefetch)) == expected
    assert content(loader(graph=random_graph(np.int64), threads=2)) == expected
    assert content(loader(seed=4)) != expected


def test_epochs_differ_and_repeat() -> None:
    first, second = loader(), loader()
    epochs = [content(first) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    second.set_epoch(1)
    assert content(second) == epochs[1]
    second.set_epoch(2)
    assert content(second) == epochs[2]


@pytest.mark.parametrize("batching", ["plain", "balanced"])
@pytest.mark.parametrize("seeds", [np.arange(7, 250), GRAPH.labels == 2, np.array([5, 3]), np.array([], int)])
def test_ranks_make_equal_steps_over_every_seed_once(batching: str, seeds: np.ndarray) -> None:
    made = [loader(seeds=seeds, batching=batching, rank=rank, world_size=3, repeat=False) for rank in range(3)]
    ranks = [list(each) for each in made]
    assert len({len(batches) for batches in ranks}) == 1
    held = [batch.seeds for batches in ranks for batch in batches]
    ids = np.flatnonzero(seeds) if seeds.dtype == bool else np.sort(seeds)
    np.testing.assert_array_equal(np.sort(np.concatenate([ids[:0], *held])), ids)
    for batches in ranks:
        assert all(len(batch.x) == len(batch.input_nodes) and len(batch.blocks) == 2 for batch in batches)


def test_ranks_together_draw_what_one_would() -> None:
    def drawn(batches: list[LoadedBatch]) -> dict[int, list[int]]:
        """The edges that each seed drew."""
        hops = [(batch.seeds, batch.blocks[-1]) for batch in batches]
        return {
            int(seed): block.edge_ids[block.indptr[i] : block.indptr[i + 1]].tolist()
            for seeds, block in hops
            for i, seed in enumerate(seeds)
        }

    alone = loader(batch_size=32)
    ranks = zip(*(loader(batch_size=8, rank=rank, world_size=4) for rank in range(4)), strict=True)
    for together, single in zip(ranks, alone, strict=True):
        assert drawn(list(together)) == drawn([single])


def test_pyg_data_is_read_as_a_graph() -> None:
    data = Data(
        x=torch.from_numpy(GRAPH.features), edge_index=torch.tensor([[1, 2], [0, 0]]), y=torch.zeros(300).long()
    )
    (batch,) = loader(graph=data, seeds=[0], batch_size=1)
    assert sorted(batch.input_nodes.tolist()) == [0, 1, 2]
    np.testing.assert_array_equal(batch.x, GRAPH.features[batch.input_nodes])


class Wrong(PythonSampler):
    """A sampler that changes the first hop, or the batch."""

    def __init__(self, change: Callable[[Any], Any], of_batch: bool = False) -> None:
        super().__init__()
        self.change, self.of_batch = change, of_batch

    def draw(self, graph: CSC, nodes: np.ndarray, hop: int, *, key: int) -> Any:
        made = super().draw(graph, nodes, hop, key=key)
        return made if self.of_batch or hop else self.change(made)


class WrongBatches(Wrong):
    def sample(self, graph: CSC, seeds: np.ndarray, *, key: int) -> Any:
        return self.change(super().sample(graph, seeds, key=key))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hop: None, "must return a Hop, got NoneType"),
        (lambda hop: replace(hop, indptr=hop.indptr[:-1]), r"indptr has \d+ entries, expected \d+"),
        (lambda hop: replace(hop, indptr=hop.indptr + 1), r"indptr runs from 1 to \d+, expected from 0 to \d+ draws"),
        (
            lambda hop: replace(hop, indptr=np.r_[0, 2000, hop.indptr[2:]]),
            r"indptr\[2\] = \d+ is below indptr\[1\] = 2000",
        ),
        (lambda hop: replace(hop, indptr=hop.indptr * 0.5), "indptr has dtype float64, expected integers"),
        (lambda hop: replace(hop, indptr=None), r"indptr has shape \[\]"),
        (lambda hop: replace(hop, sources=hop.sources + 300), r"sources\[0\] = \d+ is out of range 0\.\.299"),
        (lambda hop: replace(hop, edge_ids=hop.edge_ids + 2500), r"edge_ids\[0\] = \d+ is out of range 0\.\.2499"),
        (lambda hop: replace(hop, edge_ids=hop.edge_ids[:-1]), r"edge_ids has \d+ entries"),
        (lambda hop: replace(hop, edge_ids=hop.edge_ids[::-1]), "edge_ids and sources do not match: edge_ids"),
        (lambda hop: replace(hop, weight=np.ones(1)), r"weight has shape \[1\]"),
        (lambda hop: replace(hop, weight=np.full(len(hop.sources), np.nan)), r"weight\[0\] = nan is not finite"),
    ],
)
def test_a_plugin_that_hands_over_wrong_draws_is_named(change: Callable[[Hop], Any], message: str) -> None:
    sampler = Wrong(change)
    with pytest.raises(UserError, match=rf"^Wrong\.draw:? {message}"):
        sampler.sample(GRAPH.csc, np.arange(5), key=1)
    with pytest.raises(UserError, match=rf"^Wrong\.draw:? {message}"):
        list(loader(sampler=sampler, shuffle=False))


def test_edges_into_other_nodes_are_found_where_their_sources_are_right() -> None:
    graph = CSC(np.array([0, 1, 2]), np.array([1, 1]))  # 1 -> 0, 1 -> 1
    sampler = Wrong(lambda hop: replace(hop, edge_ids=hop.edge_ids[::-1]))
    with pytest.raises(UserError, match=r"edge_ids and destinations do not match: edge_ids\[0\] = 1 is not .* node 0"):
        sampler.sample(graph, np.arange(2), key=1)


def outermost(batch: MiniBatch, **changes: Any) -> MiniBatch:
    return replace(batch, blocks=(replace(batch.blocks[0], **changes), *batch.blocks[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: None, "must return a MiniBatch, got NoneType"),
        (lambda batch: replace(batch, blocks=batch.blocks[:1]), "blocks has 1 entries, expected num_hops=2"),
        (lambda batch: replace(batch, seeds=batch.seeds[::-1]), "seeds must come back in their order"),
        (lambda batch: replace(batch, blocks=None), "blocks must be a sequence of Block, got NoneType"),
        (lambda batch: outermost(batch, indptr=None), r"blocks\[0\]: indptr has shape \[\]"),
        (lambda batch: outermost(batch, src_nodes=None), r"blocks\[0\]\.src_nodes has shape \[\]"),
        (lambda batch: replace(batch, blocks=[None, None]), r"blocks\[0\] must be a Block, got NoneType"),
        (lambda batch: replace(batch, blocks=batch.blocks[::-1]), r"blocks\[0\] must compute the nodes that the next"),
        (
            lambda batch: outermost(batch, indices=batch.blocks[0].indices + 300),
            r"blocks\[0\]\.indices\[\d+\] = \d+ is out",
        ),
        (lambda batch: outermost(batch, src_nodes=batch.blocks[0].src_nodes * 0), r"blocks\[0\]\.src_nodes repeat"),
        (
            lambda batch: outermost(batch, src_nodes=batch.blocks[0].src_nodes[::-1].copy()),
            r"blocks\[0\]: edge_ids and sources do not match",
        ),
        (
            lambda batch: outermost(batch, src_nodes=batch.blocks[0].src_nodes.tolist()),
            r"blocks\[0\]\.src_nodes must be a contiguous array of int32 or int64",
        ),
        (lambda batch: outermost(batch, indptr=batch.blocks[0].indptr * 2), r"blocks\[0\]: indptr runs from 0 to"),
        (
            lambda batch: outermost(batch, indptr=np.zeros(301, np.int64)),
            r"blocks\[0\]: indptr has 300 rows for \d+ src",
        ),
    ],
)
def test_a_plugin_that_hands_over_wrong_batches_is_named(change: Callable[[MiniBatch], Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^WrongBatches\.sample:? {message}"):
        list(loader(sampler=WrongBatches(change, of_batch=True), batch_size=8, shuffle=False))


class WrongSeeds(PythonSampler):
    """Gives fewer costs and groups than there are seeds."""

    def costs(self, graph: CSC, seeds: np.ndarray) -> Any:
        return np.ones(3)

    def groups(self, graph: CSC, seeds: np.ndarray) -> Any:
        return None if self.delay == 0 else seeds[1:]


def test_a_plugin_that_hands_over_wrong_costs_or_groups_is_named() -> None:
    with pytest.raises(UserError, match=r"WrongSeeds\.costs must be a number for each of 300 seeds, got .* \[3\]"):
        loader(sampler=WrongSeeds(), batching="balanced").plan(0)
    with pytest.raises(UserError, match=r"WrongSeeds\.groups has 299 entries, expected 300"):
        loader(sampler=WrongSeeds(delay=0.1))


@pytest.mark.slow
def test_a_batch_stays_as_it_is_while_it_is_held() -> None:
    batches = list(loader(threads=2, prefetch=2))
    views = [torch.from_dlpack(batch.x) for batch in batches]
    expected = [GRAPH.features[batch.input_nodes] for batch in batches]
    del batches
    gc.collect()
    for _ in loader(threads=2, prefetch=2):
        pass
    for view, rows in zip(views, expected, strict=True):
        np.testing.assert_array_equal(view, rows)


def test_memory_is_used_again_once_a_batch_is_dropped() -> None:
    places = [batch.x.ctypes.data for batch in loader(batch_size=4, threads=1, prefetch=2)]
    assert len(set(places)) < len(places) / 2


@pytest.mark.parametrize("batching", ["plain", "balanced"])
def test_a_loader_resumes_to_the_bit(batching: str) -> None:
    def make() -> Loader:
        return loader(batching=batching, rank=1, world_size=2, threads=2)

    whole = make()
    expected = [content(whole), content(whole)]
    for epoch, step in [(0, 0), (0, 1), (0, 4), (0, 5), (1, 2), (1, 5)]:
        before = make()
        for _ in range(epoch):
            content(before)
        taken = content(islice(before, step))
        after = make()
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        if (epoch, step) == (1, 5):
            assert after.state_dict()["epoch"] == 2
        elif (epoch, step) == (0, 5):
            assert content(after) == expected[1]
        else:
            after.set_epoch(epoch)  # the current one
            assert taken + content(after) == expected[epoch]


def test_a_state_of_other_batches_is_refused() -> None:
    state = loader(rank=0, world_size=2).state_dict()
    with pytest.raises(ValueError, match="saved with world_size=2, this loader has 1"):
        loader().load_state_dict(state)
    with pytest.raises(ValueError, match="saved with seeds="):
        loader(seeds=np.arange(9)).load_state_dict(loader().state_dict())


def test_a_batch_shows_its_shapes() -> None:
    batch = next(iter(loader(batch_size=4, labels=np.zeros((NUM_NODES, 2)))))
    nodes, edges = len(batch.input_nodes), [len(block.indices) for block in batch.blocks]
    shapes = f"seeds=[4], y=[4, 2], input_nodes=[{nodes}], x=[{nodes}, 5]"
    assert repr(batch) == f"LoadedBatch({shapes}, edges={edges})"
    assert "x=" not in repr(next(iter(loader(graph=GRAPH.csc))))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets the rank and size that torch.distributed reports."""

    def create(rank: int, world_size: int) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)

    return create


Group = Callable[[int, int], None]


def test_a_loader_follows_a_process_group_that_is_created_later(group: Group) -> None:
    later, every = loader(), loader(rank=0, world_size=1)
    num_steps, first = len(later), content(islice(later, 3))
    group(1, 2)
    expected = loader(rank=1, world_size=2)
    assert (len(later), len(every)) == (len(expected), num_steps) == (-(-NUM_NODES // 64), -(-NUM_NODES // 32))
    assert content(islice(every, 3)) == first
    expected.start_at(1)
    assert content(later) == content(expected)
    assert later.balance(0) == expected.balance(0)


def test_a_state_belongs_to_the_ranks_of_its_iteration(group: Group) -> None:
    alone = loader()
    content(islice(alone, 2))
    saved_alone = alone.state_dict()
    group(0, 2)
    assert alone.state_dict() == saved_alone
    first = loader()
    taken, whole = content(islice(first, 2)), loader()
    second = loader()
    second.load_state_dict(first.state_dict())
    assert taken + content(second) == content(whole)
    reason = "world_size=1, this loader has 2, the size of torch.distributed's default process group"
    with pytest.raises(UserError, match=reason):
        loader().load_state_dict(saved_alone)


def test_the_split_over_a_process_group_is_reported_once(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    _report.cache_clear()
    group(1, 5)
    len(loader())
    assert capsys.readouterr().err == ""
    group(0, 5)
    len(loader(rank=0, world_size=1))
    assert capsys.readouterr().err == ""
    assert len(loader()) == len(loader())
    err = capsys.readouterr().err
    assert err.count("Loader: each epoch's seeds are split over the 5 ranks") == err.count("\n") == 1


def test_an_error_in_a_thread_is_raised_by_the_iterator() -> None:
    failing = loader(sampler=PythonSampler(fail_at=17), threads=2)
    with pytest.raises(OverflowError, match="node 17 is too much"):
        list(failing)
    assert loader_threads_left() == 0


def test_a_graph_that_is_corrupted_later_is_an_error_that_names_the_place() -> None:
    graph = random_graph()
    own = loader(graph=graph)
    graph.csc.indices[:] = NUM_NODES
    with pytest.raises(ValueError, match=r"indices\[\d+\] = 300 is out of range for 300 nodes"):
        list(own)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [NeighborSampler(FANOUTS), PythonSampler()], ids=type)
def test_no_thread_is_left_of_an_iterator_that_ends_is_closed_or_dropped(sampler: Sampler) -> None:
    own = loader(sampler=sampler, batch_size=4, threads=3)
    assert len(list(own)) == len(own)
    assert loader_threads_left() == 0
    half = iter(own)
    next(half)
    half.close()
    assert loader_threads_left() == 0
    half = iter(own)
    next(half)
    assert loader_threads() > 0
    del half
    assert loader_threads_left() == 0
    never_begun = iter(own)
    assert loader_threads_left() == 0
    del never_begun


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says how a file is mapped")
def test_files_are_not_read_ahead_once_they_are_sampled(tmp_path: Path) -> None:
    def is_read_at_random(name: str) -> bool:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        at = next(at for at, line in enumerate(lines) if line.endswith(f" {tmp_path / name}.npy"))
        return "rr" in next(line for line in lines[at:] if line.startswith("VmFlags:")).split()

    arrays = {"indptr": np.arange(101) * 2, "indices": np.arange(200) % 100, "x": np.ones((100, 4), np.float32)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    indptr, indices, x = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays)
    graph = CSC(indptr, indices)
    assert not any(map(is_read_at_random, arrays))  # the check reads the whole file in order
    batch = next(iter(Loader(graph, NeighborSampler(FANOUTS), np.arange(10), features=x)))
    np.testing.assert_array_equal(batch.x, arrays["x"][batch.input_nodes])
    assert all(map(is_read_at_random, arrays))


def test_python_samplers_overlap_with_their_consumer() -> None:
    """While the consumer has the first batch, the next ones are drawn."""
    begun: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Telling(PythonSampler):
        def sample(self, graph: CSC, seeds: np.ndarray, *, key: int) -> Any:
            begun.put(key)
            return super().sample(graph, seeds, key=key)

    batches = iter(loader(sampler=Telling(), batch_size=32, threads=2, prefetch=2))
    next(batches)
    assert len({begun.get(timeout=GUARD) for _ in range(3)}) == 3
    assert len(list(batches)) > 0


def test_two_iterators_of_one_loader_do_not_disturb_each_other() -> None:
    own = loader()
    pairs = list(zip(own, own, strict=True))
    again = loader()
    assert content(iter([pair[0] for pair in pairs])) == content(again)
    assert content(iter([pair[1] for pair in pairs])) == content(again)


def test_an_iterator_may_move_to_another_thread() -> None:
    iterator = iter(loader())
    first = next(iterator)
    rest: list[LoadedBatch] = []
    consumer = threading.Thread(target=lambda: rest.extend(iterator))
    consumer.start()
    consumer.join()
    assert content(iter([first, *rest])) == content(loader())


@pytest.mark.slow
def test_a_loader_survives_a_fork_and_an_iterator_says_that_it_does_not() -> None:
    code = f"""{MAKE}
own = loader()
half = iter(own)
next(half)
child = os.fork()
if child == 0:
    try:
        next(half)
    except RuntimeError as error:
        assert "fork" in str(error)
        assert len(list(own)) == 125
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(half)) == 124
"""
    done = in_fresh_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_interpreter_ends_with_iterators_in_use_and_without_torch() -> None:
    code = f"""{MAKE}
for sampler in (NeighborSampler([3, 3]), Python()):
    half = iter(loader(sampler))
    next(half).arrays()
    cycle = [half]
    cycle.append(cycle)
    del half, cycle
assert 'torch' not in sys.modules
"""
    done = in_fresh_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ctrl_c_ends_a_wait_for_a_batch() -> None:
    code = f"""{MAKE}
class Slow(Python):
    def draw(self, graph, nodes, hop, *, key):
        print("drawing", flush=True)
        time.sleep(1)
        return super().draw(graph, nodes, hop, key=key)
while True:
    next(iter(loader(Slow())))
"""
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=GUARD)
    assert "KeyboardInterrupt" in errors
    assert running.returncode == -signal.SIGINT


def test_tensors_share_the_memory_of_arrays() -> None:
    batch = next(iter(loader()))
    tensors = batch.to_torch()
    assert tensors["x"].data_ptr() == batch.x.ctypes.data
    assert [set(block) for block in tensors["blocks"]] == [{"indptr", "indices", "src_nodes", "edge_ids"}] * 2
    assert torch.equal(batch.to("cpu", non_blocking=True)["y"], torch.from_numpy(batch.y))


def test_half_precision_features_arrive_as_they_are() -> None:
    half = GRAPH.features.astype(np.float16)
    assert next(iter(loader(features=half))).to_torch()["x"].dtype == torch.float16
    brain = torch.from_numpy(GRAPH.features).to(torch.bfloat16)
    batch = next(iter(loader(features=brain.view(torch.uint16).numpy())))
    assert torch.equal(torch.from_numpy(batch.x).view(torch.bfloat16), brain[batch.input_nodes])


def test_features_come_from_a_mapped_file(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", GRAPH.features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert content(loader(features=mapped)) == content(loader())


def test_the_balance_of_an_epoch_is_the_largest_load_over_the_mean() -> None:
    costs = np.arange(NUM_NODES, dtype=np.float64) ** 4
    ranks = [loader(world_size=4, batch_size=8, costs=costs, rank=rank) for rank in range(4)]
    loads = [sum(costs[batch.positions].sum() for batch in rank) for rank in ranks]
    assert ranks[0].balance(0) == ranks[3].balance(0) == pytest.approx(max(loads) / np.mean(loads))
    even = loader(rank=0, world_size=4, batch_size=8, costs=costs, batching="balanced")
    assert 1 <= even.balance(0) < 1.05 < ranks[0].balance(0)
    assert loader(seeds=np.array([], int), rank=0, world_size=3).balance(0) == 1


def test_balanced_batches_take_the_costs_of_the_sampler_or_the_users() -> None:
    def imbalance(**changes: Any) -> float:
        ranks = [loader(batch_size=16, world_size=4, rank=rank, **changes) for rank in range(4)]
        edges = np.array([[len(batch.blocks[0].indices) for batch in own] for own in ranks])[:, :-1]
        return float((edges.max(0) / edges.mean(0)).mean())

    degree = np.diff(GRAPH.csc.indptr).astype(float)
    assert imbalance(batching="balanced") < imbalance() - 0.05
    assert content(loader(batching="balanced", costs=degree)) != content(loader(batching="balanced"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be a whole number from 1 to"),
        ({"batch_size": 2.5}, r"batch_size=2\.5 must be a whole number"),
        ({"seed": 0.5}, r"seed=0\.5 must be a whole number"),
        ({"threads": 2**20}, "threads=1048576 must be a whole number from 1 to 1024"),
        ({"sampler": [5, "a"]}, r"sampler\.fanouts\[1\]=a must be a whole number"),
        ({"sampler": None}, "sampler=None must be a Sampler or fanouts, got NoneType"),
        ({"graph": [1, 2]}, "expected a gnnkit Graph, a torch_geometric Data or a DGLGraph, got list"),
        ({"features": torch.ones(300, 2).to_sparse()}, "features cannot be read as an array"),
        ({"labels": torch.ones(300).to_sparse()}, "labels cannot be read as an array"),
        ({"costs": ["dear"] * 300}, "costs must be a number for each of 300 seeds"),
        ({"threads": 0}, "threads=0 must be a whole number from 1 to 1024"),
        ({"prefetch": 0}, "prefetch=0 must be a whole number from 1 to"),
        ({"window": -1}, "window=-1 must be a whole number from 1 to"),
        ({"rank": 2, "world_size": 2}, "rank=2 is out of range for world_size=2"),
        ({"world_size": 2}, "rank=None with world_size=2: pass both, or neither"),
        ({"rank": 0}, "rank=0 with world_size=None: pass both, or neither"),
        ({"batching": "even"}, "batching=even must be plain or balanced"),
        ({"seeds": [3, 300]}, r"seeds\[1\] = 300 is out of range for 300 nodes"),
        ({"seeds": [-1]}, r"seeds\[0\] = -1 is out of range"),
        ({"seeds": [3, 4, 3]}, r"seeds\[2\] = 3 repeats seeds\[0\]"),
        ({"seeds": [0.5]}, "seeds has dtype float64, expected integers"),
        ({"seeds": np.ones(4, bool)}, r"seeds: the mask has shape \[4\], expected \[300\] for the nodes$"),
        ({"features": np.ones((4, 2))}, "features must have a row of fixed size for each of 300 nodes"),
        ({"features": np.ones((300, 4))[:, ::2]}, "features must be C-contiguous"),
        ({"labels": np.array([None] * 300)}, "labels must have a row of fixed size"),
        ({"costs": np.ones(3)}, "costs must be a number for each of 300 seeds"),
        ({"batching": "balanced", "costs": np.full(300, np.nan)}, r"costs\[\d+\] = NaN is not finite"),
    ],
)
def test_bad_arguments_name_the_rule_and_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(iter(loader(**changes)))
