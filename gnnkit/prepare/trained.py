"""What a trained model knows of its data, and new data as the model reads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.dataset.base import both_ways
from gnnkit.documents import read_object
from gnnkit.errors import UserError
from gnnkit.graph import Features, Graph, SparseFeatures
from gnnkit.prepare.categories import aligned, aligned_edges, check
from gnnkit.prepare.fill import Fill, told
from gnnkit.prepare.rebalanced import resumed_folder
from gnnkit.prepare.scale import Scale, choose, told_of_edges
from gnnkit.ranges import shown, switch
from gnnkit.result.folder import INPUTS
from gnnkit.storage import write_atomically

_LOOKED_AT = 1000  # rows of features
_FAR = 0.5  # difference of two shares of edges that is told


@dataclass(frozen=True, slots=True)
class Inputs:
    """The facts of a graph that a model trained on this graph relies on."""

    features: list[str] | None  # names of columns in order. None: by place
    edge_features: list[str] | None
    both_ways: float  # share of edges that have a reverse edge
    unit_rows: bool  # whether each row of features adds up to 1
    edge_types: list[str] | None = None  # names of relations in order. None: there is one
    scale: Scale = field(default_factory=lambda: Scale("none"))  # of the rows that the model reads
    fill: Fill = field(default_factory=Fill)  # of empty cells, before the scale
    category_of: list[str] | None = None  # column of text that each of `features` is a value of, or ""
    text: str = "one_hot"  # of TEXTS, for values that are new
    edge_category_of: list[str] | None = None  # as `category_of`, of `edge_features`
    edge_weight: bool | None = None  # whether edges have weights. None: written before this was kept

    @classmethod
    def of(cls, graph: Graph, inputs: str) -> Inputs:
        """Looks at a graph. `inputs` is the configuration key."""
        reads = inputs == "features"
        return cls(
            list(graph.feature_names) if reads and graph.feature_names else None,
            list(graph.edge_feature_names) if graph.edge_feature_names else None,
            both_ways(graph.csc),
            reads and _adds_up(graph.features),
            None if graph.edge_type_names is None else list(graph.edge_type_names),
            category_of=list(graph.category_of) if reads and graph.category_of else None,
            edge_category_of=list(graph.edge_category_of) if graph.edge_category_of else None,
            edge_weight=graph.csc.weight is not None,
        )

    @classmethod
    def load(cls, folder: Path) -> Inputs | None:
        """Reads what `save` wrote, None where nothing was written.

        Raises `UserError` for another file of this name.
        """
        path = folder / INPUTS
        try:
            found = cls._of(read_object(path)) if path.exists() else None
        except (ValueError, TypeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} cannot be read: {error}") from error
        if found is not None and not all(map(_are_names, found.all_names)):
            raise UserError(f"{path} holds no names of columns")
        if found is not None and found.edge_weight is not None:
            switch(f"{path}: edge_weight", found.edge_weight)
        return found

    @property
    def all_names(self) -> tuple[list[str] | None, ...]:
        return self.features, self.edge_features, self.edge_types, self.category_of, self.edge_category_of

    def read(self, graph: Graph, folder: Path) -> Graph:
        """Returns a graph as the model reads it: columns in order, filled and scaled.

        Raises `UserError` for other columns, and for empty cells that nothing fills.

        Args:
            graph: The graph.
            folder: The folder of the run that has trained, for errors.
        """
        filled = self.fill.apply(self.ordered(graph, folder), folder)
        for line in self.scale.clipped(filled):
            print(f"gnnkit: warning: {line}", file=sys.stderr)
        return self.scale.apply(filled)

    def ordered(self, graph: Graph, folder: Path) -> Graph:
        """Puts columns and relations in the order of the trained model.

        Columns of text have the values of that model then.
        """
        graph = aligned(graph, self.features, self.category_of, self.text, folder)
        graph = aligned_edges(graph, self.edge_features, self.edge_category_of, self.text, folder)
        own, own_edge = (
            None if names is None else list(names) for names in (graph.feature_names, graph.edge_feature_names)
        )
        order = _order("features", self.features, own, folder)
        edge_order = _order("edge features", self.edge_features, own_edge, folder)
        if order is not None:
            names, place = tuple(self.features or ()), np.argsort(order)
            cells = None if graph.missing is None else np.stack([graph.missing[:, 0], place[graph.missing[:, 1]]], 1)
            features = _ordered(graph.features, order)
            texts = None if self.category_of is None else tuple(self.category_of)
            graph = replace(graph, features=features, feature_names=names, category_of=texts, missing=cells)
        if edge_order is not None and graph.edge_features is not None:
            names = tuple(self.edge_features or ())
            texts = None if self.edge_category_of is None else tuple(self.edge_category_of)
            rows = graph.edge_features[:, edge_order]
            graph = replace(graph, edge_features=rows, edge_feature_names=names, edge_category_of=texts)
        return _with_relations(graph, self.edge_types)

    @classmethod
    def _of(cls, plain: Mapping[str, Any]) -> Inputs:
        rest = {key: value for key, value in plain.items() if key not in ("scale", "fill")}
        return cls(**rest, scale=Scale(**plain.get("scale", {"kind": "none"})), fill=Fill(**plain.get("fill", {})))

    def save(self, folder: Path) -> None:
        write_atomically(folder / INPUTS, json.dumps(asdict(self)).encode())


def as_read(settings: Settings, graph: Graph, kept_in: Path) -> tuple[Graph, list[str]]:
    """Returns the graph as the model reads it, and lines for people.

    Columns have the order and the scale of the trained model, and empty cells take what
    it takes. A run that begins anew chooses these. A run that trains, and a store, keep
    the facts in `kept_in`.
    """
    relied_on, scale, fill, lines = _relied_on(settings), Scale("none"), Fill(), []
    text, whole = settings.features.text, graph
    if settings.inputs != "features":
        graph = whole = replace(graph, missing=None)  # nobody reads these columns
    if relied_on is not None:
        known, folder = relied_on
        graph, scale, fill, text = _as_trained(settings, graph, known, folder), known.scale, known.fill, known.text
        whole = fill.apply(graph, folder)
    elif settings.inputs == "features":
        lines += check(graph, text)
        fill = Fill.of(graph, settings.features.fill)
        whole = fill.apply(graph)
        scale, why = choose(whole, settings.features.scale)
        lines += [why] if why else []
    if relied_on is None:
        lines += told_of_edges(graph)
    if settings.job.keeps_inputs:
        replace(Inputs.of(graph, settings.inputs), scale=scale, fill=fill, text=text).save(kept_in)
    return scale.apply(whole), [*told(graph, fill), *lines, *scale.clipped(whole)]


def _relied_on(settings: Settings) -> tuple[Inputs, Path] | None:
    """Returns the facts that a trained model relies on, and the folder of its run.

    None for a run that begins anew.
    """
    folder = resumed_folder(settings) if settings.checkpoint is None else Path(settings.checkpoint)
    known = None if folder is None else Inputs.load(folder)
    return None if folder is None or known is None else (known, folder)


def take_stored(settings: Settings, plain: Mapping[str, Any], kept_in: Path, root: Path) -> None:
    """Keeps the facts of a store as those of the run, like `as_read`.

    Raises `UserError` where the trained model reads columns of another order or scale.

    Args:
        settings: The configuration.
        plain: The facts of the graph that the store was cut from.
        kept_in: The run folder.
        root: The store.
    """
    own = Inputs._of(plain)
    if (relied_on := _relied_on(settings)) is not None:
        known, folder = relied_on
        for line in [*_differences(known, own, folder), *_unnamed(known, own, folder)]:
            print(f"gnnkit: warning: {line}", file=sys.stderr)
        _order("features", known.features, own.features, folder)
        _order("edge features", known.edge_features, own.edge_features, folder)
        for what in ("features", "edge_features", "edge_types", "scale", "fill"):
            here, there = getattr(own, what), getattr(known, what)
            if here != there and here is not None and there is not None:
                raise UserError(
                    f"dataset.root={root}: {what.replace('_', ' ')} have another order or scale there than the model of "
                    f"{folder} reads: name the data set itself"
                )
    if settings.job.keeps_inputs:
        own.save(kept_in)


def _as_trained(settings: Settings, graph: Graph, known: Inputs, folder: Path) -> Graph:
    """Returns the graph with the columns in the order of the trained model.

    Prints a line for each difference that only the user can judge.

    Args:
        settings: The configuration.
        graph: The graph.
        known: The facts that the model relies on.
        folder: The folder of the run that has trained.
    """
    own = Inputs.of(graph, settings.inputs)
    named = settings.read_otherwise if settings.dataset.origin != "Python" else ()
    for line in [*(named or _differences(known, own, folder)), *_unnamed(known, own, folder)]:
        print(f"gnnkit: warning: {line}", file=sys.stderr)
    return known.ordered(graph, folder)


def _with_relations(graph: Graph, known: Sequence[str] | None) -> Graph:
    """Returns the graph with its relations numbered as in the trained model.

    Relations that the model does not know come last.
    """
    own, types = graph.edge_type_names, graph.edge_types
    if known is None or own is None or types is None:
        return graph
    names = (*known, *(name for name in own if name not in known))
    place = {name: number for number, name in enumerate(names)}
    return replace(graph, edge_types=np.array([place[name] for name in own])[types], edge_type_names=names)


def _order(what: str, known: Sequence[str] | None, own: Sequence[str] | None, folder: Path) -> list[int] | None:
    """Finds the model's columns in the data. None: as they are.

    Raises `UserError` that names columns which are missing, and further ones.
    """
    if known is None or own is None or known == own:
        return None
    missing, further = ([name for name in a if name not in b] for a, b in ((known, own), (own, known)))
    if missing or further:
        parts = [
            f"{verb} {shown(', '.join(names))}" for verb, names in (("lacks", missing), ("also has", further)) if names
        ]
        raise UserError(
            f"dataset {' and '.join(parts)}: the model of {folder} reads the columns {shown(', '.join(known))} as {what}"
        )
    place = {name: number for number, name in enumerate(own)}
    return [place[name] for name in known]


def _ordered(features: Features, order: Sequence[int]) -> Features:
    return features.columns(order) if isinstance(features, SparseFeatures) else features[:, order]


def _unnamed(known: Inputs, own: Inputs, folder: Path) -> list[str]:
    """Says where the model knows names and the data has none."""
    pairs = (("features", known.features, own.features), ("edge features", known.edge_features, own.edge_features))
    return [
        f"columns of {what} have no names here, and are taken in the order of {folder}: {shown(', '.join(names))}"
        for what, names, here in pairs
        if names is not None and here is None
    ]


def _differences(known: Inputs, own: Inputs, folder: Path) -> list[str]:
    """Says where the graph was read in another way than the graph that trained."""
    lines = []
    if known.edge_types is None and own.edge_types is not None and len(own.edge_types) > 1:
        lines.append(
            f"edges have {len(own.edge_types):,} types here, and those that trained the model of {folder} had none: all "
            "are read alike"
        )
    if abs(known.both_ways - own.both_ways) > _FAR:
        way = "symmetrize it" if known.both_ways > own.both_ways else "read it without reverse edges"
        lines.append(
            f"{own.both_ways:.0%} of the edges have a reverse edge, and {known.both_ways:.0%} of those that trained "
            f"the model of {folder}: {way}, unless this is meant"
        )
    if known.unit_rows != own.unit_rows:
        here, there = ("do", "did not") if own.unit_rows else ("do not", "did")
        lines.append(
            f"rows of features {here} add up to 1, and those that trained the model of {folder} {there}: set "
            "row_normalize alike, unless this is meant"
        )
    return lines


def _adds_up(features: Features) -> bool:
    """Says whether rows add up to 1 in magnitude, by a look at some that are not 0."""
    if len(features) == 0 or features.shape[1] < 2:
        return False
    sums = np.abs(np.asarray(features[:_LOOKED_AT], np.float64)).sum(1)
    return bool(sums.any() and np.allclose(sums[sums > 0], 1, atol=1e-3))


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))
