"""The partition: nodes by rank, words and edges between ranks, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gnnkit.utils.documents import number
from gnnkit_report.charts import MOST_BARS, Part, bars, clipped, heat, rank_names
from gnnkit_report.drawing import (
    CHAR,
    NUM_COLOURS,
    SPLITS,
    WIDTH,
    Figure,
    FigureLayer,
    Shape,
    colour,
    dot,
    strokes,
    text,
)
from gnnkit_report.run import RunFiles, at, matrix, numbers

MOST_NODES, MOST_EDGES = 400, 1200  # limits of the graph drawing
_SIDE, _ROUNDS = 400.0, 120  # pixels of the drawing, and iterations of its layout
_ROWS = 4  # lines of the legend

Places = npt.NDArray[np.float64]  # [num_nodes, 2]


def drawings(run: RunFiles) -> list[Figure]:
    """Draws the partition."""
    return [*_picture(run), *_between(run), *_loads(run)]


def _loads(run: RunFiles) -> list[Figure]:
    """Draws training nodes and other nodes by rank."""
    nodes, train_nodes = numbers(run.partition.get("nodes")), numbers(run.partition.get("train_nodes"))
    if not nodes or len(nodes) != len(train_nodes) or len(nodes) > MOST_BARS:
        return []
    other_nodes = tuple(max(all_nodes - training, 0) for all_nodes, training in zip(nodes, train_nodes, strict=True))
    parts = [Part("training nodes", tuple(train_nodes), SPLITS["train"]), Part("other nodes", other_nodes, "c9")]
    caption = "Nodes that each rank owns. Ranks with more nodes than the mean take longer."
    return [bars("nodes", "Nodes by rank", caption, rank_names(len(nodes)), parts, "nodes")]


def _between(run: RunFiles) -> list[Figure]:
    """Draws the words sent and the edges between ranks, unless there are only two."""
    matrices: list[Figure] = []
    words, edges = run.words, matrix(run.partition.get("edges"))
    if max(len(words), len(edges)) <= 2:  # the table on balance and cut shows as much
        return matrices
    if words and len(words) <= MOST_BARS and any(map(any, words)):
        caption = "Numbers per epoch that the column's rank receives from the row's rank."
        matrices.append(heat("words", "Words between ranks", caption, words, _plain(len(words)), ("from", "to")))
    if edges and len(edges) <= MOST_BARS:
        caption = f"Edges by the owners of source and destination.{_sample_note(run)}"
        matrices.append(heat("edges", "Edges between ranks", caption, edges, _plain(len(edges)), ("from", "to")))
    return matrices


def _sample_note(run: RunFiles) -> str:
    num_counted, num_edges = (number(run.partition.get(name)) for name in ("counted_edges", "num_edges"))
    if num_counted is None or num_edges is None or num_counted >= num_edges:
        return ""
    return f" Counted on a sample of {num_counted:,.0f} of {num_edges:,.0f} edges."


def _plain(count: int) -> list[str]:
    return [str(rank) for rank in range(count)]


def _picture(run: RunFiles) -> list[Figure]:
    """Draws the graph's sample, with nodes coloured by rank."""
    ranks, edges, classes, whole = (at(run.partition, "sample", key) for key in ("rank", "edges", "class", "whole"))
    owner, labels = [int(rank) for rank in numbers(ranks)], numbers(classes)
    if not 0 < len(owner) <= MOST_NODES:
        return []
    groups = {"rank": [f"rank {rank}" for rank in owner]}
    if len(labels) == len(owner):
        groups["class"] = [_class_name(run, int(label)) for label in labels]
        if len(run.predictions) == len(owner):
            groups["prediction"] = [_class_name(run, label) for label in run.predictions]
    return [_draw_graph(run, owner, _edges(edges, len(owner)), groups, is_complete=whole is True)]


def _class_name(run: RunFiles, number: int) -> str:
    if number < 0:
        return "no class"
    return run.class_names[number] if number < len(run.class_names) else f"class {number}"


def _edges(value: object, num_nodes: int) -> list[tuple[int, int]]:
    """Returns the edges between nodes of the picture."""
    pairs = [numbers(pair) for pair in value[:MOST_EDGES]] if isinstance(value, list) else []
    return [(int(p[0]), int(p[1])) for p in pairs if len(p) == 2 and all(0 <= end < num_nodes for end in p)]


def _draw_graph(
    run: RunFiles,
    owner: Sequence[int],
    edges: Sequence[tuple[int, int]],
    groups: Mapping[str, Sequence[str]],
    *,
    is_complete: bool,
) -> Figure:
    """Draws nodes and edges, with darker edges between ranks.

    Args:
        groups: The group of each node, by colouring.
        is_complete: Whether the picture shows the entire graph.
    """
    places = _laid_out(len(owner), edges)
    radius = max(2.2, min(5.0, 45 / max(len(owner), 1) ** 0.5))
    notes = [", ".join(dict.fromkeys(labels)) for labels in zip(*_labels(groups), strict=True)]
    tints = {"rank": {f"rank {rank}": colour(rank) for rank in sorted(set(owner))}}
    classes = _tints([name for group, names in groups.items() if group != "rank" for name in names])
    layers = [_layer(group, places, names, tints.get(group, classes), notes, radius) for group, names in groups.items()]
    caption = _caption(run, len(owner), is_complete)
    height = max(float(shape.attributes["y"]) for layer in layers for shape in layer.shapes if shape.text) + 10
    return Figure("graph", "The graph", caption, height, _edge_shapes(owner, edges, places), layers=tuple(layers))


