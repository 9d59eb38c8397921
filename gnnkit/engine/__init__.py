"""One engine for every layout: slice, gather, aggregate, reduce, unslice; forward and backward."""

from gnnkit.engine.adjacency import Adjacency as Adjacency
from gnnkit.engine.adjacency import ShardAdjacency as ShardAdjacency
from gnnkit.engine.block import BlockAdjacency as BlockAdjacency
from gnnkit.engine.block import BlockLayers as BlockLayers
from gnnkit.engine.engine import Engine as Engine
from gnnkit.engine.features import FeatureStore as FeatureStore
from gnnkit.engine.features import TableFeatures as TableFeatures
from gnnkit.engine.halo import ForwardPass as ForwardPass
from gnnkit.engine.tally import Tally as Tally
