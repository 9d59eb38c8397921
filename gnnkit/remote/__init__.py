"""Rows by global id from any storage, and sampling at the nodes' owners."""

from gnnkit.remote.features import FeatureStore as FeatureStore
from gnnkit.remote.features import TableFeatures as TableFeatures
from gnnkit.remote.learned import LearnedRows as LearnedRows
from gnnkit.remote.lookup import Lookup as Lookup
from gnnkit.remote.lookup import Reach as Reach
