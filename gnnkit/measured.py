"""The points of accuracy that ways of training have lost in measurements.

The only place of these figures: a run says from here what its steps have lost.
"""

from __future__ import annotations

GRAPHS = ("cora", "pubmed", "amazon_photo", "coauthor_cs", "a block model")
TOLERANCE = 1.0  # points that a way may lose on each graph, before runs say so
# Test accuracy beside exact training in points, one column for each of GRAPHS. Rows are
# those of `benchmarks/variants.py`. Means of the seeds in `benchmarks/variants.md`:
# about ten on amazon_photo, whose runs differ most, and fewer on the others.
POINTS: dict[str, tuple[float, ...]] = {
    "quantized, 8 bits": (0.0, 0.0, 0.5, -0.1, 0.0),
    "pipelined": (0.0, 0.2, -4.9, 0.0, -2.1),
    "sampled, keep 0.1": (0.5, 0.3, -1.0, -1.0, -7.2),
    "adaptive": (0.0, 0.0, 0.0, 0.0, 0.0),
    "local_iterations, 2": (0.7, 1.1, -0.4, 0.0, -0.4),
    "local_iterations, 4": (0.2, 0.0, -0.2, -0.1, -0.9),
    "local_iterations, 8": (0.1, -1.0, -5.6, -1.0, -1.4),
    "local_iterations, 16": (1.1, -2.4, -22.7, -1.1, -2.7),
    "local_iterations, auto": (-0.3, -0.8, -0.3, -0.8, -0.9),
    "neighbour, gradients": (0.0, 0.0, 0.0, 0.0, 0.0),
    "neighbour, parameters": (1.9, 0.6, -1.8, 0.1, -0.1),
    "server, async": (-0.7, -2.2, -5.6, 0.4, -7.6),
    "server, ssp": (-0.4, -3.1, -5.6, 0.5, -6.9),
    "preset": (0.3, 0.0, -0.6, -0.1, 0.0),
    "preset, no halo": (0.5, 0.6, -0.8, -1.3, -1.9),
    "preset, clusters": (-1.2, 1.7, -1.5, -1.0, -6.0),
    "preset, averaged": (1.6, 0.2, -1.2, 0.9, -0.4),
    "preset, averaged, no halo": (1.7, 0.1, -0.6, 0.0, -4.2),
    "preset, psgd-pa": (-1.9, -8.0, -27.5, -5.1, -7.8),
    "preset, llcg": (0.8, 0.1, -1.7, -1.1, -0.3),
    "preset, coverage": (1.1, 0.0, -0.6, -0.3, -0.5),
    "preset, rows every 10 epochs": (0.6, 0.2, -0.3, 0.4, -1.3),
    "individual_sample": (1.3, -0.1, -0.1, 0.4, 1.4),
    "joint_sample": (0.1, -0.1, -0.4, 0.3, 1.4),
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
    points = next((POINTS[row] for row in rows if row in POINTS), (0.0,))
    if min(points) >= -TOLERANCE:
        return ""
    least, most = (max(round(-each), 0) for each in (max(points), min(points)))
    worst = GRAPHS[points.index(min(points))]
    return (
        f"{key}: {why}. In 100 epochs with 4 workers this lost {least} to {most} points of accuracy on {len(GRAPHS)} "
        f"graphs, most on {worst} (benchmarks/variants.md)"
    )
