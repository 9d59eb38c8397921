"""Trees of scikit-learn's histogram gradient boosting as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEATURE, _THRESHOLD, _MISSING_LEFT, _LEFT, _RIGHT, _VALUE = range(6)
NODE_FIELDS = 6  # numbers of a tree's node. A leaf has no left child: 0, the root's number
_CELLS = 1 << 20  # rows times trees evaluated at once, which take some 100 MB


def pack(nodes: Any, dtype: torch.dtype) -> Tensor:  # [num_nodes, NODE_FIELDS]
    """Converts the structured array `TreePredictor.nodes` of scikit-learn.

    Thresholds are rounded down to `dtype`. Values of this type are then on the same
    side of the threshold as they are in float64.
    """
    inner = nodes["is_leaf"] == 0
    names = ("feature_idx", "num_threshold", "missing_go_to_left", "left", "right")
    fields = [np.where(inner, nodes[name], 0).astype(np.float64) for name in names]
    exact = torch.from_numpy(np.column_stack([*fields, nodes["value"]]))
    packed = exact.to(dtype)
    thresholds, above = packed[:, _THRESHOLD], packed[:, _THRESHOLD].double() > exact[:, _THRESHOLD]
    lower = torch.nextafter(thresholds, thresholds.new_tensor(-torch.inf))
    packed[:, _THRESHOLD] = torch.where(above, lower, thresholds)
    return packed


def sum_trees(forest: Tensor, rows: Tensor) -> Tensor:  # [num_rows, num_outputs] float64
    """Sums the trees' values by output.

    Args:
        forest: [num_trees, num_outputs, num_nodes, NODE_FIELDS], from `pack`.
        rows: [num_rows, width] columns, in the forest's dtype. NaN: an empty cell.
    """
    num_trees, num_outputs, num_nodes, _ = forest.shape
    nodes, size = forest.reshape(-1, NODE_FIELDS), num_trees * num_outputs
    roots = num_nodes * torch.arange(size, device=forest.device)
    children = nodes[:, [_LEFT, _RIGHT]].long() + roots.repeat_interleave(num_nodes)[:, None]
    sums = [
        nodes[_leaves(nodes, children, roots, part), _VALUE].double().view(len(part), num_trees, num_outputs).sum(1)
        for part in torch.split(rows, max(_CELLS // max(size, 1), 1))
    ]
    return torch.cat(sums)


def _leaves(nodes: Tensor, children: Tensor, roots: Tensor, rows: Tensor) -> Tensor:  # [num_rows * num_trees]
    """Returns each row's leaf in each tree, descending all trees level by level."""
    place, row = roots.repeat(len(rows)), torch.arange(len(rows), device=rows.device).repeat_interleave(len(roots))
    inner = nodes[:, _LEFT] > 0
    moving = torch.nonzero(inner[place])[:, 0]
    while len(moving):
        here = nodes[place[moving]]
        values = rows[row[moving], here[:, _FEATURE].long()]
        is_left = torch.where(values.isnan(), here[:, _MISSING_LEFT] > 0, values <= here[:, _THRESHOLD])
        place[moving] = children[place[moving], (~is_left).long()]
        moving = moving[inner[place[moving]]]
    return place
