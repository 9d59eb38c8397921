"""The notice that an approximate training scheme prints at the start of a run."""

from __future__ import annotations

SAVES_BYTES = "to save bytes, use exchange=quantized, which costs the least accuracy"


def approximate(key: str, reason: str) -> str:
    """Returns the notice about one approximate part of the training scheme.

    It contains no figures, because the cost of a scheme depends on the graph. The run
    reports its own measurements at the end.

    Args:
        key: The configuration key that selects the part, with its value.
        reason: Why steps differ from exact full-graph training.
    """
    return f"{key}: training is approximate, because {reason}; job=compare measures what this costs on your graph"
