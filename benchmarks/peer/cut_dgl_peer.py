"""Edges of a folder, cut by DGL, or made ready for sampling by GraphBolt.

ENV/bin/python cut_dgl_peer.py FOLDER OUTPUT PARTS metis|random|graphbolt
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch


def cut(folder: Path, output: Path, parts: int, method: str) -> None:
    """Reads the arrays, and calls `dgl.distributed.partition_graph`."""
    src, dst = torch.from_numpy(np.load(folder / "edges.npy"))
    features, labels = (np.load(folder / f"{name}.npy") for name in ("features", "labels"))
    graph = dgl.graph((src, dst), num_nodes=len(labels))
    graph.ndata["feat"], graph.ndata["label"] = torch.from_numpy(features), torch.from_numpy(labels)
    dgl.distributed.partition_graph(graph, "graph", parts, str(output), part_method=method)


def graphbolt(folder: Path, output: Path) -> None:
    """Makes the folder that `OnDiskDataset` reads, which prepares it."""
    output.mkdir(parents=True)
    for name in ("edges", "features", "labels"):
        shutil.copy(folder / f"{name}.npy", output / f"{name}.npy")
    nodes = len(np.load(folder / "labels.npy", mmap_mode="r"))
    np.save(output / "train.npy", np.arange(nodes // 2))
    (output / "metadata.yaml").write_text(
        "dataset_name: drawn\n"
        f"graph:\n  nodes: [{{num: {nodes}}}]\n  edges: [{{format: numpy, path: edges.npy}}]\n"
        "feature_data: [{domain: node, name: feat, format: numpy, in_memory: false, path: features.npy}]\n"
        "tasks:\n- name: classes\n  train_set:\n  - data: [{name: seed_nodes, format: numpy, path: train.npy}]\n"
    )
    gb.OnDiskDataset(str(output))


if __name__ == "__main__":
    *paths, number, way = sys.argv[1:]
    if way == "graphbolt":
        graphbolt(Path(paths[0]), Path(paths[1]))
    else:
        cut(Path(paths[0]), Path(paths[1]), int(number), way)
