"""The partition: nodes by rank, traffic between ranks, and drawings of the graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gnnkit.utils.documents import number
from gnnkit_report.charts import (
    MOST_BARS,
    NUM_COLOURS,
    SPLITS,
    Chart,
    Colouring,
    NetworkNode,
    Part,
    bars,
    colour,
    matrix,
    network,
    rank_names,
)
from gnnkit_report.page import clipped
from gnnkit_report.run import RunFiles, at, numbers, square

MOST_NODES, MOST_EDGES = 400, 1200  # limits of the graph drawing
MOST_TYPES = 40  # of the drawing of relations
_ROUNDS = 120  # iterations of the layout

Places = npt.NDArray[np.float64]  # [num_nodes, 2]


def drawings(run: RunFiles) -> list[Chart]:
    """Draws the partition."""
    return [*_picture(run), *_types(run), *_between(run), *_loads(run)]


def _loads(run: RunFiles) -> list[Chart]:
    """Draws training nodes and other nodes by rank."""
    nodes, train_nodes = numbers(run.partition.get("nodes")), numbers(run.partition.get("train_nodes"))
    if not nodes or len(nodes) != len(train_nodes) or len(nodes) > MOST_BARS:
        return []
    other_nodes = [max(all_nodes - training, 0) for all_nodes, training in zip(nodes, train_nodes, strict=True)]
    parts = [Part("training nodes", train_nodes, SPLITS["train"]), Part("other nodes", other_nodes, "c9")]
    caption = "Nodes that each rank owns. Ranks with more nodes than the mean take longer."
    return [bars("nodes", "Nodes by rank", caption, rank_names(len(nodes)), parts, "nodes")]


def _between(run: RunFiles) -> list[Chart]:
    """Draws the words sent and the edges between ranks, unless there are only two."""
    matrices: list[Chart] = []
    words, edges = run.words, square(run.partition.get("edges"))
    if max(len(words), len(edges)) <= 2:  # the table on balance and cut shows as much
        return matrices
    if words and len(words) <= MOST_BARS and any(map(any, words)):
        caption = "Numbers per epoch that the column's rank receives from the row's rank."
        matrices.append(matrix("words", "Words between ranks", caption, words, _plain(len(words)), ("from", "to")))
    if edges and len(edges) <= MOST_BARS:
        caption = f"Edges by the owners of source and destination.{_sample_note(run)}"
        matrices.append(matrix("edges", "Edges between ranks", caption, edges, _plain(len(edges)), ("from", "to")))
    return matrices


def _sample_note(run: RunFiles) -> str:
    num_counted, num_edges = (number(run.partition.get(name)) for name in ("counted_edges", "num_edges"))
    if num_counted is None or num_edges is None or num_counted >= num_edges:
        return ""
    return f" Counted on a sample of {num_counted:,.0f} of {num_edges:,.0f} edges."


def _plain(count: int) -> list[str]:
    return [str(rank) for rank in range(count)]


def _picture(run: RunFiles) -> list[Chart]:
    """Draws the graph's sample, with nodes coloured by rank, class and prediction."""
    ranks, edges, classes, whole = (at(run.partition, "sample", key) for key in ("rank", "edges", "class", "whole"))
    owner, labels = [int(rank) for rank in numbers(ranks)], numbers(classes)
    count = len(owner)
    if not 0 < count <= MOST_NODES:
        return []
    names = {"rank": [f"rank {rank}" for rank in owner]}
    if len(labels) == count:
        names["class"] = [_class_name(run, int(label)) for label in labels]
        if len(run.predictions) == count:
            names["prediction"] = [_class_name(run, label) for label in run.predictions]
    notes = [list(dict.fromkeys(of_node)) for of_node in zip(*names.values(), strict=True)]
    ends, radius = _edges(edges, count), max(2.2, min(5.0, 45 / count**0.5))
    nodes = [
        NetworkNode((x, y), radius, ", ".join(note))
        for (x, y), note in zip(_laid_out(count, ends).tolist(), notes, strict=True)
    ]
    by_class = _frequent([*names.get("class", []), *names.get("prediction", [])])
    by_rank = [f"rank {rank}" for rank in sorted(set(owner))]
    colourings = [_colouring(key, values, by_rank if key == "rank" else by_class) for key, values in names.items()]
    num_nodes = number(run.partition.get("num_nodes")) or 0
    sample = f"A sample: {count:,} of {num_nodes:,.0f} nodes, some neighbourhoods."
    caption = f"{f'All {count:,} nodes.' if whole is True else sample} Strong lines are edges between ranks."
    cut, num_counted = (number(run.partition.get(key)) for key in ("cut", "counted_edges"))
    if cut is not None and num_counted:
        caption += f" {cut / num_counted:.1%} of all edges are."
    kinds = [(a, b, "weak" if owner[a] == owner[b] else "strong") for a, b in ends]
    return [network("graph", "The graph", caption, nodes, kinds, colourings)]


