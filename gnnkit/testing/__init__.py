"""Conformance checks for authors of plugins. The built-in plugins pass the same.

Each check raises `AssertionError` for the first broken promise of an interface. Ranks
are threads here, but for launchers.
"""

from gnnkit.testing.callback import check_callback as check_callback
from gnnkit.testing.comm import check_communicator as check_communicator
from gnnkit.testing.dataset import check_dataset as check_dataset
from gnnkit.testing.exchange import check_exchange as check_exchange
from gnnkit.testing.graphs import example_graphs as example_graphs
from gnnkit.testing.job import check_job as check_job
from gnnkit.testing.launcher import check_launcher as check_launcher
from gnnkit.testing.logger import check_logger as check_logger
from gnnkit.testing.model import check_model as check_model
from gnnkit.testing.model import check_program as check_program
from gnnkit.testing.order import check_order as check_order
from gnnkit.testing.partition import check_partitioner as check_partitioner
from gnnkit.testing.sampler import check_sampler as check_sampler
from gnnkit.testing.strategy import check_strategy as check_strategy
from gnnkit.testing.sync import check_sync as check_sync
from gnnkit.testing.task import check_task as check_task
from gnnkit.testing.witness import check_witness as check_witness
