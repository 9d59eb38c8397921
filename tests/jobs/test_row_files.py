"""Files that all workers write together hold the rows that the leader would write."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import check_graph
from torch import Tensor

from gnnkit.comm.base import Communicator, Counts
from gnnkit.comm.threads import Threads
from gnnkit.errors import of_disk
from gnnkit.jobs.outputs import write_columns, write_rows
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.strategy import Worker
from gnnkit.task.evaluation import by_node
from tests.cases import few

GRAPH = check_graph(37)
_SIZE = (GRAPH.num_nodes, 5)
_DRAWS = np.random.default_rng(0)
TABLES = {
    "wide": torch.from_numpy(_DRAWS.normal(size=_SIZE).astype(np.float32)),
    "bits": torch.from_numpy(_DRAWS.integers(0, 2**63, _SIZE).view(np.float64)),  # with NaNs of many kinds
    "one column": torch.from_numpy(_DRAWS.normal(size=_SIZE)[:, :1]),
    "vector": torch.from_numpy(_DRAWS.integers(-(2**62), 2**62, GRAPH.num_nodes)),
    "sets": torch.from_numpy(_DRAWS.random(_SIZE) < 0.5),
}


def on_workers(work: Callable[[Tensor, Worker], None], table: Tensor, ranks: int) -> None:
    """Calls `work` with each worker's rows. The last of several workers has none."""
    owner = np.random.default_rng(1).integers(0, max(ranks - 1, 1), GRAPH.num_nodes).astype(np.int32)
    shards = list(cut_all(GRAPH, Partition(owner, None, Grid(ranks, 1, 1))))

    def rank(comm: Threads) -> None:
        worker = Worker(comm, shards[comm.rank], torch.float64, 0)
        work(table[torch.from_numpy(np.array(worker.owned))], worker)

    Threads.run(rank, ranks)


@few("ranks", range(1, 7), default=[1, 3, 6])
@pytest.mark.parametrize("name", TABLES)
def test_columns_of_all_workers_are_the_rows_of_the_leader(name: str, ranks: int, tmp_path: Path) -> None:
    table, by_rows, by_columns = TABLES[name], tmp_path / "rows.npy", tmp_path / "columns.npy"
    on_workers(lambda rows, worker: write_rows(by_rows, by_node(rows, worker)), table, ranks)
    on_workers(lambda rows, worker: write_columns(by_columns, rows, worker), table, ranks)
    expected, mapped = np.load(by_rows), np.load(by_columns, mmap_mode="r")
    assert (mapped.dtype, mapped.shape) == (expected.dtype, expected.shape) == (table.numpy().dtype, table.shape)
    assert mapped.tobytes("C") == expected.tobytes("C") == table.numpy().tobytes("C")
    assert mapped.flags.f_contiguous
    assert by_columns.stat().st_size == by_rows.stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == {"rows.npy", "columns.npy"}


def test_no_worker_receives_more_than_a_column_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    exchange = Threads.all_to_all

    def record(comm: Communicator, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        received = exchange(comm, rows, send_counts, recv_counts)  # type: ignore[arg-type]
        sizes.append(received.numel())
        return received

    monkeypatch.setattr(Threads, "all_to_all", record)
    on_workers(lambda rows, worker: write_columns(tmp_path / "x.npy", rows, worker), TABLES["wide"], 3)
    assert max(sizes) == GRAPH.num_nodes


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_full_disk_of_one_worker_leaves_the_earlier_file_and_names_it(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, here, fsync = tmp_path / "x.npy", threading.local(), os.fsync
    path.write_bytes(b"earlier")

    def full_on_the_last(descriptor: int) -> None:
        if getattr(here, "rank", 0) == ranks - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    def write(rows: Tensor, worker: Worker) -> None:
        here.rank = worker.comm.rank
        write_columns(path, rows, worker)

    monkeypatch.setattr(os, "fsync", full_on_the_last)
    with pytest.raises(OSError, match="No space left") as caught:
        on_workers(write, TABLES["wide"], ranks)
    assert str(of_disk(caught.value)).startswith(f"{path}: No space left on device: free some")
    assert path.read_bytes() == b"earlier"
    assert [*tmp_path.iterdir()] == [path]
