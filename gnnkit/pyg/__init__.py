"""PyG's mini-batch loaders without pyg-lib and torch-sparse: change the import only."""

from gnnkit.pyg.cluster import ClusterData as ClusterData
from gnnkit.pyg.cluster import ClusterLoader as ClusterLoader
from gnnkit.pyg.lightning import LightningLinkData as LightningLinkData
from gnnkit.pyg.lightning import LightningNodeData as LightningNodeData
from gnnkit.pyg.loader import LinkNeighborLoader as LinkNeighborLoader
from gnnkit.pyg.loader import NeighborLoader as NeighborLoader
from gnnkit.pyg.subgraph_sampler import SubgraphSampler as SubgraphSampler
