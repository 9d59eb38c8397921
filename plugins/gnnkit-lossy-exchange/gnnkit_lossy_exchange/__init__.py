"""Lossy exchanges of gnnkit: a sample of the rows, or only rows that have changed."""

from gnnkit_lossy_exchange.adaptive import Adaptive as Adaptive
from gnnkit_lossy_exchange.sampled import Sampled as Sampled
