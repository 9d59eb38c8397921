"""Columns of text: one column for each value, the same in later data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnnkit.checks import Array
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
    counts, of_edges = _counts(graph.category_of), _counts(graph.edge_category_of)
    many = [name for name, count in counts.items() if count > max(_FEW, graph.num_nodes / 2)]
    texts = [*counts, *of_edges]
    if texts and kind == "refuse":
        raise UserError(
            f"features.text=refuse: the columns {shown(', '.join(texts))} hold text: dataset.ignore=[{','.join(texts)}] "
            "leaves these out"
        )
    if many:
        raise UserError(
            f"dataset: column {many[0]!r} is text with {counts[many[0]]:,} values for {graph.num_nodes:,} nodes, which no "
            f"model learns from: dataset.ignore=[{','.join(many)}] leaves it out"
        )
    if not texts:
        return []
    edges = {f"{name} of edges": count for name, count in of_edges.items()}
    told = ", ".join(f"{name}: {count}" for name, count in (counts | edges).items())
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
    of = of or ("",) * len(own)
    match = _Match.of(own, of, names, texts, folder)
    rows = np.asarray(graph.features)
    match.warn_of_new(rows, own, "node", kind, folder)
    now, texts_now = match.names(own), match.names(of, [match.known[name] for name in match.absent])
    missing = None if graph.missing is None else _spread(graph.missing, of, now, texts_now, own)
    rows = match.rows(rows)
    return replace(graph, features=rows, feature_names=tuple(now), category_of=tuple(texts_now), missing=missing)


def aligned_edges(
    graph: Graph, names: Sequence[str] | None, texts: Sequence[str] | None, kind: str, folder: Path
) -> Graph:
    """Does for edge features what `aligned` does for features of nodes."""
    own, of, rows = graph.edge_feature_names, graph.edge_category_of, graph.edge_features
    if names is None or texts is None or own is None or rows is None:
        return graph
    of = of or ("",) * len(own)
    match = _Match.of(own, of, names, texts, folder)
    match.warn_of_new(rows, own, "edge", kind, folder)
    now, texts_now = match.names(own), match.names(of, [match.known[name] for name in match.absent])
    rows = match.rows(rows)
    return replace(graph, edge_features=rows, edge_feature_names=tuple(now), edge_category_of=tuple(texts_now))


@dataclass(frozen=True, slots=True)
class _Match:
    """The columns of new data beside those of the trained model."""

    known: dict[str, str]  # column of text, by the name of each value that the model reads
    kept: list[int]  # columns of the data that stay
    new: list[int]  # columns of the data whose value of text the model does not know
    absent: list[str]  # values of text that the data lacks

    @classmethod
    def of(
        cls, own: Sequence[str], of: Sequence[str], names: Sequence[str], texts: Sequence[str], folder: Path
    ) -> _Match:
        """Compares columns. Raises `UserError` for numbers in the place of text."""
        known = {name: text for name, text in zip(names, texts, strict=True) if text}
        if plain := [name for name, text in zip(own, of, strict=True) if not text and name in known.values()]:
            raise UserError(
                f"dataset: column {plain[0]!r} holds numbers here, and text where the model of {folder} trained"
            )
        new = [place for place, text in enumerate(of) if text in known.values() and own[place] not in known]
        kept = [place for place in range(len(own)) if place not in new]
        return cls(known, kept, new, [name for name in known if name not in own])

    def names(self, own: Sequence[str], absent: Sequence[str] | None = None) -> list[str]:
        """Returns what belongs to the columns, in the order of `rows`."""
        return [*(own[place] for place in self.kept), *(self.absent if absent is None else absent)]

    def rows(self, rows: Array) -> Array:  # [n, columns]
        """Returns rows with 0 in columns of absent values."""
        return np.concatenate([rows[:, self.kept], np.zeros((len(rows), len(self.absent)), rows.dtype)], axis=1)

    def warn_of_new(self, rows: Array, own: Sequence[str], what: str, kind: str, folder: Path) -> None:
        """Warns of values that the model does not know, or refuses these."""
        if not self.new:
            return
        count = int(np.count_nonzero(rows[:, self.new].any(1)))
        who = f"1 {what} has" if count == 1 else f"{count:,} {what}s have"
        values = f"{who} values of text that the model of {folder} has not seen: " + shown(
            ", ".join(own[place] for place in self.new)
        )
        if kind == "known":
            raise UserError(
                f"dataset: {values}: features.text=known refuses these: leave out the {what}s, or train again"
            )
        print(f"gnnkit: warning: {values}: all columns of that text are 0 there", file=sys.stderr)


def _counts(category_of: Sequence[str] | None) -> dict[str, int]:
    """Counts the values of each column of text."""
    texts = [text for text in category_of or () if text]
    return {name: texts.count(name) for name in dict.fromkeys(texts)}


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
