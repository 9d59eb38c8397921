"""Epochs of DGL: its layers on the whole graph, with ids of 32 bits."""

from __future__ import annotations

import os

import dgl
import torch
from dgl.nn import GATConv, GINConv, GraphConv, SAGEConv
from epochs import Epochs
from steps import Step, serve_steps
from torch import Tensor, nn


def conv_of(job: Epochs, index: int) -> nn.Module:
    before, after = job.widths[index]
    last = index + 1 == job.num_layers
    if job.model == "gcn":
        return GraphConv(before, after, norm="both")
    if job.model == "sage":
        return SAGEConv(before, after, "mean")
    if job.model == "gin":
        return GINConv(job.mlp(before, after), "sum", learn_eps=True)
    heads = 1 if last else job.heads
    return GATConv(before, after // heads, heads, attn_drop=job.dropout)


def epoch_of(job: Epochs) -> Step:
    torch.manual_seed(0)
    indptr, indices = job.edges()
    # Not by ("csc", ...): sums of edge values then miss the ids of the edges.
    graph = dgl.graph((indices, torch.repeat_interleave(indptr.diff())), num_nodes=len(indptr) - 1).int()
    graph.create_formats_()

    def call(conv: nn.Module, x: Tensor) -> Tensor:
        return conv(graph, x).flatten(1)  # heads stand in a dimension of their own

    return job.step([conv_of(job, index) for index in range(job.num_layers)], call)


torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
serve_steps({"epoch": epoch_of}, f"dgl {dgl.__version__}, torch {torch.__version__}", Epochs.of)
