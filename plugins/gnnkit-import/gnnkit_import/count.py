"""First pass over edges: checks them, and counts destinations in 65,536 bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_formats.pieces import COLUMNS, EdgePiece, GraphPieces, Stretch, check_ends

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph.edge_columns import RULES
from gnnkit.graph.graph import check_implied
from gnnkit.graph.types import MOST_RELATIONS, edge_types_of, names_of, relation_names
from gnnkit.utils.checks import FLOAT32_MAX, Array, check_finite, check_range
from gnnkit.utils.documents import Json
from gnnkit_import.npy_writer import NpyWriter
from gnnkit_import.passes import EdgeCache, ImportRun
from gnnkit_import.progress import ProgressReporter

MAX_BINS = 1 << 16
_LEAST_KINDS = {"weight": np.float32, "positions": np.int32}  # dtypes that graphs have at least
_INT32 = 2**31


@dataclass(slots=True)
class EdgeSummary:
    """What the first pass collects about edges. Dtypes are names, for the journal."""

    num_edges: int = 0
    largest: int = -1
    place: str = ""  # of the largest id, for messages
    kinds: dict[str, str] = field(default_factory=dict)  # dtypes of further columns, by field of `EdgePiece`
    width: int | None = None  # of edge features
    names: list[str] | None = None  # of edge features
    relation: int | None = None  # largest relation number. None: edges have no types
    relations: list[str] | None = None  # names
    sources: str = "int32"  # dtype of the sources as they are read
    shift: int = 0  # bin b has the destinations b << shift to ((b + 1) << shift) - 1
    bins: list[int] = field(default_factory=list)  # records of each bin, reverse edges included

    def all_bins(self) -> Array:
        """Returns the bins, padded with empty ones to `MAX_BINS`."""
        return np.pad(np.array(self.bins, np.int64), (0, MAX_BINS - len(self.bins)))

    def columns(self) -> dict[str, np.dtype[Any]]:
        """Returns each column's dtype, without both ends."""
        widths = {"features": (self.width,)}
        return {name: np.dtype((kind, widths.get(name, ()))) for name, kind in self.kinds.items()}

    def facts(self) -> Json:
        """Returns the values that differ from those of no edges, for the journal."""
        usual, names = EdgeSummary(), [item.name for item in fields(self)]
        return {name: value for name in names if (value := getattr(self, name)) != getattr(usual, name)}

    def add(self, part: EdgeSummary, place: str) -> None:
        """Adds the columns of the edges that follow, but not their bins.

        Raises `UserError`, which names `place`, if edge features differ in width.
        """
        self.num_edges += part.num_edges
        if part.largest > self.largest:
            self.largest, self.place = part.largest, part.place
        if part.width is not None:
            if self.width not in (None, part.width):
                raise UserError(f"{place}: edge features have width {part.width} in some rows, {self.width} in others")
            self.width, self.names = part.width, part.names
        for name, kind in part.kinds.items():
            self.kinds[name] = str(np.promote_types(self.kinds.get(name, kind), kind))
        self.sources = str(np.promote_types(self.sources, part.sources))
        if part.relation is not None:
            self.relation = max(part.relation, self.relation or 0)

    @property
    def row(self) -> int:
        """Bytes per edge in further columns."""
        return sum(kind.itemsize for name, kind in self.columns().items() if name != "positions")

    def outputs(self, folder: Path, num_edges: int = 0, *, alone: bool = True) -> dict[str, NpyWriter]:
        """Opens each further column's output array, after the first edges."""
        return {
            name: NpyWriter(folder / f"{RULES[COLUMNS[name]].field}.npy", kind.base, kind.shape, num_edges, alone=alone)
            for name, kind in self.columns().items()
        }


@dataclass(frozen=True, slots=True)
class Counted:
    """Result of the first pass."""

    summary: EdgeSummary  # of all edges
    num_nodes: int
    stretches: Sequence[EdgeSummary]  # of the edges that each process has read
    caches: Sequence[Json | None]  # header of each stretch's `EdgeCache`, if ids are looked up


def count_edges(run: ImportRun, num_nodes: int | None) -> Counted:
    """Reads and checks all edges, and caches them if ids are looked up.

    Args:
        run: the import.
        num_nodes: number of nodes. If None, one more than the largest id.
    """

    def work(number: int, stretch: Stretch | None, reporter: ProgressReporter) -> tuple[Json, Json | None]:
        cache = EdgeCache(run.caches / str(number))
        return _count_stretch(run, stretch, num_nodes, cache, reporter).facts(), cache.finish()

    is_new = run.journal["counted"] is None
    parts = run.share("counting edges", work) if is_new else run.journal["counted"]
    stretches = [EdgeSummary(**facts) for facts, _ in parts]
    summary = merge_summaries(stretches)
    if is_new:
        _complete(summary, run.graph, num_nodes)
        run.journal.write(counted=parts, relations=summary.relations)
    summary.relations = run.journal["relations"]
    count = summary.largest + 1 if num_nodes is None else num_nodes
    return Counted(summary, count, stretches, [header for _, header in parts])


