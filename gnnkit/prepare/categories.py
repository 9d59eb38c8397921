"""Columns of text: one column for each value, the same in later data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.ranges import shown

_FEW = 10  # values that a column may have, whatever the number of nodes


def check(graph: Graph, kind: str) -> list[str]:
    """Looks at the columns of text of a new model. Returns lines for people.

    Raises `UserError` for columns whose values tell nodes apart, as names do.

    Args:
        graph: The graph that trains.
        kind: One of `settings.inputs.TEXTS`.
    """
    counts = _counts(graph)
    many = [name for name, count in counts.items() if count > max(_FEW, graph.num_nodes / 2)]
    if counts and kind == "refuse":
        raise UserError(
            f"features.text=refuse: the columns {shown(', '.join(counts))} hold text: dataset.ignore=[{','.join(counts)}] "
            "leaves these out"
        )
    if many:
        raise UserError(
            f"dataset: column {many[0]!r} is text with {counts[many[0]]:,} values for {graph.num_nodes:,} nodes, which no "
            f"model learns from: dataset.ignore=[{','.join(many)}] leaves it out"
        )
    if not counts:
        return []
    told = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return [f"features: one column for each value of text ({told} values; features.text={kind})"]


def aligned(graph: Graph, names: Sequence[str] | None, texts: Sequence[str] | None, kind: str, folder: Path) -> Graph:
    """Returns a graph whose columns of text have the values of the trained model.

    Nodes with another value have 0 in all columns of the text, and one warning counts
    them. Raises `UserError` for such a value under "known", and for numbers in the
    place of text.

    Args:
        graph: The graph.
        names: Of the model's columns. None: there are none.
        texts: The column of text of each of these, or "". None: there is none.
        kind: One of `settings.inputs.TEXTS`.
        folder: The folder of the run that has trained, for people.
    """
    own, of = graph.feature_names, graph.category_of
    if names is None or texts is None or own is None:
        return graph
    known = {name: text for name, text in zip(names, texts, strict=True) if text}
    of = of or ("",) * len(own)
    if plain := [name for name, text in zip(own, of, strict=True) if not text and name in known.values()]:
        raise UserError(
            f"dataset: column {plain[0]!r} holds numbers here, and text where the model of {folder} trained"
        )
    new = [place for place, text in enumerate(of) if text in known.values() and own[place] not in known]
    _tell_new(graph, new, kind, folder)
    kept = np.setdiff1d(np.arange(len(own)), new)
    absent = [name for name in known if name not in own]
    rows = np.asarray(graph.features)
    rows = np.concatenate([rows[:, kept], np.zeros((len(rows), len(absent)), rows.dtype)], axis=1)
    now = [*(own[place] for place in kept), *absent]
    texts_now = [*(of[place] for place in kept), *(known[name] for name in absent)]
    missing = None if graph.missing is None else _spread(graph.missing, of, now, texts_now, own)
    return replace(graph, features=rows, feature_names=tuple(now), category_of=tuple(texts_now), missing=missing)


def _counts(graph: Graph) -> dict[str, int]:
    """Counts the values of each column of text."""
    texts = [text for text in graph.category_of or () if text]
    return {name: texts.count(name) for name in dict.fromkeys(texts)}


def _tell_new(graph: Graph, new: Sequence[int], kind: str, folder: Path) -> None:
    """Warns of values that the model does not know, or refuses these."""
    names, texts = graph.feature_names, graph.category_of
    if not new or names is None or texts is None:
        return
    nodes = int(np.count_nonzero(np.asarray(graph.features)[:, list(new)].any(1)))
    who = "1 node has" if nodes == 1 else f"{nodes:,} nodes have"
    values = f"{who} values of text that the model of {folder} has not seen: " + shown(
        ", ".join(names[place] for place in new)
    )
    if kind == "known":
        raise UserError(f"dataset: {values}: features.text=known refuses these: leave out the nodes, or train again")
    print(f"gnnkit: warning: {values}: all columns of that text are 0 there", file=sys.stderr)


def _spread(
    missing: Ids, of: Sequence[str], now: Sequence[str], texts: Sequence[str], own: Sequence[str]
) -> Ids:  # [cells, 2]
    """Returns the empty cells by other columns. A text is empty in all its values."""
    place = {name: number for number, name in enumerate(now)}
    cells = {
        (node, other)
        for node, column in missing.tolist()
        for other in (
            [number for number, text in enumerate(texts) if text == of[column]] if of[column] else [place[own[column]]]
        )
        if of[column] in texts or not of[column]
    }
    return np.array(sorted(cells), np.int64).reshape(-1, 2)
