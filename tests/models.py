"""The models that several folders of tests hold to one result."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gnnkit_testing.graphs import EDGE_WIDTH
from torch import nn

from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.sage import GraphSAGE

MODELS: dict[str, Callable[..., nn.Module]] = {  # by name, for graphs with edge features
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=2, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
}
