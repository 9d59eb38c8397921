"""Orders of a shard's rows in memory."""

from gnnkit.partition.order.base import NodeOrder as NodeOrder
from gnnkit.partition.order.base import renumbered as renumbered
