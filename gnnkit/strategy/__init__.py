"""Execution strategies: which batches a rank gets.

A strategy reads a `Worker` and hands out the same number of `Batch`es on every rank.
"""

from gnnkit.strategy.base import Batch as Batch
from gnnkit.strategy.base import ExecutionStrategy as ExecutionStrategy
from gnnkit.strategy.base import Measured as Measured
from gnnkit.strategy.base import Update as Update
from gnnkit.strategy.base import Worker as Worker
from gnnkit.strategy.base import weighing_sums as weighing_sums
