"""Trees of scikit-learn's histogram gradient boosting as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEATURE, _THRESHOLD, _MISSING_LEFT, _LEFT, _RIGHT, _VALUE = range(6)
NODE_FIELDS = 6  # numbers of a tree's node. A leaf has no left child: 0, the root's number
TREES_AT_ONCE = 10
_MOST_ENTRIES = 16  # pieces of rows, of training and evaluations
_CELLS = 1 << 20  # rows times trees evaluated at once, which take some 100 MB


def pack(nodes: Any, dtype: torch.dtype, columns: Any) -> Tensor:  # [num_nodes, NODE_FIELDS]
    """Converts the structured array `TreePredictor.nodes` of scikit-learn.

    `columns` are the places of the tree's columns among those of the model.

    Thresholds are rounded down to `dtype`. Values of this type are then on the same
    side of the threshold as they are in float64.
    """
    inner = nodes["is_leaf"] == 0
    names = ("feature_idx", "num_threshold", "missing_go_to_left", "left", "right")
    fields = [np.where(inner, nodes[name], 0).astype(np.float64) for name in names]
    fields[_FEATURE] = np.where(inner, columns[nodes["feature_idx"]], 0)
    exact = torch.from_numpy(np.column_stack([*fields, nodes["value"]]))
    table = exact.to(dtype)
    thresholds, above = table[:, _THRESHOLD], table[:, _THRESHOLD].double() > exact[:, _THRESHOLD]
    lower = torch.nextafter(thresholds, thresholds.new_tensor(-torch.inf))
    table[:, _THRESHOLD] = torch.where(above, lower, thresholds)
    return table


def sum_trees(forest: Tensor, rows: Tensor, sums: Tensor | None = None) -> Tensor:  # [num_rows, num_outputs] float64
    """Adds the trees' values by output, `TREES_AT_ONCE` trees after the other.

    Args:
        forest: [num_trees, num_outputs, num_nodes, NODE_FIELDS], from `pack`.
        rows: [num_rows, width] columns, in the forest's dtype. NaN: an empty cell.
        sums: Sums of earlier trees. Default: 0.
    """
    if sums is None:
        sums = torch.zeros(len(rows), forest.shape[1], dtype=torch.float64, device=rows.device)
    for trees in torch.split(forest, TREES_AT_ONCE) if len(forest) else ():
        sums = sums + _sum_few(trees, rows)
    return sums


def _sum_few(forest: Tensor, rows: Tensor) -> Tensor:  # [num_rows, num_outputs] float64
    num_trees, num_outputs, num_nodes, _ = forest.shape
    nodes, size = forest.reshape(-1, NODE_FIELDS), num_trees * num_outputs
    roots = num_nodes * torch.arange(size, device=forest.device)
    children = nodes[:, [_LEFT, _RIGHT]].long() + roots.repeat_interleave(num_nodes)[:, None]
    parts = [
        nodes[_leaves(nodes, children, roots, part), _VALUE].double().view(len(part), num_trees, num_outputs).sum(1)
        for part in torch.split(rows, max(_CELLS // max(size, 1), 1))
    ]
    return torch.cat(parts)


class GrowingSums:
    """Like `sum_trees`, for a forest that gains trees: evaluates the new ones only.

    The sums are bitwise equal to those of `sum_trees` if `TREES_AT_ONCE` divides the
    number of trees before each call.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Tensor, Tensor, Tensor]] = []  # forest, rows and their sums, the newest last

    def __call__(self, forest: Tensor, rows: Tensor) -> Tensor:
        entry = next((item for item in self._entries if _continues(forest, rows, *item[:2])), None)
        if entry is None:
            sums = sum_trees(forest, rows)
        else:
            self._entries = [item for item in self._entries if item is not entry]
            sums = sum_trees(forest[len(entry[0]) :], rows, entry[2])
        self._entries = [*self._entries, (forest.clone(), rows, sums)][-_MOST_ENTRIES:]
        return sums


def _continues(forest: Tensor, rows: Tensor, earlier: Tensor, earlier_rows: Tensor) -> bool:
    """Returns whether the rows are equal, and the forest begins with an earlier one."""
    return torch.equal(earlier_rows, rows) and torch.equal(earlier, forest[: len(earlier)])


def _leaves(nodes: Tensor, children: Tensor, roots: Tensor, rows: Tensor) -> Tensor:  # [num_rows * num_trees]
    """Returns each row's leaf in each tree, descending all trees level by level."""
    place, row = roots.repeat(len(rows)), torch.arange(len(rows), device=rows.device).repeat_interleave(len(roots))
    inner = nodes[:, _LEFT] > 0
    moving = torch.nonzero(inner[place])[:, 0]
    while len(moving):
        node = nodes[place[moving]]
        values = rows[row[moving], node[:, _FEATURE].long()]
        is_left = torch.where(values.isnan(), node[:, _MISSING_LEFT] > 0, values <= node[:, _THRESHOLD])
        place[moving] = children[place[moving], (~is_left).long()]
        moving = moving[inner[place[moving]]]
    return place
