"""Samplers: CSC + seeds -> MiniBatch."""

from gnnkit.sampler.base import Hop as Hop
from gnnkit.sampler.base import NativeSampler as NativeSampler
from gnnkit.sampler.base import Sampler as Sampler
from gnnkit.sampler.neighbor import NeighborSampler as NeighborSampler
