"""The partition: nodes by rank, words and edges between ranks, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gnnkit.report.charts import Part, bars, clipped, heat, rank_names
from gnnkit.report.drawing import CHAR, NUM_COLOURS, SPLITS, WIDTH, Dot, Figure, Layer, Shape, Strokes, Text, colour
from gnnkit.report.run import Run, matrix, number, numbers

MOST_RANKS = 64  # of bars and matrices
MOST_NODES, MOST_EDGES = 400, 1200  # of the picture
_SIDE, _ROUNDS = 400.0, 120  # of the picture, and of its layout
_ROWS = 4  # of the names of colours

Places = npt.NDArray[np.float64]  # [num_nodes, 2]


def drawings(run: Run) -> list[Figure]:
    """Draws what is known of the partition."""
    return [*_picture(run), *_between(run), *_loads(run)]


def _loads(run: Run) -> list[Figure]:
    """Draws nodes by rank, of which some are for training."""
    nodes, trained = numbers(run.partition.get("nodes")), numbers(run.partition.get("train_nodes"))
    if not nodes or len(nodes) != len(trained) or len(nodes) > MOST_RANKS:
        return []
    rest = tuple(max(every - some, 0) for every, some in zip(nodes, trained, strict=True))
    parts = [Part("training nodes", tuple(trained), SPLITS["train"]), Part("other nodes", rest, "c9")]
    caption = "Nodes that each rank owns. Ranks with more nodes than the mean take longer."
    return [bars("nodes", "Nodes by rank", caption, rank_names(len(nodes)), parts, "nodes")]


def _between(run: Run) -> list[Figure]:
    """Draws who sends words to whom, and edges between owners."""
    found = []
    words, edges = run.words, matrix(run.partition.get("edges"))
    if words and len(words) <= MOST_RANKS and any(map(any, words)):
        caption = "Numbers that the rank of the column receives from the rank of the row in an epoch."
        found.append(heat("words", "Words between ranks", caption, words, _plain(len(words)), ("from", "to")))
    if edges and len(edges) <= MOST_RANKS:
        caption = f"Edges by the owners of source and destination.{_counted(run)}"
        found.append(heat("edges", "Edges between ranks", caption, edges, _plain(len(edges)), ("from", "to")))
    return found


def _counted(run: Run) -> str:
    counted, every = (number(run.partition.get(name)) for name in ("counted_edges", "num_edges"))
    if counted is None or every is None or counted >= every:
        return ""
    return f" Counted on a sample of {counted:,.0f} of {every:,.0f} edges."


def _plain(count: int) -> list[str]:
    return [str(rank) for rank in range(count)]


def _picture(run: Run) -> list[Figure]:
    """Draws the sample of the graph, nodes coloured by rank."""
    sample = run.partition.get("sample")
    ranks = numbers(sample.get("rank")) if isinstance(sample, dict) else []
    if not isinstance(sample, dict) or not 0 < len(ranks) <= MOST_NODES:
        return []
    owner = [int(rank) for rank in ranks]
    edges = _edges(sample.get("edges"), len(owner))
    groups = {"rank": [f"rank {rank}" for rank in owner]}
    classes = numbers(sample.get("class"))
    if len(classes) == len(owner):
        groups["class"] = [_class_name(run, int(each)) for each in classes]
        if len(run.predictions) == len(owner):
            groups["prediction"] = [_class_name(run, each) for each in run.predictions]
    return [_drawn(run, owner, edges, groups, whole=sample.get("whole") is True)]


def _class_name(run: Run, number: int) -> str:
    if number < 0:
        return "no class"
    return run.class_names[number] if number < len(run.class_names) else f"class {number}"


def _edges(given: object, num_nodes: int) -> list[tuple[int, int]]:
    """Returns the edges whose ends are nodes of the picture."""
    pairs = [numbers(pair) for pair in given[:MOST_EDGES]] if isinstance(given, list) else []
    return [(int(p[0]), int(p[1])) for p in pairs if len(p) == 2 and all(0 <= end < num_nodes for end in p)]


def _drawn(
    run: Run,
    owner: Sequence[int],
    edges: Sequence[tuple[int, int]],
    groups: Mapping[str, Sequence[str]],
    *,
    whole: bool,
) -> Figure:
    """Draws nodes and edges, those between ranks darker.

    Args:
        run: The run.
        owner: Rank by node.
        edges: Source and destination.
        groups: By each way of colouring, the group of each node.
        whole: Whether the picture shows the whole graph.
    """
    places = _laid_out(len(owner), edges)
    ends = [((places[a][0], places[a][1]), (places[b][0], places[b][1])) for a, b in edges]
    cut = [owner[a] != owner[b] for a, b in edges]
    shapes: list[Shape] = [
        Strokes(tuple(end for end, crosses in zip(ends, cut, strict=True) if not crosses), "muted", 0.6, 0.35),
        Strokes(tuple(end for end, crosses in zip(ends, cut, strict=True) if crosses), "ink", 0.8, 0.75),
    ]
    radius = max(2.2, min(5.0, 45 / max(len(owner), 1) ** 0.5))
    notes = [", ".join(dict.fromkeys(each)) for each in zip(*_told(groups), strict=True)]
    tints = {"rank": {f"rank {rank}": colour(rank) for rank in sorted(set(owner))}}
    classes = _tints([name for way, names in groups.items() if way != "rank" for name in names])
    layers = [_layer(way, places, names, tints.get(way, classes), notes, radius) for way, names in groups.items()]
    caption = _what(run, len(owner), whole)
    height = max(shape.y for layer in layers for shape in layer.shapes if isinstance(shape, Text)) + 10
    return Figure("graph", "The graph", caption, height, tuple(shapes), layers=tuple(layers))


def _told(groups: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns what is told about each node, by way of colouring."""
    said = {"rank": "{}", "class": "{}", "prediction": "predicted {}"}
    return [[said[way].format(name) for name in names] for way, names in groups.items()]


