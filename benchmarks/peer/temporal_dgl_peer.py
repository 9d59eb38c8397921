"""GraphBolt's sampler of edges with times, as its users call it."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve

TYPE = "node"


def bolt_graph(case: Case) -> Any:
    def make() -> Any:
        indptr, relation = case.load("indptr"), case.load("relation")
        num_relations = int(relation.max()) + 1
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        order = np.lexsort((relation, rows))  # edges of a node in order of relation
        indices, time, relation = (torch.from_numpy(case.load(name)[order]) for name in ("indices", "time", "relation"))
        types = {
            "node_type_offset": torch.tensor([0, len(indptr) - 1]),
            "node_type_to_id": {TYPE: 0},
            "type_per_edge": relation,
            "edge_type_to_id": {f"{TYPE}:{number}:{TYPE}": number for number in range(num_relations)},
        }
        return gb.fused_csc_sampling_graph(
            torch.from_numpy(indptr),
            indices.long(),
            edge_attributes={"time": time},
            **(types if num_relations > 1 else {}),
        )

    return case.cached("bolt", make)


def temporal(latest: bool) -> Maker:
    """Draws at one time after all edges, or at each seed's own time."""

    def maker(case: Case) -> Batches:
        graph, times = bolt_graph(case), torch.from_numpy(case.load("times"))
        if latest:
            times = torch.full((BATCH_SIZE,), int(case.load("time").max()) + 1)
        typed = graph.edge_type_to_id
        fanouts = [torch.full((len(typed) if typed else 1,), fanout) for fanout in case.fanouts[::-1]]
        sampler = gb.TemporalNeighborSampler(
            gb.ItemSampler(gb.ItemSet(BATCH_SIZE), BATCH_SIZE), graph, fanouts, edge_timestamp_attr_name="time"
        )

        def sample(batch: int) -> Size:
            seeds = torch.from_numpy(case.seeds(batch))
            rows, hops = sampler.sample_subgraphs(*(({TYPE: seeds}, {TYPE: times}) if typed else (seeds, times)))
            csc = [hop.sampled_csc for hop in hops]
            num_edges = sum(len(one.indices) for hop in csc for one in (hop.values() if typed else [hop]))
            return num_edges, len(rows[TYPE] if typed else rows)

        return one_by_one(sample)

    return maker


serve(
    {"one time": temporal(latest=True), "own times": temporal(latest=False)},
    f"dgl {dgl.__version__}, torch {torch.__version__}",
)
