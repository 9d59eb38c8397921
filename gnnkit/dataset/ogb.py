"""Node data sets of the Open Graph Benchmark (OGB)."""

from __future__ import annotations

from gnnkit.dataset.base import Dataset, blame, finished
from gnnkit.dataset.importing.ogb import OgbPieces
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.graph import Graph
from gnnkit.ranges import local_path


class Ogb(Dataset):
    """A folder that the package `ogb` has downloaded, such as `dataset/ogbn_arxiv`.

    `Graph.from_ogb` says what is read. The package is not needed.
    """

    def __init__(
        self,
        root: str,
        split: str | None = None,
        add_inverse_edge: bool | None = None,
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder, which holds `raw` and `split`.
            split: folder in `split`. Default: the only one.
            add_inverse_edge: also turn each edge around. Default: as `ogb` does for
                this name.
            symmetrize: add the reverse edges that are missing, as most models for
                ogbn-arxiv do. Default: no.
            row_normalize: divide each node's features by the sum. Default: no.
        """
        self.root = local_path("dataset.root", root)
        self.split = split
        self.add_inverse_edge = add_inverse_edge
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def in_pieces(self) -> GraphPieces:
        return OgbPieces(self)

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = Graph.from_ogb(self.root, split=self.split, add_inverse_edge=self.add_inverse_edge)
        return finished(graph, self.symmetrize, self.row_normalize)
