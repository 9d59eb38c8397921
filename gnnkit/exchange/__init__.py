"""The rows that travel between ranks: which, when, how written, and how many.

Gather and reduce move rows, by any schedule and codec. An exchange for training is
chosen with `exchange=NAME`, or `exchange=A+B` for the schedule of one and the codec of
the other.
"""

from gnnkit.exchange.base import ForwardPasses as ForwardPasses
from gnnkit.exchange.base import RowExchange as RowExchange
from gnnkit.exchange.codecs import Codec as Codec
from gnnkit.exchange.exact import Exact as Exact
from gnnkit.exchange.quantized import codec as codec
from gnnkit.exchange.schedule import ForwardPass as ForwardPass
from gnnkit.exchange.schedule import Operation as Operation
from gnnkit.exchange.schedule import Schedule as Schedule
from gnnkit.exchange.wire import Transfer as Transfer