def _edge_shapes(owner: Sequence[int], edges: Sequence[tuple[int, int]], places: Places) -> tuple[Shape, ...]:
    """Draws the edges within a rank, then those between ranks."""
    ends = [((places[a][0], places[a][1]), (places[b][0], places[b][1])) for a, b in edges]
    cut = [owner[a] != owner[b] for a, b in edges]
    return (
        strokes([end for end, crosses in zip(ends, cut, strict=True) if not crosses], "muted", 0.6, 0.35),
        strokes([end for end, crosses in zip(ends, cut, strict=True) if crosses], "ink", 0.8, 0.75),
    )


def _labels(groups: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns node labels by colouring."""
    return [
        [f"predicted {name}" if group == "prediction" else name for name in names] for group, names in groups.items()
    ]


def _tints(names: Sequence[str]) -> dict[str, str]:
    """Assigns colours to the most frequent classes. The others share the last one."""
    by_frequency = [name for name, _ in Counter(names).most_common()]
    frequent = by_frequency if len(by_frequency) <= NUM_COLOURS else by_frequency[: NUM_COLOURS - 1]
    return {name: colour(index) for index, name in enumerate(frequent)}


def _layer(
    group: str,
    places: Places,
    names: Sequence[str],
    tints: Mapping[str, str],
    notes: Sequence[str],
    radius: float,
) -> FigureLayer:
    """Draws nodes in their groups' colours, and a legend.

    Args:
        tints: Colour by group. Others get the last colour.
    """
    other_tint = colour(NUM_COLOURS - 1)
    nodes = zip(places, names, notes, strict=True)
    shapes: list[Shape] = [dot(x, y, radius, tints.get(name, other_tint), note) for (x, y), name, note in nodes]
    present = [name for name in tints if name in set(names)][:NUM_COLOURS]
    num_others = len(set(names) - set(present))
    entries = [(name, tints[name]) for name in present] + ([(f"{num_others} others", other_tint)] if num_others else [])
    x, row = 12.0, 0
    for name, tint in entries:
        label = clipped(name, 18)
        width = 22 + CHAR * len(label)
        if x + width > WIDTH - 12:
            x, row = 12.0, row + 1
        if row < _ROWS:
            shapes += [dot(x + 4, _SIDE + 12 + 15 * row, 4, tint), text(x + 12, _SIDE + 16 + 15 * row, label)]
        x += width
    return FigureLayer(group, tuple(shapes))


def _caption(run: RunFiles, count: int, is_complete: bool) -> str:
    num_nodes = number(run.partition.get("num_nodes")) or 0
    sentence = (
        f"All {count:,} nodes."
        if is_complete
        else f"A sample: {count:,} of {num_nodes:,.0f} nodes, some neighbourhoods."
    )
    return f"{sentence} Strong lines are edges between ranks."


def _laid_out(num_nodes: int, edges: Sequence[tuple[int, int]]) -> Places:
    """Places nodes by forces: all push each other, edges pull (Fruchterman, 1991)."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-1, 1, (num_nodes, 2))
    ends = np.array(edges, int).reshape(-1, 2)
    ideal = 1.6 / max(num_nodes, 1) ** 0.5
    push = np.empty((num_nodes, num_nodes))  # reused, because allocating takes twice as long
    for step in range(_ROUNDS):
        norm = (at**2).sum(1)
        np.matmul(-2 * at, at.T, out=push)
        push += norm
        push += norm[:, None]  # squared distances
        np.maximum(push, 1e-3 * ideal**2, out=push)
        np.divide(ideal**2, push, out=push)  # the distance is multiplied below
        force = at * push.sum(1, keepdims=True) - push @ at - 0.5 * at
        pull = at[ends[:, 0]] - at[ends[:, 1]]
        pull *= np.linalg.norm(pull, axis=1, keepdims=True) / ideal
        np.add.at(force, ends[:, 0], -pull)
        np.add.at(force, ends[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        at += force / length * np.minimum(length, 0.12 * (1 - step / _ROUNDS) + 0.002)
    return _fit_square(at)


def _fit_square(at: Places) -> Places:
    """Scales places to the drawing's square, clipping outliers to its border."""
    low, high = np.quantile(at, 0.01, axis=0), np.quantile(at, 0.99, axis=0)
    unit_places = np.clip((at - low) / np.maximum(high - low, 1e-9), -0.04, 1.04)
    pixels: Places = 24 + unit_places * np.array([WIDTH - 48, _SIDE - 48])
    return pixels
