"""A graph that `Graph.save` has written."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.checks import whole
from gnnkit.dataset.base import Dataset, blame, finished, with_split
from gnnkit.dataset.importing.arrays import SavedPieces
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.graph import Graph, read_shares
from gnnkit.ranges import local_path


class Saved(Dataset):
    """A folder of `Graph.save`, mapped and not copied."""

    def __init__(
        self,
        root: str,
        symmetrize: bool = False,
        row_normalize: bool = False,
        split: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder.
            symmetrize: add the reverse edges that are missing. Default: no.
            row_normalize: divide each node's features by the sum. Default: no.
            split: shares of the labelled nodes that train, validate and test, for a
                graph without a split. Default: none is drawn.
            seed: of this draw.
        """
        self.root = local_path("dataset.root", root)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize
        self.split = None if split is None else read_shares("dataset.split", split)
        self.seed = whole("dataset.seed", seed, 0)

    def in_pieces(self) -> GraphPieces:
        return SavedPieces(self)

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = with_split(Graph.load(self.root), self.split, self.seed)
        return finished(graph, self.symmetrize, self.row_normalize)
