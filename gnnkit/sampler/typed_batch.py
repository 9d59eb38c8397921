"""A batch of several node types, yielded by a loader with one type's seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit import _core
from gnnkit.graph import Block, Floats, Ids, Relation
from gnnkit.graph.types import offsets_of
from gnnkit.sampler import frameworks
from gnnkit.sampler.gather import gather_rows
from gnnkit.sampler.loaded_batch import LoadedBatch, NamedArrays, shapes
from gnnkit.utils.checks import Array

if TYPE_CHECKING:
    from gnnkit.sampler.typed_tables import TypedTables


@dataclass(frozen=True, slots=True, eq=False)
class RelationBlock:
    """The edges of one relation in one hop, in positions within the node types.

    Entry i of `row` and `col` is an edge from a node of the relation's source type to a
    node of its destination type, as in PyG's `edge_index_dict`. Edges are sorted by
    destination.
    """

    row: Ids  # [num_edges] position of each source in `src_nodes` of its type
    col: Ids  # [num_edges] position of each destination, ascending
    num_dst: int
    edges: Ids  # [num_edges] position of each edge in the hop's `Block`
    edge_ids: Ids | None  # [num_edges] ids in the sampled graph
    edge_positions: Ids | None  # [num_edges] positions among the edges of the relation
    weight: Floats | None  # [num_edges] keeps the estimate unbiased

    def first(self, num_edges: int, num_dst: int) -> RelationBlock:
        """Returns the edges among the first `num_edges` of the hop's `Block`."""
        count = int(np.searchsorted(self.edges, num_edges))
        columns = (self.edges, self.edge_ids, self.edge_positions, self.weight)
        first = (None if column is None else column[:count] for column in columns)
        return RelationBlock(self.row[:count], self.col[:count], num_dst, *first)  # type: ignore[arg-type]

    @property
    def indptr(self) -> Ids:  # [num_dst + 1]
        counts = np.bincount(self.col, minlength=self.num_dst)
        return offsets_of(counts)

    def arrays(self) -> dict[str, Array]:
        """Returns the edges as a CSC, without the columns that are absent."""
        columns = {"edge_ids": self.edge_positions, "weight": self.weight}
        present = {name: column for name, column in columns.items() if column is not None}
        return {"indptr": self.indptr, "indices": self.row, **present}


@dataclass(frozen=True, slots=True, eq=False)
class TypedBlock:
    """One hop of a heterogeneous batch, divided by type.

    A layer reads rows of every node type and computes the first `num_dst` of each,
    because the destinations of a type are its first sources. Types and relations
    without nodes or edges in the hop are present, with empty arrays.
    """

    src_nodes: Mapping[str, Ids]  # by node type: [num_src] ids within the type
    num_dst: Mapping[str, int]  # by node type
    relations: Mapping[Relation, RelationBlock]

    def first(self, block: Block, nodes: _NodesByType) -> TypedBlock:
        """Divides an inner hop, whose edges are the first of this one."""
        num_src, num_dst = (nodes.counts(count) for count in (len(block.src_nodes), block.num_dst))
        dst_of = dict(zip(self.num_dst, num_dst, strict=True))
        relations = {
            relation: edges.first(len(block.indices), dst_of[relation.destination])
            for relation, edges in self.relations.items()
        }
        src_nodes = {name: ids[:count] for (name, ids), count in zip(self.src_nodes.items(), num_src, strict=True)}
        return TypedBlock(src_nodes, dst_of, relations)


@dataclass(frozen=True, eq=False)
class _NodesByType:
    """The nodes of a batch, in order of discovery, divided by type."""

    at: tuple[Ids, ...]  # by type: positions in the batch
    ids: tuple[Ids, ...]  # by type: ids within the type
    local: Ids  # [num_nodes] position of each node among those of its type

    @classmethod
    def of(cls, nodes: Ids, tables: TypedTables) -> _NodesByType:
        at, ids, local, ends = _core.nodes_by_type(nodes, [table.count for table in tables.nodes])
        return cls(_parts(at, ends), _parts(ids, ends), local)

    def counts(self, num_nodes: int) -> list[int]:
        """Counts each type's nodes among the first `num_nodes` of the batch."""
        return [int(np.searchsorted(positions, num_nodes)) for positions in self.at]


