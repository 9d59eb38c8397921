"""Models, which are trained, and programs, which are iterated.

Both read the graph through an `Adjacency`, so one implementation runs on every layout.
"""

from gnnkit.model.base import ConvModel as ConvModel
from gnnkit.model.base import GraphModel as GraphModel
from gnnkit.model.base import Nodes as Nodes
from gnnkit.model.base import Program as Program
