"""PyG's mini-batch loaders without pyg-lib and torch-sparse: change the import only."""

from gnnkit_pyg.cluster import ClusterData as ClusterData
from gnnkit_pyg.cluster import ClusterLoader as ClusterLoader
from gnnkit_pyg.lightning import LightningLinkData as LightningLinkData
from gnnkit_pyg.lightning import LightningNodeData as LightningNodeData
from gnnkit_pyg.loader import LinkNeighborLoader as LinkNeighborLoader
from gnnkit_pyg.loader import NeighborLoader as NeighborLoader
from gnnkit_pyg.subgraph_sampler import SubgraphSampler as SubgraphSampler
