"""Partitions: node assignment x rank grid -> Partition -> Shard.

A partition defines each node's owner and each edge's holder. One function cuts any
rank's shard, and another measures the partition.
"""

from gnnkit.partition.base import Balance as Balance
from gnnkit.partition.base import NodePartitioner as NodePartitioner
from gnnkit.partition.base import Partition as Partition
from gnnkit.partition.base import Partitioner as Partitioner
from gnnkit.partition.base import node_weights as node_weights
from gnnkit.partition.base import undirected as undirected
from gnnkit.partition.border import cover as cover
from gnnkit.partition.border import fewest_words as fewest_words
from gnnkit.partition.border import improve_border as improve_border
from gnnkit.partition.border import in_columns as in_columns
from gnnkit.partition.border import min_words as min_words
from gnnkit.partition.grid import Grid as Grid
from gnnkit.partition.grid import make_grid as make_grid
from gnnkit.partition.quality import Quality as Quality
from gnnkit.partition.quality import measure as measure
from gnnkit.partition.shard import Shard as Shard
from gnnkit.partition.shard import cut as cut
from gnnkit.partition.shard import cut_all as cut_all
from gnnkit.partition.traffic import StepCounts as StepCounts
from gnnkit.partition.traffic import Traffic as Traffic
from gnnkit.partition.traffic import column_shares as column_shares