def _count_stretch(
    run: ImportRun, stretch: Stretch | None, num_nodes: int | None, cache: EdgeCache, reporter: ProgressReporter
) -> EdgeSummary:
    """Reads and checks a stretch's edges."""
    graph = run.graph
    summary, bins = EdgeSummary(), np.zeros(MAX_BINS, np.int64)
    if num_nodes is not None:
        summary.shift = _shift(num_nodes - 1)
    for piece in run.pieces(stretch, graph.edge_row, 0):
        check_ends(piece, _INT32 * _INT32 if num_nodes is None else num_nodes, summary.num_edges)
        summary.add(_summarize(piece, graph.edge_type_names(), summary.num_edges), piece.place)
        more = _shift(max(int(piece.src.max(initial=0)), int(piece.dst.max(initial=0)))) - summary.shift
        if more > 0:
            bins, summary.shift = fold_bins(bins, more), summary.shift + more
        for ids in (piece.dst, piece.src[piece.src != piece.dst]) if graph.symmetrize else (piece.dst,):
            bins += _core.count_bins(np.ascontiguousarray(ids), summary.shift, MAX_BINS, run.room.threads)
        if graph.finds_ids:
            cache.add(piece)
        reporter.update(summary.num_edges, graph.num_edges, "edges")
    names = graph.edge_feature_names()
    summary.names = None if names is None else list(names)
    summary.bins = np.trim_zeros(bins, "b").tolist()
    return summary


def _summarize(piece: EdgePiece, names: Sequence[str] | None, first: int) -> EdgeSummary:
    """Checks a piece's columns, and returns their summary without bins.

    Args:
        piece: The edges.
        names: Relation names.
        first: Number of earlier edges, for messages.
    """
    part = EdgeSummary(len(piece.src), sources=str(piece.src.dtype))
    for name, ids in (("src", piece.src), ("dst", piece.dst)):
        if (largest := int(ids.max(initial=-1))) > part.largest:
            part.largest, part.place = largest, f"{piece.place}, {name} = {largest}"
    if piece.weight is not None:
        check_finite("weight", piece.weight, bound=FLOAT32_MAX, first=first)
    if piece.types is not None:
        check_range("edge_types", piece.types, 0, MOST_RELATIONS if names is None else len(names), first=first)
        part.relation = int(piece.types.max(initial=0))
    if piece.features is not None:
        check_finite("edge_features", piece.features, bound=FLOAT32_MAX, first=first)
        part.width = piece.features.shape[1]
    for name in COLUMNS:
        if (rows := getattr(piece, name)) is not None:
            least = _LEAST_KINDS.get(name, rows.dtype)
            part.kinds[name] = "int16" if name == "types" else str(np.promote_types(least, rows.dtype))
    return part


def merge_summaries(parts: Sequence[EdgeSummary]) -> EdgeSummary:
    """Merges all stretches' summaries, in order."""
    merged, bins = EdgeSummary(shift=max(part.shift for part in parts)), np.zeros(MAX_BINS, np.int64)
    for part in parts:
        bins += fold_bins(part.all_bins(), merged.shift - part.shift)
        merged.add(part, "edges")
    if "positions" in merged.kinds and merged.num_edges >= _INT32:  # of which each stretch has fewer
        merged.kinds["positions"] = "int64"
    merged.bins = np.trim_zeros(bins, "b").tolist()
    return merged


def _complete(summary: EdgeSummary, graph: GraphPieces, num_nodes: int | None) -> None:
    """Checks the complete summary, and adds the relation names."""
    if num_nodes is None:
        check_implied(summary.place, summary.largest, summary.num_edges)
    names_of("edge_feature_names", summary.names, summary.width or 0)
    names = names_of("edge_type_names", graph.edge_type_names())
    if summary.relation is None:
        edge_types_of(None, summary.num_edges, names)
    relations = relation_names(None if summary.relation is None else np.array([summary.relation]), names)
    summary.relations = None if relations is None else list(relations)


def _shift(largest: int) -> int:
    """Returns the shift that maps ids up to the largest one to the bins."""
    return max(max(largest, 0).bit_length() - (MAX_BINS.bit_length() - 1), 0)


def fold_bins(bins: Array, more: int) -> Array:
    """Merges neighbouring bins, for a shift that is greater by `more`."""
    if not more:
        return bins
    wider, merged = np.zeros_like(bins), min(1 << more, len(bins))
    wider[: len(bins) // merged] = bins.reshape(-1, merged).sum(1)
    return wider
