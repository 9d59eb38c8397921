"""Conformance checks for authors of plugins. The built-in plugins pass the same.

Each check raises `AssertionError` for the first broken promise of an interface. Ranks
are threads here, but for launchers.
"""

from gnnkit_testing.callback import check_callback as check_callback
from gnnkit_testing.comm import check_communicator as check_communicator
from gnnkit_testing.dataset import check_dataset as check_dataset
from gnnkit_testing.exchange import check_exchange as check_exchange
from gnnkit_testing.graphs import example_graphs as example_graphs
from gnnkit_testing.job import check_job as check_job
from gnnkit_testing.launcher import check_launcher as check_launcher
from gnnkit_testing.logger import check_logger as check_logger
from gnnkit_testing.model import check_model as check_model
from gnnkit_testing.model import check_program as check_program
from gnnkit_testing.order import check_order as check_order
from gnnkit_testing.partition import check_partitioner as check_partitioner
from gnnkit_testing.sampler import check_sampler as check_sampler
from gnnkit_testing.strategy import check_strategy as check_strategy
from gnnkit_testing.sync import check_sync as check_sync
from gnnkit_testing.task import check_task as check_task
from gnnkit_testing.witness import check_witness as check_witness