def _tints(names: Sequence[str]) -> dict[str, str]:
    """Gives colours to the most frequent classes. The others share the last one."""
    ordered = [name for name, _ in Counter(names).most_common()]
    some = ordered if len(ordered) <= NUM_COLOURS else ordered[: NUM_COLOURS - 1]
    return {name: colour(index) for index, name in enumerate(some)}


def _layer(
    way: str,
    places: Places,
    names: Sequence[str],
    tints: Mapping[str, str],
    notes: Sequence[str],
    radius: float,
) -> Layer:
    """Draws the nodes in the colours of their groups, and what the colours mean.

    Args:
        way: What the colours tell.
        places: Of the nodes.
        names: The group of each node.
        tints: Colour by group. Others get the last colour.
        notes: What is told about each node.
        radius: Of the dots.
    """
    other = colour(NUM_COLOURS - 1)
    each = zip(places, names, notes, strict=True)
    shapes: list[Shape] = [Dot(x, y, radius, tints.get(name, other), note) for (x, y), name, note in each]
    there = [name for name in tints if name in set(names)][:NUM_COLOURS]
    rest = len(set(names) - set(there))
    named = [(name, tints[name]) for name in there] + ([(f"{rest} others", other)] if rest else [])
    x, row = 12.0, 0
    for name, tint in named:
        text = clipped(name, 18)
        width = 22 + CHAR * len(text)
        if x + width > WIDTH - 12:
            x, row = 12.0, row + 1
        if row < _ROWS:
            shapes += [Dot(x + 4, _SIDE + 12 + 15 * row, 4, tint), Text(x + 12, _SIDE + 16 + 15 * row, text)]
        x += width
    return Layer(way, tuple(shapes))


def _what(run: Run, count: int, whole: bool) -> str:
    every = number(run.partition.get("num_nodes")) or 0
    of = f"All {count:,} nodes." if whole else f"A sample: {count:,} of {every:,.0f} nodes, some neighbourhoods."
    return f"{of} Strong lines are edges between ranks."


def _laid_out(num_nodes: int, edges: Sequence[tuple[int, int]]) -> Places:
    """Places nodes by forces: all push each other, edges pull (Fruchterman, 1991)."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-1, 1, (num_nodes, 2))
    ends = np.array(edges, int).reshape(-1, 2)
    ideal = 1.6 / max(num_nodes, 1) ** 0.5
    push = np.empty((num_nodes, num_nodes))  # written in place: fresh memory takes twice as long
    for step in range(_ROUNDS):
        norm = (at**2).sum(1)
        np.matmul(-2 * at, at.T, out=push)
        push += norm
        push += norm[:, None]  # squares of distances
        np.maximum(push, 1e-3 * ideal**2, out=push)
        np.divide(ideal**2, push, out=push)  # times the way between two nodes
        force = at * push.sum(1, keepdims=True) - push @ at - 0.5 * at
        pull = at[ends[:, 0]] - at[ends[:, 1]]
        pull *= np.linalg.norm(pull, axis=1, keepdims=True) / ideal
        np.add.at(force, ends[:, 0], -pull)
        np.add.at(force, ends[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        at += force / length * np.minimum(length, 0.12 * (1 - step / _ROUNDS) + 0.002)
    return _fitted(at)


def _fitted(at: Places) -> Places:
    """Scales places to the square of the picture, a few far ones at its border."""
    low, high = np.quantile(at, 0.01, axis=0), np.quantile(at, 0.99, axis=0)
    scaled = np.clip((at - low) / np.maximum(high - low, 1e-9), -0.04, 1.04)
    placed: Places = 24 + scaled * np.array([WIDTH - 48, _SIDE - 48])
    return placed
