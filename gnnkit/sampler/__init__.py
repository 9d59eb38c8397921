"""Samplers, which draw a MiniBatch from a CSC and seeds."""

from gnnkit.sampler.base import NativeSampler as NativeSampler
from gnnkit.sampler.base import Sampler as Sampler
from gnnkit.sampler.cluster import ClusterSampler as ClusterSampler
from gnnkit.sampler.contract import Hop as Hop
from gnnkit.sampler.fanouts import Fanouts as Fanouts
from gnnkit.sampler.gather import gather_rows as gather_rows
from gnnkit.sampler.loaded_batch import LoadedBatch as LoadedBatch
from gnnkit.sampler.loader import Loader as Loader
from gnnkit.sampler.metropolis_hastings import MetropolisHastingsSampler as MetropolisHastingsSampler
from gnnkit.sampler.neighbor import BalancedSampler as BalancedSampler
from gnnkit.sampler.neighbor import FullSampler as FullSampler
from gnnkit.sampler.neighbor import LaborSampler as LaborSampler
from gnnkit.sampler.neighbor import NeighborSampler as NeighborSampler
from gnnkit.sampler.weighted import WeightedSampler as WeightedSampler
