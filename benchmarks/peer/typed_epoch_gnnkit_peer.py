"""Epochs of gnnkit's relational models, as one rank computes them."""

from __future__ import annotations

import functools

from gnnkit.launch.lean import keep_freed_memory

keep_freed_memory()  # before torch, as ranks do

# ruff: noqa: E402
import numpy as np
import torch
from steps import Step, serve_steps
from torch import nn
from typed_graph import graph_of
from typed_job import HEAD_WIDTH, HEADS, NUM_LAYERS, WIDTH, TypedJob

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.partition import Grid, Partition
from gnnkit.partition.shard import cut


def model_of(job: TypedJob) -> nn.Module:
    sizes = (WIDTH, job.num_classes, len(job.graph.relations))
    heads = {"hidden": HEAD_WIDTH, "heads": HEADS, "num_layers": NUM_LAYERS, "dropout": 0.0}
    if job.model == "rgcn":
        return RGCN(*sizes, hidden=WIDTH, num_layers=NUM_LAYERS)
    if job.model == "rgat":
        return RGAT(*sizes, **heads, project=False, self_loop=False)
    return HGT(*sizes, len(job.graph.counts), **heads, norm="none")


def epoch_of(comm: Communicator, job: TypedJob) -> Step:
    torch.manual_seed(0)
    torch.set_num_threads(job.case.threads)
    graph = graph_of(job.case)
    shard = cut(graph, Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1)), 0)
    engine = Engine(shard, comm, torch.float32)
    model, rows = model_of(job), job.rows()
    return job.step(model, lambda: model(rows, ShardAdjacency.layers(engine, NUM_LAYERS, 0)))


def serve(comm: Communicator) -> None:
    serve_steps({"epoch": functools.partial(epoch_of, comm)}, f"gnnkit, torch {torch.__version__}", TypedJob.of)


Threads.run(serve, 1, timeout=3600.0)
