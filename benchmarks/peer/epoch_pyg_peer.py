"""Epochs of PyG: `adj_t` as torch's CSR, and for GAT `edge_index` by destination.

These are the fastest forms of each layer on CPUs without pyg-lib. Compiled layers have
`edge_index`, because torch compiles no sums by CSR.
"""

from __future__ import annotations

import os

import torch
import torch_geometric
from epochs import Epochs
from steps import Step, serve_steps
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv


def conv_of(job: Epochs, index: int) -> nn.Module:
    before, after = job.widths[index]
    last = index + 1 == job.num_layers
    if job.model == "gcn":
        return GCNConv(before, after, cached=True, add_self_loops=False)  # the graph has loops
    if job.model == "sage":
        return SAGEConv(before, after)
    if job.model == "gin":
        return GINConv(job.mlp(before, after), train_eps=True)
    heads = 1 if last else job.heads
    return GATConv(before, after // heads, heads, dropout=job.dropout, add_self_loops=False)


def edges_of(job: Epochs) -> Tensor:  # [2, num_edges] by destination
    indptr, indices = job.edges()
    return torch.stack([indices, torch.repeat_interleave(indptr.diff())])


def graph_of(job: Epochs) -> Tensor:
    if job.model == "gat":
        return edges_of(job)
    indptr, indices = job.edges()
    return torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices)), (len(indptr) - 1,) * 2)


def epoch_of(job: Epochs) -> Step:
    torch.manual_seed(0)
    graph = graph_of(job)
    return job.step([conv_of(job, index) for index in range(job.num_layers)], lambda conv, x: conv(x, graph))


def compiled_epoch_of(job: Epochs) -> Step:
    torch.manual_seed(0)
    edges = edges_of(job)
    convs = [torch.compile(conv_of(job, index)) for index in range(job.num_layers)]
    return job.step(convs, lambda conv, x: conv(x, edges))


torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
VERSIONS = f"torch_geometric {torch_geometric.__version__}, torch {torch.__version__}"
serve_steps({"epoch": epoch_of, "epoch, compiled": compiled_epoch_of}, VERSIONS, Epochs.of)
