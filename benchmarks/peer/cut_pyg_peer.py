"""Edges of a folder, cut by PyG's `Partitioner`.

ENV/bin/python cut_pyg_peer.py FOLDER OUTPUT PARTS
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.distributed import Partitioner

if __name__ == "__main__":
    folder, output, parts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    edges, features, labels = (
        torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("edges", "features", "labels")
    )
    Partitioner(Data(x=features, edge_index=edges, y=labels), parts, output).generate_partition()
