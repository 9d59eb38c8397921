"""Rows by global id from any storage, and sampling at the nodes' owners."""

from gnnkit.engine.remote.features import FeatureStore as FeatureStore
from gnnkit.engine.remote.features import Lookup as Lookup
from gnnkit.engine.remote.features import Reach as Reach
from gnnkit.engine.remote.features import TableFeatures as TableFeatures
from gnnkit.engine.remote.learned import LearnedRows as LearnedRows
