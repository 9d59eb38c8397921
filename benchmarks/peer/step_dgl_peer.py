"""Steps of DGL: NeighborSampler, features by index, SAGEConv with the mean."""

from __future__ import annotations

import os

import dgl
import numpy as np
import torch
from dgl.nn import SAGEConv
from steps import LR, Clock, Job, Step, serve_steps
from torch import nn
from torch.nn import functional as F


def step_of(job: Job) -> Step:
    torch.manual_seed(0)
    case = job.case
    indptr, indices = (torch.from_numpy(case.load(name, np.int64)) for name in ("indptr", "indices"))
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    sampler = dgl.dataloading.NeighborSampler(list(case.fanouts[::-1]))
    x, labels = torch.from_numpy(case.load("features")), torch.from_numpy(job.labels())
    convs = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in zip(job.widths, job.widths[1:], strict=False))
    optimizer = torch.optim.Adam(convs.parameters(), lr=LR)

    def step(number: int, clock: Clock) -> None:
        with clock("sample"):
            nodes, seeds, blocks = sampler.sample_blocks(graph, torch.from_numpy(case.seeds(number)))
        with clock("gather"):
            h = x[nodes]
        with clock("forward"):
            for index, (conv, block) in enumerate(zip(convs, blocks, strict=False)):
                h = conv(block, F.dropout(h.relu() if index else h, job.dropout))
        with clock("backward"):
            F.cross_entropy(h, labels[seeds]).backward()
        with clock("rest"):
            optimizer.step()
            optimizer.zero_grad()

    return step


torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
serve_steps({"step": step_of}, f"dgl {dgl.__version__}, torch {torch.__version__}")
