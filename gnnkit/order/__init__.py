"""Shard -> the same shard with the rows of its nodes in another order in memory."""

from gnnkit.order.base import NodeOrder as NodeOrder
from gnnkit.order.base import renumbered as renumbered
