"""Reads the data sets of DGL's GraphBolt."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit_formats.pieces import GraphPieces, read_whole
from gnnkit_import.readers import name_list

from gnnkit.dataset.base import Dataset
from gnnkit.graph import Graph
from gnnkit.utils.ranges import local_path
from gnnkit_graphbolt.pieces import GraphBoltPieces


class GraphBolt(Dataset):
    """A folder of GraphBolt's `OnDiskDataset`, before preprocessing.

    `metadata.yaml` lists files of edges, features and node sets. The graph has one node
    type and one edge type. Edges are an .npy [2, num_edges], or a CSV of sources and
    destinations without a header. Features in `feature_data` are .npy files,
    concatenated in order, for nodes and for edges. A task's sets contain `seeds` and
    `labels` as .npy and define the split. Other nodes are unlabelled.

    Torch files (.pt) contain pickled objects and are rejected.
    """

    def __init__(
        self,
        root: str,
        task: str | None = None,
        ignore: Sequence[str] = (),
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Checks the options.

        Args:
            root: Folder that contains `metadata.yaml`.
            task: Name of the task whose sets are read. Default: the only one.
            ignore: Names of `feature_data` to omit. Default: none.
            symmetrize: Whether to add missing reverse edges. Default: False.
            row_normalize: Whether to divide each node's features by their sum. Default:
                False.
        """
        self.root = local_path("dataset.root", root)
        self.task = task
        self.ignore = name_list("dataset.ignore", ignore)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def in_pieces(self) -> GraphPieces:
        return GraphBoltPieces(self)

    def load(self) -> Graph:
        return read_whole(self.in_pieces())
