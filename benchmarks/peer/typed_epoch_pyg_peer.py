"""Epochs of PyG's relational layers, with ids of 64 bits as they require."""

from __future__ import annotations

import torch
import torch_geometric
from steps import Step, serve_steps
from torch import Tensor, nn
from torch_geometric.nn import HGTConv, RGATConv, RGCNConv
from typed_job import HEAD_WIDTH, HEADS, NUM_LAYERS, WIDTH, TypedJob


def relational_epoch_of(job: TypedJob) -> Step:
    """Layers over all nodes, with the relation of each edge."""
    (ends, relation), rows, num_relations = job.homogeneous(), job.rows(), 2 * len(job.graph.relations)
    if job.model == "rgcn":
        convs = [RGCNConv(WIDTH, k, num_relations) for k in (WIDTH, job.num_classes)]
    else:
        first = RGATConv(WIDTH, HEAD_WIDTH, num_relations, heads=HEADS)
        convs = [first, RGATConv(WIDTH, job.num_classes, num_relations, heads=1)]
    layers = nn.ModuleList(convs)

    def forward() -> Tensor:
        return layers[1](layers[0](rows, ends, relation).relu(), ends, relation)

    return job.step(layers, forward)


def hgt_epoch_of(job: TypedJob) -> Step:
    """Layers by node type, between a projection and a linear layer."""
    edges, rows, types = job.heterogeneous(), job.by_type(job.rows()), list(job.graph.counts)
    project = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in types})
    convs = nn.ModuleList(HGTConv(WIDTH, WIDTH, (types, list(edges)), heads=HEADS) for _ in range(NUM_LAYERS))
    out = nn.Linear(WIDTH, job.num_classes)

    def forward() -> Tensor:
        x = {name: project[name](x).relu() for name, x in rows.items()}
        for conv in convs:
            x = conv(x, edges)
        return out(x[types[0]])

    return job.step(nn.ModuleList([project, *convs, out]), forward)


def epoch_of(job: TypedJob) -> Step:
    torch.manual_seed(0)
    torch.set_num_threads(job.case.threads)
    return hgt_epoch_of(job) if job.model == "hgt" else relational_epoch_of(job)


VERSIONS = f"torch_geometric {torch_geometric.__version__}, torch {torch.__version__}"
serve_steps({"epoch": epoch_of}, VERSIONS, TypedJob.of)
