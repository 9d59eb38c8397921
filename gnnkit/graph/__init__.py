"""The data structures shared by all packages: CSC, features, graphs and batches."""

from gnnkit.graph.csc import CSC as CSC
from gnnkit.graph.csc import Block as Block
from gnnkit.graph.csc import MiniBatch as MiniBatch
from gnnkit.graph.edge_columns import EdgeColumns as EdgeColumns
from gnnkit.graph.edge_order import RelationGroups as RelationGroups
from gnnkit.graph.features import Features as Features
from gnnkit.graph.features import PackedFeatures as PackedFeatures
from gnnkit.graph.features import SparseFeatures as SparseFeatures
from gnnkit.graph.features import feature_arrays as feature_arrays
from gnnkit.graph.features import kept_rows as kept_rows
from gnnkit.graph.features import read_features as read_features
from gnnkit.graph.graph import EdgeListFields as EdgeListFields
from gnnkit.graph.graph import Graph as Graph
from gnnkit.graph.labels import labelled as labelled
from gnnkit.graph.schema import FeatureTable as FeatureTable
from gnnkit.graph.schema import Relation as Relation
from gnnkit.graph.schema import Schema as Schema
from gnnkit.graph.split import SPLITS as SPLITS
from gnnkit.graph.split import Split as Split
from gnnkit.graph.split import TimeSplit as TimeSplit
from gnnkit.graph.split import random_split as random_split
from gnnkit.graph.split import read_shares as read_shares
from gnnkit.graph.split import read_split as read_split
from gnnkit.graph.types import Floats as Floats
from gnnkit.graph.types import Ids as Ids
from gnnkit.graph.types import Labels as Labels
