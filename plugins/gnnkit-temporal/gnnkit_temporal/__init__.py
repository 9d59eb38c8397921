"""Models of edges with times."""

from gnnkit_temporal.mixer import Mixer as Mixer
from gnnkit_temporal.tgat import TGAT as TGAT
