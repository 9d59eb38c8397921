"""Row exchanges between ranks: which rows, when, how encoded, and how many.

Every schedule and codec uses the same two exchanges, gather and reduce. Training
selects one with `exchange=NAME`, or `exchange=A+B` for one's schedule and the other's
codec.
"""

from gnnkit.exchange.base import ForwardPass as ForwardPass
from gnnkit.exchange.base import ForwardPasses as ForwardPasses
from gnnkit.exchange.base import Operation as Operation
from gnnkit.exchange.base import RowExchange as RowExchange
from gnnkit.exchange.base import Schedule as Schedule
from gnnkit.exchange.exact import Exact as Exact
from gnnkit.exchange.quantized import codec as codec
from gnnkit.exchange.wire import Codec as Codec
from gnnkit.exchange.wire import Transfer as Transfer
