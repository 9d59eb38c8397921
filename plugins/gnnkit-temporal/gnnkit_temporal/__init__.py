"""Models of temporal links."""

from gnnkit_temporal.mixer import Mixer as Mixer
