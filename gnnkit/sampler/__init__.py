"""Samplers: CSC + seeds -> MiniBatch."""

from gnnkit.sampler.base import Hop as Hop
from gnnkit.sampler.base import NativeSampler as NativeSampler
from gnnkit.sampler.base import Sampler as Sampler
from gnnkit.sampler.gather import gather_rows as gather_rows
from gnnkit.sampler.loader import LoadedBatch as LoadedBatch
from gnnkit.sampler.loader import Loader as Loader
from gnnkit.sampler.neighbor import NeighborSampler as NeighborSampler
