"""Gradient synchronisation: when and how gradients meet.

A plugin steps the parameters of all ranks from the ranks' gradients.
"""

from gnnkit.sync.aggregation import Aggregation as Aggregation
from gnnkit.sync.average import average_parameters as average_parameters
from gnnkit.sync.average import drift as drift
from gnnkit.sync.base import GradientSync as GradientSync
from gnnkit.sync.base import gradients as gradients
from gnnkit.sync.base import trained as trained
