"""The engine for every layout: slice, gather, aggregate, reduce, unslice.

Models read the graph through an `Adjacency`, which strategies create from shards or
sampled blocks. This package also exports the names from lower-level packages that
plugin authors need.
"""

from gnnkit.engine.adjacency import Adjacency as Adjacency
from gnnkit.engine.adjacency import Message as Message
from gnnkit.engine.adjacency import Reduce as Reduce
from gnnkit.engine.block import BlockLayers as BlockLayers
from gnnkit.engine.block_adjacency import BlockAdjacency as BlockAdjacency
from gnnkit.engine.block_adjacency import as_one_graph as as_one_graph
from gnnkit.engine.engine import Engine as Engine
from gnnkit.engine.engine import ShardAdjacency as ShardAdjacency
from gnnkit.engine.pool import Pool as Pool
from gnnkit.engine.rank_graph import RankGraph as RankGraph
from gnnkit.engine.relations import Combine as Combine
from gnnkit.engine.relations import Pairs as Pairs
from gnnkit.engine.typed_attention import RelationAttention as RelationAttention
from gnnkit.engine.typed_edges import AddedRelations as AddedRelations
from gnnkit.engine.typed_edges import RowTypes as RowTypes
from gnnkit.engine.typed_edges import TypedEdges as TypedEdges
from gnnkit.exchange.base import ForwardPass as ForwardPass
from gnnkit.exchange.base import Operation as Operation
from gnnkit.exchange.base import Schedule as Schedule
from gnnkit.exchange.tally import Tally as Tally
from gnnkit.exchange.wire import Codec as Codec
from gnnkit.exchange.wire import Transfer as Transfer
from gnnkit.kernels.dropout import derive as derive
from gnnkit.kernels.product_rows import ProductRows as ProductRows
from gnnkit.kernels.product_rows import Rows as Rows
from gnnkit.kernels.product_rows import SparseRows as SparseRows
