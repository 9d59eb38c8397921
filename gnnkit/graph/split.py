"""Splits: train, validation and test nodes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils import checks
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import real, shown


class Split(IntEnum):
    """The part of the split that a node belongs to: one value of `Graph.split`.

    The loss reads TRAIN nodes. The best epoch, early stopping and decision thresholds
    depend on VAL nodes, and TEST nodes are only measured. NONE nodes pass messages and
    are predicted, but they are neither trained on nor measured.

    Examples:
        >>> from gnnkit.graph import Split
        >>> Split.of(["train", "val", "none"], num_nodes=3)
        array([1, 2, 0], dtype=int8)
    """

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3

    @staticmethod
    def of(values: npt.ArrayLike, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
        """Converts names or codes to values of `Graph.split`.

        Names are train, val, test, none and the empty string. Codes are members of
        `Split` or their numbers. Data sets often number train as 0, so numbers that use
        nodes without any in train are rejected, unless they are int8, the dtype of
        `Graph.split`. Raises `UserError` with the position of an unknown name or code.

        Args:
            values: [num_nodes] names or codes.
            num_nodes: Expected number of entries.
        """
        dense = checks.array("split", values)
        if dense.dtype.kind == "U":
            return _parse_names(dense, num_nodes)
        if dense.dtype == np.bool_:
            raise UserError("split is a mask, expected names or codes: convert masks with Split.of_masks")
        codes = checks.integers("split", dense, num_nodes)
        checks.check_range("split", codes, 0, len(Split))
        if codes.dtype != np.int8 and codes.any() and not (codes == Split.TRAIN).any():
            meaning = ", ".join(f"{code} {code.name}" for code in Split)
            raise UserError(f"split has no train nodes: {meaning} (allowed for int8)")
        return np.ascontiguousarray(codes, np.int8)

    @staticmethod
    def of_masks(train: npt.ArrayLike, val: npt.ArrayLike, test: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Converts three masks to values of `Graph.split`.

        Raises `UserError` for a node in two masks, and for masks of different shapes.

        Args:
            train: [num_nodes] bool.
            val: [num_nodes] bool.
            test: [num_nodes] bool.

        Examples:
            >>> from gnnkit.graph import Split
            >>> Split.of_masks([True, False], [False, True], [False, False])
            array([1, 2], dtype=int8)
        """
        masks = [checks.array(f"{name} mask", mask) for name, mask in zip(SPLITS, (train, val, test), strict=True)]
        for name, mask in zip(SPLITS, masks, strict=True):
            if mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1:
                shape = list(masks[0].shape) if masks[0].ndim == 1 else "[num_nodes]"
                raise UserError(f"{name} mask has dtype {mask.dtype}, shape {list(mask.shape)}, expected bool, {shape}")
        twice = np.flatnonzero(np.sum(masks, axis=0, dtype=np.int8) > 1)
        if len(twice):
            raise UserError(f"node {twice[0]} is in more than one of the train, val and test masks")
        return np.select(masks, list(SPLITS.values()), Split.NONE).astype(np.int8)


SPLITS = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST}  # the parts in use
SPLIT_NAMES = {**SPLITS, "none": Split.NONE, "": Split.NONE}


def _parse_names(names: Array, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
    if names.shape != (num_nodes,):
        raise UserError(f"split has shape {list(names.shape)}, expected [{num_nodes}]")
    words, word = np.unique(names, return_inverse=True)
    codes = np.array([SPLIT_NAMES.get(str(name), -1) for name in words], np.int8)
    split = codes[word.reshape(-1)] if len(words) else np.empty(0, np.int8)
    bad = np.flatnonzero(split < 0)
    if len(bad):
        raise UserError(f"split[{bad[0]}] = {str(names[bad[0]])!r} is none of train, val, test, none")
    return split


def read_shares(name: str, values: Any) -> tuple[float, float, float]:
    """Reads the fractions of nodes in train, val and test.

    Args:
        name: Argument or configuration key, for the message.
        values: Three numbers from 0 to 1, the first above 0, with a sum of at most 1.
    """
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != 3:
        raise UserError(f"{name}={shown(values)} must be three shares of nodes, such as [0.6,0.2,0.2]")
    train, val, test = (real(f"{name}[{place}]", value, 0, 1) for place, value in enumerate(values))
    if train == 0 or train + val + test > 1 + 1e-9:
        raise UserError(f"{name}={shown(list(values))} must train on some nodes and add up to at most 1")
    return train, val, test


def random_split(
    is_labelled: npt.NDArray[np.bool_],
    shares: Sequence[float],
    seed: int,
    classes: npt.NDArray[np.integer[Any]] | None = None,
) -> npt.NDArray[np.int8]:
    """Draws a random split. Unlabelled nodes get NONE.

    Args:
        is_labelled: [num_nodes] mask of the labelled nodes.
        shares: Fractions of the labelled nodes in train, val and test. The rest get
            NONE.
        classes: [num_nodes] class of each labelled node. Each class is then split by
            the shares, up to one node (a stratified split).
    """
    fractions = read_shares("split", shares)
    order = np.random.default_rng(seed % 2**64).permutation(np.flatnonzero(is_labelled))
    if classes is not None:
        order = _spread(order, classes[order])
    ends = [min(round(len(order) * sum(fractions[: part + 1])), len(order)) for part in range(3)]
    split = np.zeros(len(is_labelled), np.int8)
    for value, nodes in zip(SPLITS.values(), np.split(order, ends), strict=False):
        split[nodes] = value
    return split


def _spread(order: npt.NDArray[np.int64], classes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Reorders nodes so that those of each class are evenly spaced.

    The i-th of a class's n nodes, in the given order, is placed at (i + 1/2) / n.
    """
    by_class = np.argsort(classes, kind="stable")
    _, starts, counts = np.unique(classes[by_class], return_index=True, return_counts=True)
    place = np.empty(len(order))
    place[by_class] = (np.arange(len(order)) - np.repeat(starts, counts) + 0.5) / np.repeat(counts, counts)
    return order[np.argsort(place, kind="stable")]
