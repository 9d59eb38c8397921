"""One engine for every layout: slice, gather, aggregate, reduce, unslice.

Models read the graph through an `Adjacency`, strategies make these from shards or from
sampled blocks.
"""

from gnnkit.engine.adjacency import Adjacency as Adjacency
from gnnkit.engine.adjacency import Reduce as Reduce
from gnnkit.engine.adjacency import ShardAdjacency as ShardAdjacency
from gnnkit.engine.block import BlockAdjacency as BlockAdjacency
from gnnkit.engine.block import BlockLayers as BlockLayers
from gnnkit.engine.codec import Codec as Codec
from gnnkit.engine.dropout import derive as derive
from gnnkit.engine.engine import Engine as Engine
from gnnkit.engine.engine import Message as Message
from gnnkit.engine.features import FeatureStore as FeatureStore
from gnnkit.engine.features import TableFeatures as TableFeatures
from gnnkit.engine.learned import LearnedRows as LearnedRows
from gnnkit.engine.lookup import Lookup as Lookup
from gnnkit.engine.lookup import Reach as Reach
from gnnkit.engine.pool import Pool as Pool
from gnnkit.engine.rank_graph import RankGraph as RankGraph
from gnnkit.engine.relations import Combine as Combine
from gnnkit.engine.relations import Pairs as Pairs
from gnnkit.engine.schedule import ForwardPass as ForwardPass
from gnnkit.engine.schedule import Operation as Operation
from gnnkit.engine.schedule import Schedule as Schedule
from gnnkit.engine.sparse_rows import Rows as Rows
from gnnkit.engine.sparse_rows import SparseRows as SparseRows
from gnnkit.engine.subgraph import Subgraph as Subgraph
from gnnkit.engine.tally import Tally as Tally
from gnnkit.engine.wire import Transfer as Transfer
