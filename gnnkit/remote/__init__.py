"""Rows by global id, wherever they are kept, and draws at the owners of nodes."""

from gnnkit.remote.features import FeatureStore as FeatureStore
from gnnkit.remote.features import TableFeatures as TableFeatures
from gnnkit.remote.learned import LearnedRows as LearnedRows
from gnnkit.remote.lookup import Lookup as Lookup
from gnnkit.remote.lookup import Reach as Reach
