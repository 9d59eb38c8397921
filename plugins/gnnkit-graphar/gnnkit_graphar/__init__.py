"""Reads graphs in the format Apache GraphAr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnkit_formats.pieces import GraphPieces, read_whole
from gnnkit_import.readers import name_list, read_missing

from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph import Graph, read_shares
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import local_path, shown
from gnnkit_graphar.pieces import GraphArPieces


class GraphAr(Dataset):
    """A folder of Apache GraphAr, version `gar/v1`, with chunks of Parquet, ORC or CSV.

    Each vertex type is a node type, and each edge type a relation, which `model=rgcn`
    distinguishes. If a relation has several adjacency lists, the first one is read. The
    edge property `weight` is the weight, and the others are edge features, which must
    be the same for all relations. Edges of a relation without weights have weight 1.

    The primary vertex property holds the ids. With several types, ids are text such as
    `person:p7`. The properties `label` and `split` are read as in `dataset=edges`, from
    the one type that has labels. All other properties are features, as in
    `dataset=edges`: numbers, lists of equal length, and text with few values. Each type
    has its own columns, which are 0 for other types, and a type without properties has
    a column of ones.

    The folder holds `NAME.graph.yml`. Otherwise, all of its `TYPE.vertex.yml` and
    `SRC_EDGE_DST.edge.yml` are read. Files are in the graph's `prefix` if this is a
    relative path, and in the folder itself if not.
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
        """Checks the options.

        Args:
            root: The folder.
            graph: The NAME of `NAME.graph.yml`. Default: the only one.
            label: Name of the label property, or TYPE.NAME if several types have one.
            ignore: Properties to omit, as NAME or TYPE.NAME, and as NAME for edges.
            missing: Words for missing values in text, as in `dataset=edges`.
            symmetrize: Whether to add missing reverse edges. Default: True if all
                relations have `directed: false`. Otherwise False, with a warning if few
                edges have a reverse edge.
            row_normalize: Whether to divide each node's features by their sum. Default:
                False.
            split: Shares of the labelled nodes for training, validation and test, for
                data without a split. Default: no split is drawn.
            seed: Seed of the drawn split. Default: 0.
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