@dataclass(frozen=True, eq=False)
class TypedBatch(LoadedBatch):
    """A `LoadedBatch` of a heterogeneous graph: each node type has its own rows.

    Nodes of a type are in order of discovery, the seeds first.

    A `Loader` yields it if the seeds have a type. Ids count from 0 within each node
    type, as in PyG's `HeteroData`.
    """

    x: dict[str, Array]  # type: ignore[assignment]  # [num_input_nodes, ...] by node type, those with features
    tables: TypedTables  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Returns the arrays' shapes by type, and each relation's edges in each hop."""
        seed_type, lines = self.tables.seed_type.name, []
        for name, ids in self.input_nodes.items():
            arrays = {"seeds": self.seeds} if name == seed_type else {}
            arrays |= {"y": self.y} if name == seed_type and self.y is not None else {}
            arrays |= {"input_nodes": ids} | ({"x": self.x[name]} if name in self.x else {})
            lines.append(f"  {name}={{ {shapes(arrays)} }},")
        for relation in self.blocks[0].relations if self.blocks else ():
            edges = [len(block.relations[relation].row) for block in self.blocks]
            lines.append(f"  ({', '.join(relation)})={{ edges={edges} }},")
        return "\n".join(["TypedBatch(", *lines, ")"])

    @property
    def seeds(self) -> Ids:  # [num_seeds] ids within their type
        return self.minibatch.seeds.astype(np.int64) - self.tables.seed_type.first

    @cached_property
    def blocks(self) -> tuple[TypedBlock, ...]:  # type: ignore[override]
        """One block per hop, outermost first."""
        outer, *inner = self.minibatch.blocks
        first = self.outer_block
        return (
            first,
            *(
                first.first(block, self._nodes) if frameworks.begins_with(outer, block) else self._split_block(block)
                for block in inner
            ),
        )

    @cached_property
    def outer_block(self) -> TypedBlock:
        """The outermost block, which contains the edges of all later ones.

        Reading only this block avoids dividing the inner blocks, for models that
        compute all rows in each layer, as PyG's do.
        """
        return self._split_block(self.minibatch.blocks[0])

    @property
    def input_nodes(self) -> dict[str, Ids]:  # type: ignore[override]
        """The nodes whose features the batch reads, by node type: [num_input_nodes] ids
        within the type, the seeds first.
        """
        return {table.name: ids for table, ids in zip(self.tables.nodes, self._nodes.ids, strict=True)}

    @property
    def y(self) -> Array | None:  # [num_seeds, ...]
        labels = self.tables.seed_type.y
        return None if labels is None else labels[self.seeds]

    def arrays(self) -> NamedArrays:
        """Returns all arrays that are not None, by name, and by node type or relation.

        `blocks` is a list, outermost hop first. Each block has `src_nodes` by node
        type, and `edges` by relation name (`author-writes-paper`), with `indptr`,
        `indices` and, if present, `edge_ids` and `weight`.
        """
        blocks = [
            {
                "src_nodes": dict(block.src_nodes),
                "edges": {relation.edge_type: edges.arrays() for relation, edges in block.relations.items()},
            }
            for block in self.blocks
        ]
        arrays = {"x": self.x, "y": self.y, "seeds": self.seeds, "input_nodes": self.input_nodes}
        return {**{name: value for name, value in arrays.items() if value is not None}, "blocks": blocks}

    def node_counts(self, hop_ends: list[int]) -> list[list[int]]:
        """Counts the nodes that each hop adds, by type and hop.

        Args:
            hop_ends: Number of nodes of the batch after each hop, the seeds first.
        """
        counts = [self._nodes.counts(end) for end in [0, *hop_ends]]
        return [list(by_hop) for by_hop in np.diff(counts, axis=0).T.tolist()]

    def _split_block(self, block: Block) -> TypedBlock:
        """Divides a block by relation."""
        tables, arrays, nodes = self.tables, self.tables.arrays, self._nodes
        num_src, num_dst = nodes.counts(len(block.src_nodes)), nodes.counts(block.num_dst)
        names = [table.name for table in tables.nodes]
        dst_of = dict(zip(names, num_dst, strict=True))
        relation = np.zeros(len(block.indices), np.int16) if block.relation is None else block.relation
        row, col, order, ids, ends = _core.edges_by_relation(
            block.indptr, block.indices, relation, block.edge_ids, nodes.local, len(arrays.edges)
        )
        columns: list[Array | None] = [row, col, order, ids]
        columns.append(None if ids is None else gather_rows(arrays.edge_positions, ids).astype(np.int64, copy=False))
        columns.append(None if block.weight is None else block.weight[order])
        parts = [[None] * len(ends) if values is None else _parts(values, ends) for values in columns]
        relations = {
            table.relation: RelationBlock(row, col, dst_of[table.relation.destination], *extra)
            for table, row, col, *extra in zip(arrays.edges, *parts, strict=True)
        }
        src_nodes = {name: ids[:count] for name, ids, count in zip(names, nodes.ids, num_src, strict=True)}
        return TypedBlock(src_nodes, dst_of, relations)

    def _as_pyg(self) -> Any:
        return frameworks.typed_to_pyg(self)

    def _as_dgl(self) -> tuple[Any, Any, list[Any]]:
        return frameworks.typed_to_dgl(self)

    @cached_property
    def _nodes(self) -> _NodesByType:
        return _NodesByType.of(self.minibatch.input_nodes, self.tables)


def _parts(values: Array, ends: Sequence[int]) -> tuple[Array, ...]:
    """Divides an array at the ends of its parts."""
    return tuple(values[start:end] for start, end in pairwise([0, *ends]))
