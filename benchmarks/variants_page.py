"""One table of the runs of variants.py on several graphs, in points beside exact runs.

    uv run python benchmarks/variants_page.py cora=cora.jsonl pubmed=pubmed.jsonl

Each file is a `--store` of variants.py. Test accuracy of the model with the best
validation accuracy: of `exact` in percent, of the others in points more than `exact` of
the same seed. Mean, standard error, and in brackets the number of seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from runs import Store, markdown, standard_error
from variants import REFERENCE, VARIANTS

Accuracies = Mapping[str, Mapping[str, float]]  # percent, by row and seed


def accuracies(file: Path) -> Accuracies:
    """Reads the test accuracies of a store."""
    accuracies_by_row: dict[str, dict[str, float]] = defaultdict(dict)
    for case, figures in Store(file).done.items():
        (seed,) = (override for override in case.overrides if override.startswith("seed="))
        accuracies_by_row[case.row][seed] = 100 * figures.test_accuracy
    return accuracies_by_row


def points(row: str, accuracies: Accuracies) -> list[float]:
    """Returns the points of a row, of the seeds that `exact` has too."""
    exact = accuracies.get(REFERENCE, {})
    return [accuracy - exact[seed] for seed, accuracy in accuracies.get(row, {}).items() if seed in exact]


def cell(values: Sequence[float], sign: str) -> str:
    if not values:
        return ""
    error = f" ± {standard_error(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{error} ({len(values)})"


def page(graphs: Mapping[str, Accuracies]) -> str:
    """Returns the table, a column for each graph."""
    lines = [
        [
            REFERENCE,
            *(cell(list(graph_accuracies.get(REFERENCE, {}).values()), "") for graph_accuracies in graphs.values()),
        ]
    ]
    for row in VARIANTS:
        cells = [cell(points(row, graph_accuracies), "+") for graph_accuracies in graphs.values()]
        if row != REFERENCE and any(cells):
            lines.append([row, *cells])
    return markdown(["variant", *graphs], lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+", metavar="GRAPH=FILE", help="name of a column, and its store")
    named = (each.split("=", 1) for each in parser.parse_args().stores)
    print(page({graph: accuracies(Path(file)) for graph, file in named}))
