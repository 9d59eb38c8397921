"""Graphs of Apache GraphAr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnkit.checks import whole
from gnnkit.dataset.base import Dataset, name_list, read_whole
from gnnkit.dataset.importing.graphar import GraphArPieces
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.errors import UserError
from gnnkit.graph import Graph, read_shares
from gnnkit.graph.missing import read_missing
from gnnkit.ranges import local_path, shown


class GraphAr(Dataset):
    """A folder of Apache GraphAr, version `gar/v1`, with chunks of Parquet, ORC or CSV.

    Each type of vertices is a type of nodes, and each type of edges a relation, which
    `model=rgcn` tells apart. Of several adjacency lists of a relation the first is
    read. A property `weight` of edges is the weight, and others are features of edges,
    which all relations need alike. Edges of a relation without weights have weight 1.

    The primary property of vertices is the id. With several types, ids are texts such
    as `person:p7`. Properties `label` and `split` are read as in `dataset=edges`, of
    the one type that has labels. Other properties are features, as in `dataset=edges`:
    numbers, lists of equal length, and text of few values. Each type has columns of its
    own, with 0 elsewhere, and a type without properties a column of ones.

    The folder holds `NAME.graph.yml`, or otherwise all of its `TYPE.vertex.yml` and
    `SRC_EDGE_DST.edge.yml` are read. Files lie in the `prefix` of the graph where this
    is a relative path, and else in the folder itself.
    """

    def __init__(
        self,
        root: str,
        graph: str | None = None,
        label: str = "label",
        ignore: Sequence[str] = (),
        missing: Sequence[str] | None = None,
        symmetrize: bool | None = None,
        row_normalize: bool = False,
        split: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder.
            graph: the NAME of `NAME.graph.yml`. Default: the only one.
            label: your name of the property `label`, or TYPE.NAME where several types
                have one.
            ignore: properties that are left out, NAME or TYPE.NAME, and for edges NAME.
            missing: words for missing values in text, as in `dataset=edges`.
            symmetrize: add the reverse edges that are missing. Default: where all
                relations say `directed: false`, and otherwise no, with a warning where
                few edges have a reverse edge.
            row_normalize: divide each node's features by the sum. Default: no.
            split: shares of the labelled nodes that train, validate and test, for data
                without a split. Default: none is drawn.
            seed: of this draw.
        """
        self.root = local_path("dataset.root", root)
        if graph is not None and Path(graph).name != graph:
            raise UserError(f"dataset.graph={shown(graph)} must be the NAME of a file NAME.graph.yml in dataset.root")
        self.graph, self.label = graph, label
        self.ignore = name_list("dataset.ignore", ignore)
        self.missing = read_missing("dataset.missing", missing)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize
        self.split = None if split is None else read_shares("dataset.split", split)
        self.seed = whole("dataset.seed", seed, 0)

    def in_pieces(self) -> GraphPieces:
        return GraphArPieces(self)

    def load(self) -> Graph:
        return read_whole(self.in_pieces())
