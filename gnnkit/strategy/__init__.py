"""Execution strategies, which provide each rank's batches.

A strategy reads a `Worker` and yields the same number of `Batch`es on every rank.
"""

from gnnkit.strategy.abilities import Ability as Ability
from gnnkit.strategy.abilities import ByTime as ByTime
from gnnkit.strategy.abilities import EdgeTask as EdgeTask
from gnnkit.strategy.abilities import GatheredRows as GatheredRows
from gnnkit.strategy.abilities import JoinedLayers as JoinedLayers
from gnnkit.strategy.abilities import LastingRows as LastingRows
from gnnkit.strategy.abilities import LearnedInputs as LearnedInputs
from gnnkit.strategy.abilities import MovableNodes as MovableNodes
from gnnkit.strategy.abilities import MovableSeeds as MovableSeeds
from gnnkit.strategy.abilities import MovableWork as MovableWork
from gnnkit.strategy.abilities import Reads as Reads
from gnnkit.strategy.abilities import Relations as Relations
from gnnkit.strategy.abilities import RowsOnDisk as RowsOnDisk
from gnnkit.strategy.abilities import SeedDealer as SeedDealer
from gnnkit.strategy.abilities import SparseRows as SparseRows
from gnnkit.strategy.abilities import Steps as Steps
from gnnkit.strategy.base import Batch as Batch
from gnnkit.strategy.base import ExecutionStrategy as ExecutionStrategy
from gnnkit.strategy.base import Measured as Measured
from gnnkit.strategy.base import Update as Update
from gnnkit.strategy.base import Worker as Worker
from gnnkit.strategy.base import weighing_sums as weighing_sums
