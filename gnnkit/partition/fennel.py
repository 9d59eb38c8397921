from __future__ import annotations

from gnnkit.partition.streaming import Streaming


class Fennel(Streaming):
    """Fennel (Tsourakakis, Gkantsidis, Radunovic & Vojnovic, WSDM 2014).

    Choose this partition for graphs too large for a multilevel method. A part's score
    is its number of neighbours minus the marginal cost of its load, with gamma = 1.5.
    The load is the mean of nodes and in-edges, as in PowerLyra (Chen et al., EuroSys
    2015), because the number of nodes alone is misleading for skewed degrees.
    """

    score = "fennel"
