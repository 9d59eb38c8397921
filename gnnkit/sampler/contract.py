"""A sampler's draws, and checks of hops and batches made in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch
from gnnkit.utils import checks


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """The draws of some nodes, in global ids.

    `Sampler.draw` returns it, and `Sampler.sample` renumbers it into a block. Row i
    contains the draws of the i-th node passed to `draw`, and may be empty. Edges may
    repeat if the sampler draws with replacement. Strategies need `edge_ids` to look up
    edge features.

    `weight` is 1 / the expected number of draws of the edge, for unbiased sums over all
    in-edges. It excludes the graph's edge weight, by which strategies multiply. Without
    it, they use in-degree / number of draws, which is right for equally likely edges.
    Where draws are not edges, weights are for the mean instead.

    Examples:
        >>> import numpy
        >>> from gnnkit.sampler import Hop
        >>> hop = Hop(indptr=numpy.array([0, 2, 2]), sources=numpy.array([4, 9]))
        >>> numpy.diff(hop.indptr).tolist()  # draws of each node
        [2, 0]
    """

    indptr: Ids  # [num_nodes + 1] int64, node i has draws indptr[i]:indptr[i + 1]
    sources: Ids  # [num_draws] global ids
    edge_ids: Ids | None = None  # [num_draws] positions in the CSC. None: draws are not edges of the CSC
    weight: Floats | None = None  # [num_draws] importance weights, at least 0
    relation: Ids | None = None  # [num_draws] relation of each draw. None: not drawn by relation


def check_hop(location: str, hop: object, graph: CSC, nodes: Ids) -> Hop:
    """Returns a hop whose arrays match each other, the nodes and the graph.

    Raises `UserError` with class, field and position of a mismatch.

    Args:
        location: Class and method that made the hop, for the message.
        hop: The method's return value.
        graph: The graph.
        nodes: [num_nodes] global ids of the nodes that drew.
    """
    if not isinstance(hop, Hop):
        raise UserError(f"{location} must return a Hop, got {type(hop).__name__}")
    sources = checks.int64s(f"{location}: sources", hop.sources)
    checks.check_range(f"{location}: sources", sources, 0, graph.num_sources)
    indptr = _check_indptr(location, hop.indptr, len(nodes), len(sources))
    edge_ids = None
    if hop.edge_ids is not None:
        edge_ids = checks.int64s(f"{location}: edge_ids", hop.edge_ids, len(sources))
        checks.check_range(f"{location}: edge_ids", edge_ids, 0, graph.num_edges)
        _check_ends(location, graph, edge_ids, sources, np.repeat(nodes, np.diff(indptr)))
    weight = None if hop.weight is None else checks.floats(f"{location}: weight", hop.weight, (len(sources),))
    if weight is not None and len(negative := np.flatnonzero(weight < 0)):
        raise UserError(f"{location}: weight[{negative[0]}] = {weight[negative[0]]:g} is negative")
    return Hop(indptr, sources, edge_ids, weight)


def check_batch(location: str, batch: object, graph: CSC, seeds: Ids, num_hops: int) -> MiniBatch:
    """Returns a batch whose blocks match each other, the seeds and the graph.

    Raises `UserError` with class, block, field and position of a mismatch.

    Args:
        location: Class and method that made the batch, for the message.
        batch: The method's return value.
        graph: The graph, with as many sources as destinations.
        seeds: [num_seeds] requested global ids.
        num_hops: Expected number of blocks.
    """
    if not isinstance(batch, MiniBatch):
        raise UserError(f"{location} must return a MiniBatch, got {type(batch).__name__}")
    if not isinstance(batch.blocks, Sequence):
        raise UserError(f"{location}: blocks must be a sequence of Block, got {type(batch.blocks).__name__}")
    if len(batch.blocks) != num_hops:
        raise UserError(f"{location}: blocks has {len(batch.blocks)} entries, expected num_hops={num_hops}")
    if not np.array_equal(batch.seeds, seeds):
        raise UserError(f"{location}: seeds must come back in their order")
    for i, block in enumerate(batch.blocks):
        _check_block(f"{location}: blocks[{i}]", block, graph)
    for i, block in enumerate(batch.blocks):
        read = seeds if i + 1 == num_hops else batch.blocks[i + 1].src_nodes
        if not np.array_equal(block.src_nodes[: block.num_dst], read):
            raise UserError(f"{location}: blocks[{i}] must compute the nodes that the next block reads, in their order")
    return batch


def _check_block(location: str, block: object, graph: CSC) -> None:
    if not isinstance(block, Block):
        raise UserError(f"{location} must be a Block, got {type(block).__name__}")
    nodes = checks.ids(f"{location}.src_nodes", block.src_nodes)
    if nodes is not block.src_nodes:
        raise UserError(f"{location}.src_nodes must be a contiguous array of int32 or int64")
    checks.check_range(f"{location}.src_nodes", nodes, 0, graph.num_nodes)
    if len(np.unique(nodes)) != len(nodes):
        raise UserError(f"{location}.src_nodes repeat")
    num_dst = len(checks.int64s(f"{location}: indptr", block.indptr)) - 1
    if not 0 <= num_dst <= len(nodes):
        raise UserError(f"{location}: indptr has {num_dst} rows for {len(nodes)} src_nodes; expected 0 to {len(nodes)}")
    indices = checks.int64s(f"{location}.indices", block.indices)
    checks.check_range(f"{location}.indices", indices, 0, len(nodes))
    check_hop(location, Hop(block.indptr, nodes[indices], block.edge_ids, block.weight), graph, nodes[:num_dst])


def _check_indptr(location: str, values: Ids, num_rows: int, num_draws: int) -> Ids:
    indptr = checks.int64s(f"{location}: indptr", values, num_rows + 1)
    if (indptr[0], indptr[-1]) != (0, num_draws):
        raise UserError(
            f"{location}: indptr runs from {indptr[0]} to {indptr[-1]}, expected from 0 to {num_draws} draws"
        )
    falls = np.flatnonzero(np.diff(indptr) < 0)
    if len(falls):
        row = falls[0]
        raise UserError(f"{location}: indptr[{row + 1}] = {indptr[row + 1]} is below indptr[{row}] = {indptr[row]}")
    return indptr


def _check_ends(location: str, graph: CSC, edge_ids: Ids, sources: Ids, targets: Ids) -> None:
    """Checks that edges run from `sources` to `targets`."""
    mismatches = np.flatnonzero(graph.indices[edge_ids] != sources)
    if len(mismatches):
        i = mismatches[0]
        edge = edge_ids[i]
        raise UserError(
            f"{location}: edge_ids and sources do not match: edge_ids[{i}] = {edge} has source {graph.indices[edge]}, "
            f"expected {sources[i]}"
        )
    mismatches = np.flatnonzero((edge_ids < graph.indptr[targets]) | (edge_ids >= graph.indptr[targets + 1]))
    if len(mismatches):
        i = mismatches[0]
        raise UserError(
            f"{location}: edge_ids and destinations do not match: edge_ids[{i}] = {edge_ids[i]} "
            f"is not an in-edge of node {targets[i]}"
        )
