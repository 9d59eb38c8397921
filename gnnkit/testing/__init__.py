"""Conformance checks for authors of plugins; the built-in plugins are held to the same.

Each raises `AssertionError` for the first promise of its interface that is broken. Ranks are threads here.
"""

from gnnkit.testing.comm import check_communicator as check_communicator
from gnnkit.testing.dataset import check_dataset as check_dataset
from gnnkit.testing.graphs import example_graphs as example_graphs
from gnnkit.testing.model import check_model as check_model
from gnnkit.testing.model import check_program as check_program
from gnnkit.testing.partition import check_partitioner as check_partitioner
from gnnkit.testing.sampler import check_sampler as check_sampler
from gnnkit.testing.strategy import check_strategy as check_strategy
from gnnkit.testing.sync import check_sync as check_sync
