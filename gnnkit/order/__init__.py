"""Orders of a shard's rows in memory."""

from gnnkit.order.base import NodeOrder as NodeOrder
from gnnkit.order.base import renumbered as renumbered
