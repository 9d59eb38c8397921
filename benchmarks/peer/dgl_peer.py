"""DGL's classic sampler and GraphBolt, as a user calls each.

Graphs have int64 ids, because the classic sampler's answers are wrong with int32 and
two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve


def tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(case.load("indptr", np.int64)), torch.from_numpy(case.load("indices", np.int64))


def classic_graph(case: Case) -> Any:
    def make() -> Any:
        indptr, indices = tensors(case)
        return dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))

    return case.cached("classic", make)


def bolt_graph(case: Case) -> Any:
    return case.cached("bolt", lambda: gb.fused_csc_sampling_graph(*tensors(case)))


def blocks_size(input_nodes: Any, blocks: Any) -> Size:
    return sum(block.num_edges() for block in blocks), len(input_nodes)


def classic(case: Case) -> Batches:
    graph, sampler = classic_graph(case), dgl.dataloading.NeighborSampler(list(case.fanouts[::-1]))

    def sample(batch: int) -> Size:
        input_nodes, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(case.seeds(batch)))
        return blocks_size(input_nodes, blocks)

    return one_by_one(sample)


def bolt(method: str) -> Maker:
    def maker(case: Case) -> Batches:
        draw: Callable[..., Any] = getattr(bolt_graph(case), method)

        def sample(batch: int) -> Size:
            nodes, num_edges = torch.from_numpy(case.seeds(batch)), 0
            for fanout in case.fanouts:
                hop = draw(nodes, torch.tensor([fanout]))
                nodes, block = gb.unique_and_compact_csc_formats(hop.sampled_csc, nodes)
                num_edges += len(block.indices)
            return num_edges, len(nodes)

        return one_by_one(sample)

    return maker


def load(case: Case) -> Batches:
    graph, x = classic_graph(case), torch.from_numpy(case.load("features"))
    sampler = dgl.dataloading.NeighborSampler(list(case.fanouts[::-1]))

    def batches(first: int) -> Iterator[Size]:
        seeds = torch.from_numpy(case.all_seeds(first))
        loader = dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=BATCH_SIZE, shuffle=False)
        for input_nodes, _, blocks in loader:
            assert len(x[input_nodes]) == len(input_nodes)
            yield blocks_size(input_nodes, blocks)

    return batches


def load_bolt(case: Case) -> Batches:
    graph = bolt_graph(case)
    feature_tables = {("node", None, "x"): gb.TorchBasedFeature(torch.from_numpy(case.load("features")))}

    def batches(first: int) -> Iterator[Size]:
        items = gb.ItemSet(torch.from_numpy(case.all_seeds(first)), names="seed_nodes")
        pipe = gb.ItemSampler(items, batch_size=BATCH_SIZE).sample_neighbor(graph, list(case.fanouts[::-1]))
        pipe = pipe.fetch_feature(gb.BasicFeatureStore(feature_tables), node_feature_keys=["x"])
        for batch in gb.DataLoader(pipe):
            assert len(batch.node_features["x"]) == len(batch.input_nodes)
            yield sum(len(block.sampled_csc.indices) for block in batch.sampled_subgraphs), len(batch.input_nodes)

    return batches


serve(
    {
        "sample": classic,
        "sample, GraphBolt": bolt("sample_neighbors"),
        "sample labor, GraphBolt": bolt("sample_layer_neighbors"),
        "load": load,
        "load, GraphBolt": load_bolt,
    },
    f"dgl {dgl.__version__}, torch {torch.__version__}",
)
