"""gnnkit, and torch's own row gather, in the environment that runs `peers.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import torch
from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve

from gnnkit import _core
from gnnkit.graph import CSC, MiniBatch
from gnnkit.sampler import LaborSampler, Loader, NeighborSampler, Sampler, gather_rows


def graph(case: Case) -> CSC:
    return CSC(case.load("indptr"), case.load("indices"))


def size(batch: MiniBatch) -> Size:
    return len(batch.blocks[0].indices), len(batch.input_nodes)


def size_of_all(batch: MiniBatch) -> Size:
    return sum(len(block.indices) for block in batch.blocks), len(batch.input_nodes)


def sample(make: Callable[[Case], Sampler], count: Callable[[MiniBatch], Size] = size) -> Maker:
    """One batch at a time."""

    def maker(case: Case) -> Batches:
        csc, sampler = graph(case), make(case)
        return one_by_one(lambda batch: count(sampler.sample(csc, case.seeds(batch), key=batch)))

    return maker


def load(features: bool) -> Maker:
    """A batch a thread."""

    def maker(case: Case) -> Batches:
        csc, sampler, x = graph(case), NeighborSampler(case.fanouts), case.load("features") if features else None

        def batches(first: int) -> Iterator[Size]:
            seeds = case.all_seeds(first)
            loader = Loader(csc, sampler, seeds, BATCH_SIZE, features=x, threads=case.threads, shuffle=False)
            return (size(batch.minibatch) for batch in loader)

        return batches

    return maker


def picked(case: Case, batch: int) -> np.ndarray:
    """Ids as a batch has them: its input nodes."""
    sampler = NeighborSampler(case.fanouts)
    return case.cached(
        f"ids {case.fanouts} {batch % 4}",
        lambda: sampler.sample(graph(case), case.seeds(batch % 4), key=batch).input_nodes,
    )


def gather(case: Case) -> Batches:
    x = case.load("features")
    out = np.empty((400_000, x.shape[1]), x.dtype)

    def rows(batch: int) -> Size:
        ids = picked(case, batch)
        return len(gather_rows(x, ids, out[: len(ids)], threads=case.threads)), 0

    return one_by_one(rows)


def gather_with_torch(reuse: bool) -> Maker:
    def maker(case: Case) -> Batches:
        x = torch.from_numpy(case.load("features"))
        out = torch.empty(400_000, x.shape[1])

        def rows(batch: int) -> Size:
            ids = torch.from_numpy(picked(case, batch)).long()
            return len(torch.index_select(x, 0, ids, out=out[: len(ids)]) if reuse else x.index_select(0, ids)), 0

        return one_by_one(rows)

    return maker


serve(
    {
        "sample": sample(lambda case: NeighborSampler(case.fanouts, threads=case.threads)),
        "sample, one batch on 2 threads": sample(lambda case: NeighborSampler(case.fanouts, threads=2)),
        "sample redraw": sample(
            lambda case: NeighborSampler(case.fanouts, redraw=True, threads=case.threads), size_of_all
        ),
        "sample labor": sample(lambda case: LaborSampler(case.fanouts, redraw=True, threads=case.threads), size_of_all),
        "sample, a batch a thread": load(features=False),
        "gather": gather,
        "gather with torch, out=": gather_with_torch(reuse=True),
        "gather with torch": gather_with_torch(reuse=False),
        "load": load(features=True),
    },
    f"gnnkit {_core.__version__}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores",
)
