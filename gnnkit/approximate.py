"""The line that an approximate training scheme prints at the beginning of a run."""

from __future__ import annotations


def approximate(key: str, why: str) -> str:
    """Returns the line of one approximate part of the training scheme.

    The line promises no figure, as what a scheme costs depends on the graph. The run
    itself reports at its end what it has measured.

    Args:
        key: Key of the configuration that chooses the part, with its value.
        why: What makes steps differ from exact full-graph training.
    """
    return f"{key}: training is approximate, because {why}; job=compare measures what this costs on your graph"