def _class_name(run: RunFiles, number: int) -> str:
    if number < 0:
        return "no class"
    return run.class_names[number] if number < len(run.class_names) else f"class {number}"


def _edges(value: object, num_nodes: int) -> list[tuple[int, int]]:
    """Returns the edges between nodes of the picture."""
    pairs = [numbers(pair) for pair in value[:MOST_EDGES]] if isinstance(value, list) else []
    return [(int(p[0]), int(p[1])) for p in pairs if len(p) == 2 and all(0 <= end < num_nodes for end in p)]


def _frequent(names: Sequence[str]) -> list[str]:
    """Returns the most frequent names, all of which have a colour of their own."""
    by_frequency = [name for name, _ in Counter(names).most_common()]
    return by_frequency if len(by_frequency) <= NUM_COLOURS else by_frequency[: NUM_COLOURS - 1]


def _colouring(key: str, names: Sequence[str], order: Sequence[str]) -> Colouring:
    """Colours nodes by their names, in order. All other names share the last colour."""
    tints = {name: colour(index) for index, name in enumerate(order)}
    legend = [(clipped(name, 40), tints[name]) for name in order[:NUM_COLOURS] if name in names]
    if num_others := len({*names} - {*order[:NUM_COLOURS]}):
        legend.append((f"{num_others} others", colour(NUM_COLOURS - 1)))
    return Colouring(key, [tints.get(name, colour(NUM_COLOURS - 1)) for name in names], legend)


def _laid_out(num_nodes: int, edges: Sequence[tuple[int, int]]) -> Places:
    """Places nodes by forces: all push each other, edges pull (Fruchterman, 1991).

    Nearly all places are in the unit square. Outliers are at its border.
    """
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
    low, high = np.quantile(at, 0.01, axis=0), np.quantile(at, 0.99, axis=0)
    unit_places: Places = np.clip((at - low) / np.maximum(high - low, 1e-9), -0.04, 1.04)
    return unit_places


def _types(run: RunFiles) -> list[Chart]:
    """Draws a typed graph's node types on a circle, with an arrow for each relation."""
    types, relations, edges = (at(run.partition, "schema", key) for key in ("node_types", "relations", "edges"))
    names = [str(entry[0]) for entry in types if isinstance(entry, list) and entry] if isinstance(types, list) else []
    if not 1 < len(names) <= MOST_TYPES or not isinstance(relations, list) or not isinstance(edges, list):
        return []
    angles = [2 * math.pi * index / len(names) for index in range(len(names))]
    places = [(0.5 + 0.42 * math.cos(angle), 0.5 + 0.42 * math.sin(angle)) for angle in angles]
    nodes = [NetworkNode(place, 6, name, clipped(name, 20)) for place, name in zip(places, names, strict=True)]
    arrows = [
        (
            names.index(triple[0]),
            names.index(triple[2]),
            f"{' '.join(map(str, triple))}: {number(count) or 0:,.0f} edges",
        )
        for triple, count in zip(relations, edges, strict=False)
        if isinstance(triple, list) and len(triple) == 3 and triple[0] in names and triple[2] in names
    ]
    colouring = Colouring("type", [colour(index) for index in range(len(names))], ())
    title, caption = "Types and relations", "Node types, and relations between them."
    return [network("types", title, caption, nodes, arrows, [colouring], directed=True)]
