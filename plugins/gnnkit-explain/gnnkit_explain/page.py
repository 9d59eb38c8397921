"""job=explain's page: each node's important features and neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_report.charts import Chart, Colouring, NetworkNode, Part, Point, bars, network
from gnnkit_report.page import Page, PageSection, PageTable, Panel, format_value

from gnnkit.graph import Ids
from gnnkit.utils.checks import Array
from gnnkit_explain.explained import ExplainedNames
from gnnkit_explain.explanation import Explanation

MOST_NODES = 20  # on the page. The tables have all
_MOST_COLUMNS, _MOST_NEIGHBOURS = 12, 16  # of a node
_SIGNS = (("supports", "c0"), ("opposes", "c1"))
_FIDELITIES = {"fidelity_features": "features", "fidelity_neighbours": "neighbours"}
_CAPTIONS = {
    "features": "Change of the score by each input column, summed over the neighbourhood.",
    "neighbours": "Change of the score by each node's input row. The first is the node itself.",
}
_EXPLANATION = (
    "Fidelity+ is the decrease of the score if the most important inputs are removed, "
    "fidelity- if all others are. Random rankings are for comparison."
)


def write(
    explanations: Sequence[Explanation], names: ExplainedNames, quality: Mapping[str, Any], folder: Path, title: str
) -> Path:
    """Writes the page. Returns its path.

    Args:
        explanations: The nodes, of which the first `MOST_NODES` are drawn.
        names: The names of nodes, columns and classes.
        quality: The run's figures, with fidelities.
        folder: Receives the page.
        title: The page's title.
    """
    drawn = [
        PageSection(f"Node {names.ids[item.node]}, {names.prediction(item)}", _charts(item, names, number))
        for number, item in enumerate(explanations[:MOST_NODES])
    ]
    count = len(explanations)
    note = f" The first {MOST_NODES} of {count:,} are drawn." if count > MOST_NODES else ""
    summary = f"{count:,} node{'s' * (count != 1)}, by integrated gradients.{note}"
    fidelity = PageSection("Fidelity", panels=[Panel(table=_fidelity(quality), text=_EXPLANATION, wide=True)])
    return Page(title, summary, [fidelity, *drawn]).save(folder)


def _fidelity(quality: Mapping[str, Any]) -> PageTable:
    """Returns the mean fidelities for the ranking and for random rankings."""
    kinds = {title: quality[key] for key, title in _FIDELITIES.items() if quality.get(key)}
    names = dict.fromkeys(name.removeprefix("random_") for values in kinds.values() for name in values)
    rows = [
        (f"{title}, {ranking}", *(format_value(values[prefix + name]) for name in names))
        for title, values in kinds.items()
        for ranking, prefix in (("ranked by importance", ""), ("ranked at random", "random_"))
    ]
    titles = {"plus": "fidelity+", "minus": "fidelity-"}
    return PageTable(("", *(titles.get(name, name) for name in names)), rows)


def _charts(item: Explanation, names: ExplainedNames, number: int) -> list[Chart]:
    """Draws the largest importances, and the neighbours around the node by hops."""
    columns = _largest(item.features, _MOST_COLUMNS)
    others = np.flatnonzero(item.nodes != item.node)
    others = others[_largest(item.importance[others], _MOST_NEIGHBOURS)]
    nodes = np.append(item.node, item.nodes[others])
    values = np.append(item.importance[item.nodes == item.node].sum(), item.importance[others])
    labels = [str(names.ids[node]) for node in nodes]
    largest = float(np.abs(values).max()) or 1.0
    drawn = [
        NetworkNode(place, 2.5 + 9 * math.sqrt(abs(value) / largest), f"{label}: {value:.4g}", label[:12])
        for place, value, label in zip(_places([0, *item.hops[others].tolist()]), values.tolist(), labels, strict=True)
    ]
    edges = [(a, b, "weak") for a, b in names.edges(nodes)]
    signs = Colouring("sign", [_SIGNS[value < 0][1] for value in values.tolist()], _SIGNS)
    charts = [_bars("neighbours", number, labels, values)]
    if len(columns):
        charts.append(_bars("features", number, [names.columns[column] for column in columns], item.features[columns]))
    caption = "Areas are importances, and distances from the centre are hops."
    return [*charts, network(f"neighbourhood-{number}", "Neighbourhood", caption, drawn, edges, [signs])]


def _largest(values: Array, count: int) -> Ids:
    """Returns where the largest absolute nonzero values are."""
    order: Ids = np.argsort(-np.abs(values), kind="stable")[:count]
    return order[: np.count_nonzero(values)]


def _bars(kind: str, number: int, labels: Sequence[str], values: Array) -> Chart:
    positive, negative = np.maximum(values, 0).tolist(), np.maximum(-values, 0).tolist()
    parts = [Part(name, part, tint) for (name, tint), part in zip(_SIGNS, (positive, negative), strict=True)]
    return bars(f"{kind}-{number}", kind.capitalize(), _CAPTIONS[kind], labels, parts, "")


def _places(hops: Sequence[int]) -> list[Point]:
    """Places nodes on a ring for each distance. Unknown distances are outermost."""
    max_hops = max(*hops, 1) + (-1 in hops)
    rings = [max_hops if distance < 0 else distance for distance in hops]
    places = []
    for index, ring in enumerate(rings):
        turn = 2 * math.pi * (rings[:index].count(ring) / rings.count(ring) + 0.13 * ring)
        radius = 0.46 * ring / max_hops
        places.append((0.5 + radius * math.cos(turn), 0.5 + radius * math.sin(turn)))
    return places
