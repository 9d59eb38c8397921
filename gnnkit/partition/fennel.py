from __future__ import annotations

from gnnkit.partition.streaming import Streaming


class Fennel(Streaming):
    """Fennel (Tsourakakis, Gkantsidis, Radunovic & Vojnovic, WSDM 2014).

    Choose this partition for graphs too large for a multilevel method. The score of a
    part is its number of neighbours minus the marginal cost of its load, with gamma =
    1.5. The load is the mean of nodes and in-edges, as in PowerLyra (Chen et al.,
    EuroSys 2015), because nodes alone say little where degrees are skewed.
    """

    score = "fennel"
