"""DGL's classic sampler and GraphBolt on a heterogeneous graph, as users call them."""

from __future__ import annotations

import itertools
from typing import Any

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from serve import Batches, Case, Size, one_by_one, serve
from typed_case import TypedArrays


def classic_graph(case: Case) -> Any:
    def make() -> Any:
        arrays = TypedArrays.of(case)
        data = {
            relation: ("csc", (*map(torch.from_numpy, arrays.csc(number)), torch.empty(0, dtype=torch.int64)))
            for number, relation in enumerate(arrays.relations)
        }
        return dgl.heterograph(data, arrays.counts)

    return case.cached("classic", make)


def bolt_graph(case: Case) -> Any:
    def make() -> Any:
        arrays = TypedArrays.of(case)
        edges = list(arrays.edges())
        relation = np.repeat(np.arange(len(edges)), [len(src) for src, _ in edges])
        src, dst = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        del edges
        order = np.argsort(dst, kind="stable")  # edges of a node stay in order of relation
        degrees = np.bincount(dst, minlength=sum(arrays.counts.values()))
        return gb.fused_csc_sampling_graph(
            torch.from_numpy(np.append(0, np.cumsum(degrees))),
            torch.from_numpy(src[order]),
            node_type_offset=torch.tensor([0, *itertools.accumulate(arrays.counts.values())]),
            type_per_edge=torch.from_numpy(relation[order].astype(np.uint8)),
            node_type_to_id={name: number for number, name in enumerate(arrays.counts)},
            edge_type_to_id={":".join(relation): number for number, relation in enumerate(arrays.relations)},
        )

    return case.cached("bolt", make)


def classic(case: Case) -> Batches:
    graph, seed_type = classic_graph(case), TypedArrays.of(case).seed_type
    sampler = dgl.dataloading.NeighborSampler(list(case.fanouts[::-1]))

    def sample(batch: int) -> Size:
        seeds = {seed_type: torch.from_numpy(case.seeds(batch))}
        input_nodes, _, blocks = sampler.sample_blocks(graph, seeds)
        return sum(block.num_edges() for block in blocks), sum(map(len, input_nodes.values()))

    return one_by_one(sample)


def bolt(case: Case) -> Batches:
    graph, arrays = bolt_graph(case), TypedArrays.of(case)

    def sample(batch: int) -> Size:
        nodes, num_edges = {arrays.seed_type: torch.from_numpy(case.seeds(batch))}, 0
        for fanout in case.fanouts:
            hop = graph.sample_neighbors(nodes, torch.full((len(arrays.relations),), fanout))
            nodes, blocks = gb.unique_and_compact_csc_formats(hop.sampled_csc, nodes)
            num_edges += sum(len(block.indices) for block in blocks.values())
        return num_edges, sum(map(len, nodes.values()))

    return one_by_one(sample)


serve({"sample": classic, "sample, GraphBolt": bolt}, f"dgl {dgl.__version__}, torch {torch.__version__}")
