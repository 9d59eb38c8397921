"""job=explain's page: each node's important features and neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit_report.charts import Part, bars, legend
from gnnkit_report.drawing import WIDTH, Figure, Point, dot, strokes, text
from gnnkit_report.page import PageSection, PageTable, format_value, save

MOST_NODES = 20  # on the page. The tables have all
_TEMPLATE = Path(__file__).parent / "templates/explanation.html"
_SIDE = 300.0  # drawing height
_SIGNS = (("supports", "c0"), ("opposes", "c1"))
_FIDELITIES = {"fidelity_features": "features", "fidelity_neighbours": "neighbours"}
_CAPTIONS = {
    "features": "Change of the score by each input column, summed over the neighbourhood.",
    "neighbours": "Change of the score by each node's input row. The first is the node itself.",
    "neighbourhood": "Areas are importances, and distances from the centre are hops.",
}


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node in a neighbourhood."""

    name: str
    importance: float
    hops: int  # -1: unknown


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """A prediction's most important inputs."""

    name: str
    prediction: str  # with its score
    features: Sequence[tuple[str, float]]  # column names, and their importances
    nodes: Sequence[DrawnNode]  # the explained node first
    edges: Sequence[tuple[int, int]]  # positions in `nodes`


def write(nodes: Sequence[ExplainedNode], quality: Mapping[str, Any], folder: Path, title: str) -> Path:
    """Writes the page, and its figures as SVG. Returns the page's path.

    Args:
        nodes: The nodes, of which the first `MOST_NODES` are drawn.
        quality: The run's figures, with fidelities.
        folder: Receives the files.
        title: The page's title.
    """
    sections = [
        PageSection(f"Node {node.name}, {node.prediction}", _figures(node, number))
        for number, node in enumerate(nodes[:MOST_NODES])
    ]
    note = f" The first {MOST_NODES} of {len(nodes):,} are drawn." if len(nodes) > MOST_NODES else ""
    figures = [figure for section in sections for figure in section.figures]
    summary = f"{len(nodes):,} node{'s' * (len(nodes) != 1)}, by integrated gradients.{note}"
    fidelity = _fidelity(quality)
    return save(_TEMPLATE, figures, folder, title=title, summary=summary, fidelity=fidelity, sections=sections)


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


def _figures(node: ExplainedNode, number: int) -> list[Figure]:
    bars = [(item.name, item.importance) for item in node.nodes]
    features = [_bars("features", number, node.features)] if node.features else []
    return [_bars("neighbours", number, bars), *features, _neighbourhood(node, number)]


def _bars(kind: str, number: int, entries: Sequence[tuple[str, float]]) -> Figure:
    values = [value for _, value in entries]
    parts = [
        Part(_SIGNS[0][0], tuple(max(value, 0.0) for value in values), _SIGNS[0][1]),
        Part(_SIGNS[1][0], tuple(max(-value, 0.0) for value in values), _SIGNS[1][1]),
    ]
    labels = [name for name, _ in entries]
    return bars(f"{kind}-{number}", kind.capitalize(), _CAPTIONS[kind], labels, parts, "importance")


def _neighbourhood(node: ExplainedNode, number: int) -> Figure:
    """Draws the node in the centre, and the others around it by hops."""
    shapes, top = legend(_SIGNS, 12.0)
    places = _places([item.hops for item in node.nodes], top)
    shapes.append(strokes([(places[a], places[b]) for a, b in node.edges], "muted", 0.6, 0.5))
    largest = max((abs(item.importance) for item in node.nodes), default=0.0) or 1.0
    for (x, y), item in zip(places, node.nodes, strict=True):
        tint = _SIGNS[item.importance < 0][1]
        radius = 2.5 + 9 * math.sqrt(abs(item.importance) / largest)
        shapes.append(dot(x, y, radius, tint, f"{item.name}: {item.importance:.4g}"))
        shapes.append(text(x, y - radius - 2, item.name[:12], "middle", size=9.0))
    caption = _CAPTIONS["neighbourhood"]
    return Figure(f"neighbourhood-{number}", "Neighbourhood", caption, top + _SIDE, tuple(shapes))


def _places(hops: Sequence[int], top: float) -> list[Point]:
    """Places nodes on a ring for each distance. Unknown distances are outermost."""
    max_hops = max(*hops, 1) + (-1 in hops)
    rings = [max_hops if distance < 0 else distance for distance in hops]
    centre, step = (WIDTH / 2, top + _SIDE / 2), (_SIDE / 2 - 24) / max_hops
    places = []
    for index, ring in enumerate(rings):
        turn = 2 * math.pi * (rings[:index].count(ring) / rings.count(ring) + 0.13 * ring)
        places.append((centre[0] + ring * step * 1.35 * math.cos(turn), centre[1] + ring * step * math.sin(turn)))
    return places
