"""The points of accuracy that ways of training have lost in measurements.

The only place of these figures: a run says from here what its steps have lost.
"""

from __future__ import annotations

GRAPHS = ("cora", "pubmed", "amazon_photo", "coauthor_cs", "a block model")
TOLERANCE = 1.0  # points that a way may lose on each graph, before runs say so
# Test accuracy beside exact training in points, one column for each of GRAPHS. Rows are
# those of `benchmarks/variants.py`. Means of ten seeds with parts of METIS.
POINTS: dict[str, tuple[float, ...]] = {
    "quantized, 8 bits": (0.1, 0.0, 0.5, -0.1, 0.0),
    "pipelined": (-0.1, 0.1, -4.9, 0.1, -2.6),
    "sampled, keep 0.1": (0.5, 0.1, -1.0, -0.9, -6.4),
    "adaptive": (-0.1, 0.0, -0.1, 0.0, 0.0),
    "local_iterations, 2": (0.0, 0.0, -0.4, -0.1, -0.4),
    "local_iterations, 4": (-0.3, -0.4, -0.2, 0.3, -0.9),
    "local_iterations, 8": (-0.8, -1.2, -5.6, -0.5, -2.0),
    "local_iterations, 16": (-0.7, -2.2, -22.7, -1.3, -3.4),
    "local_iterations, auto": (0.1, -0.7, -0.3, -0.4, 0.0),
    "neighbour, gradients": (0.0, 0.0, 0.0, 0.0, 0.0),
    "neighbour, parameters": (0.4, -0.2, -1.8, 0.2, -0.4),
    "server, async": (-0.9, -2.4, -5.6, 0.4, -6.5),
    "server, ssp": (-1.2, -2.5, -5.6, 0.4, -6.6),
    "preset": (0.0, 0.1, -0.6, 0.0, -0.2),
    "preset, no halo": (-0.1, 0.3, -0.8, -1.4, -2.2),
    "preset, clusters": (-1.0, 1.7, -1.5, -0.7, -6.7),
    "preset, averaged": (0.2, -0.4, -1.2, 0.6, -0.5),
    "preset, averaged, no halo": (0.4, -0.1, -0.6, -0.4, -4.4),
    "preset, psgd-pa": (-2.3, -8.3, -27.5, -5.4, -11.5),
    "preset, llcg": (-0.1, 0.1, 0.2, -1.2, 0.1),
    "preset, coverage": (0.1, 0.1, -0.6, -0.3, -0.8),
    "preset, rows every 10 epochs": (0.3, 0.1, -0.3, 0.0, -2.7),
    "individual_sample": (0.1, 0.1, -0.1, 0.2, 1.1),
    "joint_sample": (0.0, 0.1, -0.4, 0.3, 1.1),
}


# With random or contiguous parts, where these lose more by over three standard errors.
# Means of three seeds, of the parts that lose more.
SCATTERED: dict[str, tuple[float, ...]] = {
    "pipelined": (-0.1, 0.1, -66.7, 0.1, -6.8),
    "local_iterations, 2": (0.0, 0.0, -3.8, -0.1, -0.4),
    "local_iterations, 4": (-0.3, -0.4, -60.4, 0.3, -0.9),
    "local_iterations, 8": (-0.8, -1.2, -58.2, -0.5, -2.0),
    "local_iterations, 16": (-0.7, -2.2, -48.7, -1.3, -3.4),
    "server, async": (-4.0, -2.4, -5.6, 0.4, -6.5),
    "server, ssp": (-4.2, -2.5, -5.6, 0.4, -6.6),
    "preset, no halo": (-6.7, -0.8, -0.8, -1.4, -10.2),
    "preset, averaged": (0.2, -0.4, -2.2, 0.6, -0.5),
    "preset, llcg": (-0.1, 0.1, -1.6, -1.2, -3.3),
}


def lost(key: str, why: str, *rows: str) -> str:
    """Returns the line that a run begins with.

    "" where little was lost, or nothing was measured.

    Args:
        key: Key of the configuration that chooses this way.
        why: What its steps lack.
        rows: Rows of `POINTS`, the nearest to the run first. The first that was
            measured counts.
    """
    row = next((row for row in rows if row in POINTS), None)
    found = {} if row is None else {"parts of METIS": POINTS[row], "random or contiguous parts": SCATTERED.get(row)}
    told = {parts: points for parts, points in found.items() if points is not None}
    if min((min(points) for points in told.values()), default=0.0) >= -TOLERANCE:
        return ""
    losses = " and ".join(f"{_spelt(points)} with {parts}" for parts, points in told.items())
    return f"{key}: {why}. In 100 epochs with 4 workers this lost on {len(GRAPHS)} graphs {losses} (benchmarks/variants.md)"


def _spelt(points: tuple[float, ...]) -> str:
    least, most = (max(round(-each), 0) for each in (max(points), min(points)))
    return f"{least} to {most} points of accuracy, most on {GRAPHS[points.index(min(points))]},"
