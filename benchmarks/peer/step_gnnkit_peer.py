"""Steps of gnnkit, and of PyG with `trim_to_layer` on batches that gnnkit samples.

PyG's NeighborLoader needs pyg-lib. So its steps have gnnkit's sampling and gathering,
and PyG's forward and backward passes. Making PyG's `Data` is not counted.
"""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import torch
from steps import LR, NUM_CLASSES, Clock, Job, Maker, Step, serve_steps
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.engine import BlockLayers, derive
from gnnkit.engine.remote.features import of_bits, round_rows
from gnnkit.graph import CSC, Graph, MiniBatch
from gnnkit.kernels.products import fast_products
from gnnkit.launch.lean import keep_freed_memory
from gnnkit.model.sage import GraphSAGE
from gnnkit.sampler import LoadedBatch, NeighborSampler, gather_rows
from gnnkit.sampler.loaded_batch import Tables


class Batches:
    """Sampled batches, with features in memory used again."""

    def __init__(self, job: Job, dtype: torch.dtype = torch.float32) -> None:
        self.case, self.labels, self.features = job.case, job.labels(), job.case.load("features")
        if dtype == torch.bfloat16:
            self.features = job.case.cached("rounded", lambda: round_rows(self.features))
        csc = CSC(self.case.load("indptr"), self.case.load("indices"))
        self.graph = Graph(csc, self.features, self.labels, np.ones(csc.num_nodes, np.int8))
        self.sampler = NeighborSampler(self.case.fanouts, threads=self.case.threads)
        self.buffer = np.empty((0, self.features.shape[1]), self.features.dtype)

    def make(self, number: int, clock: Clock) -> tuple[MiniBatch, np.ndarray]:
        with clock("sample"):
            batch = self.sampler.sample(self.graph.csc, self.case.seeds(number), key=number)
        with clock("gather"):
            num_rows = len(batch.input_nodes)
            if len(self.buffer) < num_rows:
                self.buffer = np.empty((num_rows * 5 // 4, self.features.shape[1]), self.features.dtype)
            x = gather_rows(self.features, batch.input_nodes, self.buffer[:num_rows], threads=self.case.threads)
        return batch, x


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock, logits: Tensor, labels: Tensor) -> None:
    with clock("backward"):
        F.cross_entropy(logits.float(), labels).backward()
    with clock("rest"):
        optimizer.step()
        optimizer.zero_grad()


def ours(dtype: torch.dtype) -> Maker:
    """Steps as strategy=individual_sample takes them, with input rows of `dtype`."""

    def maker(job: Job) -> Step:
        torch.manual_seed(0)
        batches, widths = Batches(job, dtype), job.widths
        model = GraphSAGE(widths[0], NUM_CLASSES, job.hidden, len(widths) - 1, job.dropout)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        layers = BlockLayers(batches.graph, model, torch.float32, torch.device("cpu"))

        def step(number: int, clock: Clock) -> None:
            batch, rows = batches.make(number, clock)
            with clock("rest"):
                x = of_bits(rows) if dtype == torch.bfloat16 else torch.from_numpy(rows)
                adjacencies = layers.layers(batch.blocks, derive(1, number))
                labels = torch.from_numpy(batches.labels[batch.seeds])
            rounds = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
            with clock("forward"), rounds, fast_products():
                logits = model(x, adjacencies)
            learn(model, optimizer, clock, logits, labels)

        return step

    return maker


def pyg(job: Job) -> Step:
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    torch.manual_seed(0)
    batches, widths = Batches(job), job.widths
    convs = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))
    optimizer = torch.optim.Adam(convs.parameters(), lr=LR)

    def step(number: int, clock: Clock) -> None:
        batch, features = batches.make(number, clock)
        tables = Tables(batches.features, batches.labels)
        data = LoadedBatch(batch, np.arange(len(batch.seeds)), features, tables).to_pyg()
        with clock("forward"):
            x, edge_index = data.x, data.edge_index
            for index, conv in enumerate(convs):
                x, edge_index, _ = trim_to_layer(index, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index)
                x = conv(F.dropout(x.relu() if index else x, job.dropout), edge_index)
            logits = x[: data.batch_size]
        learn(convs, optimizer, clock, logits, torch.from_numpy(batches.labels[batch.seeds]))

    return step


if os.environ.get("STEP_ALLOCATOR") == "ranks":
    keep_freed_memory()
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
MAKERS = {"step": ours(torch.float32), "step, bfloat16": ours(torch.bfloat16), "step, PyG and trim_to_layer": pyg}
serve_steps(MAKERS, f"gnnkit, torch {torch.__version__}")
