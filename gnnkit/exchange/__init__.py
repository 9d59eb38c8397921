"""How rows of other ranks travel in training: schedules and codecs, by name.

An exchange is chosen with `exchange=NAME`, or `exchange=A+B` for the schedule of one
and the codec of the other.
"""

from gnnkit.exchange.base import ForwardPasses as ForwardPasses
from gnnkit.exchange.base import RowExchange as RowExchange
from gnnkit.exchange.base import told as told
from gnnkit.exchange.exact import Exact as Exact
from gnnkit.exchange.quantized import codec as codec
