"""Models over adjacencies, and programs."""

from gnnkit.model.base import ConvModel as ConvModel
from gnnkit.model.base import GraphModel as GraphModel
from gnnkit.model.program import Nodes as Nodes
from gnnkit.model.program import Program as Program
