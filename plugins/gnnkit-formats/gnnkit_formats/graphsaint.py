"""GraphSAINT data sets: Flickr, Yelp, Reddit, AmazonProducts, and others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnkit.dataset.base import Dataset, blame, finished, sources_by_row
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Split
from gnnkit.graph.labels import settle_labels
from gnnkit.utils.documents import Json, read_object
from gnnkit.utils.ranges import local_path, shown
from gnnkit.utils.storage import Array, read_npy
from gnnkit_formats.npz import Arrays

_MAX_LABELS = 1 << 32  # bytes of class_map.json, which may list all classes per node
_ROLES = {"tr": Split.TRAIN, "va": Split.VAL, "te": Split.TEST}


class GraphSaint(Dataset):
    """A GraphSAINT folder (Zeng et al., ICLR 2020).

    `adj_full.npz` is a SciPy CSR matrix, where row u lists the targets of u's edges.
    `feats.npy` has one row per node. `class_map.json` holds each node's class, or a
    list with 0 and 1. `role.json` lists the nodes of `tr`, `va` and `te`.
    """

    def __init__(self, root: str, symmetrize: bool = False, row_normalize: bool = False) -> None:
        """Creates the data set.

        Args:
            root: The folder.
            symmetrize: Add missing reverse edges. Default: no.
            row_normalize: Divide each node's features by their sum. Default: no.
        """
        self.root = local_path("dataset.root", root)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            if not self.root.is_dir():
                raise UserError("is not a folder")
            csc = self._edges()
            labels, split = settle_labels(self.labels(csc.num_nodes)), self.split(csc.num_nodes)
            graph = Graph(csc, read_npy(self.root / "feats.npy"), labels, split)
        return finished(graph, self.symmetrize, self.row_normalize)

    def _edges(self) -> CSC:
        with blame("adj_full.npz"), Arrays(self.root / "adj_full.npz") as fields:
            self.check_form(fields)
            return sources_by_row(
                fields["indptr"], fields["indices"], fields.optional("data"), fields.optional("shape")
            )

    @staticmethod
    def check_form(fields: Arrays) -> None:
        """Raises `UserError` for a matrix that is not in CSR format."""
        if (form := fields["format"].item()) != b"csr":
            raise UserError(f"format is {shown(form)}, expected csr")

    def labels(self, num_nodes: int) -> Array:
        """Reads each node's class, or its list with 0 and 1."""
        classes = self._json("class_map.json")
        with blame("class_map.json"):
            labels = [classes.get(str(node)) for node in range(num_nodes)]
            if len(classes) != num_nodes or None in labels:
                missing = labels.index(None) if None in labels else num_nodes
                raise UserError(f"has classes of {len(classes)} nodes, expected 0..{num_nodes - 1}: node {missing}")
            try:
                return np.array(labels)
            except (ValueError, OverflowError) as error:
                raise UserError("the lists of classes differ in length") from error

    def split(self, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
        """Reads the split from `role.json`."""
        roles = self._json("role.json")
        split = np.zeros(num_nodes, np.int8)
        with blame("role.json"):
            for name, value in _ROLES.items():
                nodes = np.asarray(roles.get(name, []))
                bad = nodes.dtype.kind not in "iu" and nodes.size
                if bad or nodes.ndim != 1 or np.any((nodes < 0) | (nodes >= num_nodes)):
                    raise UserError(f"{name} must list nodes 0..{num_nodes - 1}")
                if np.any(split[nodes.astype(np.int64)]):
                    raise UserError(f"{name} lists a node that already has another role")
                split[nodes.astype(np.int64)] = value
        return split

    def _json(self, name: str) -> Json:
        return read_object(self.root / name, name, _MAX_LABELS)
