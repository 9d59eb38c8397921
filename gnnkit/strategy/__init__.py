"""Execution strategies: which batches a rank gets."""

from gnnkit.strategy.base import Batch as Batch
from gnnkit.strategy.base import ExecutionStrategy as ExecutionStrategy
from gnnkit.strategy.base import Worker as Worker
from gnnkit.strategy.base import weighing_sums as weighing_sums
