"""Gradient synchronisation: how the ranks' gradients become one parameter update."""

from gnnkit.comm.agreement import average_parameters as average_parameters
from gnnkit.comm.agreement import drift as drift
from gnnkit.sync.aggregation import Aggregation as Aggregation
from gnnkit.sync.base import GradientSync as GradientSync
from gnnkit.sync.base import gradients as gradients
from gnnkit.sync.base import trained as trained
