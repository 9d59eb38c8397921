"""Epochs of DGL's relational layers: RelGraphConv, HGTConv, and GATConv by relation."""

from __future__ import annotations

import dgl
import torch
from dgl.nn import GATConv, HeteroGraphConv, HGTConv, RelGraphConv
from steps import Step, serve_steps
from torch import Tensor, nn
from typed_job import HEAD_WIDTH, HEADS, NUM_LAYERS, WIDTH, TypedJob


def homogeneous_epoch_of(job: TypedJob) -> Step:
    """Layers over all nodes. Edges are in order of relation, which DGL can use."""
    (ends, relation), rows, counts = job.homogeneous(), job.rows(), torch.tensor(list(job.graph.counts.values()))
    num_relations = 2 * len(job.graph.relations)
    graph = dgl.graph((ends[0], ends[1]), num_nodes=len(rows)).int()
    graph.create_formats_()
    if job.model == "rgcn":
        norm = dgl_norm(ends, relation, num_relations)
        layers = nn.ModuleList(RelGraphConv(WIDTH, k, num_relations) for k in (WIDTH, job.num_classes))

        def forward() -> Tensor:
            h = layers[0](graph, rows, relation, norm, presorted=True).relu()
            return layers[1](graph, h, relation, norm, presorted=True)

        return job.step(layers, forward)
    types = torch.repeat_interleave(torch.arange(len(counts)), counts)
    convs = [HGTConv(WIDTH, HEAD_WIDTH, HEADS, len(counts), num_relations, 0.0) for _ in range(NUM_LAYERS)]
    project = dgl.nn.TypedLinear(WIDTH, WIDTH, len(counts))
    out = nn.Linear(WIDTH, job.num_classes)

    def transform() -> Tensor:
        h = project(rows, types, sorted_by_type=True).relu()
        for conv in convs:
            h = conv(graph, h, types, relation, presorted=True)
        return out(h)

    return job.step(nn.ModuleList([project, *convs, out]), transform)


def dgl_norm(ends: Tensor, relation: Tensor, num_relations: int) -> Tensor:  # [num_edges, 1]
    """Computes 1 / the in-degree of each edge's destination in its relation."""
    _, group, counts = torch.unique(ends[1] * num_relations + relation, return_inverse=True, return_counts=True)
    return 1 / counts[group].float()[:, None]


def attention_epoch_of(job: TypedJob) -> Step:
    """GATConv in each relation, summed over the relations."""
    edges = {relation: (ends[0], ends[1]) for relation, ends in job.heterogeneous().items()}
    graph = dgl.heterograph(edges, job.graph.counts).int()
    graph.create_formats_()
    rows = job.by_type(job.rows())

    def layer(width: int, heads: int) -> nn.Module:
        convs = {name: GATConv(WIDTH, width, heads, allow_zero_in_degree=True) for _, name, _ in edges}
        return HeteroGraphConv(convs, aggregate="sum")

    layers = nn.ModuleList([layer(HEAD_WIDTH, HEADS), layer(job.num_classes, 1)])

    def forward() -> Tensor:
        h = {name: x.flatten(1).relu() for name, x in layers[0](graph, rows).items()}
        return layers[1](graph, h)[next(iter(rows))].flatten(1)

    return job.step(layers, forward)


def epoch_of(job: TypedJob) -> Step:
    torch.manual_seed(0)
    torch.set_num_threads(job.case.threads)
    return attention_epoch_of(job) if job.model == "rgat" else homogeneous_epoch_of(job)


serve_steps({"epoch": epoch_of}, f"dgl {dgl.__version__}, torch {torch.__version__}", TypedJob.of)
