"""The use of each node: to train, to validate, to test."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import checks
from gnnkit.checks import Array
from gnnkit.errors import UserError
from gnnkit.ranges import real, shown


class Split(IntEnum):
    """The use of a node: one value of `Graph.split`."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3

    @staticmethod
    def of(values: npt.ArrayLike, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
        """Returns the values of `Graph.split` that names or codes stand for.

        Names are train, val, test, none and the empty string. Codes are members of
        `Split` or numbers of members. Data sets often count train as 0, so numbers that
        use nodes but train on none are refused. Codes of type int8, the type of
        `Graph.split`, may do so. Raises `UserError` with the place of a name or code
        that does not exist.

        Args:
            values: [num_nodes] names or codes.
            num_nodes: number of entries expected.
        """
        given = checks.array("split", values)
        if given.dtype.kind == "U":
            return _named(given, num_nodes)
        if given.dtype == np.bool_:
            raise UserError("split is a mask, expected names or codes: make codes of masks with Split.of_masks")
        codes = checks.integers("split", given, num_nodes)
        checks.check_range("split", codes, 0, len(Split))
        if codes.dtype != np.int8 and codes.any() and not (codes == Split.TRAIN).any():
            meaning = ", ".join(f"{code} {code.name}" for code in Split)
            raise UserError(f"split uses nodes but trains on none: {meaning} (int8 codes may do so)")
        return np.ascontiguousarray(codes, np.int8)

    @staticmethod
    def of_masks(train: npt.ArrayLike, val: npt.ArrayLike, test: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Returns the values of `Graph.split` that three masks stand for.

        Raises `UserError` for a node in two masks, and for masks of unequal shapes.

        Args:
            train: [num_nodes] bool.
            val: [num_nodes] bool.
            test: [num_nodes] bool.
        """
        masks = [checks.array(f"{name} mask", mask) for name, mask in zip(SPLITS, (train, val, test), strict=True)]
        for name, mask in zip(SPLITS, masks, strict=True):
            if mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1:
                expected = list(masks[0].shape) if masks[0].ndim == 1 else "[num_nodes]"
                raise UserError(
                    f"{name} mask has dtype {mask.dtype}, shape {list(mask.shape)}, expected bool, {expected}"
                )
        twice = np.flatnonzero(np.sum(masks, axis=0, dtype=np.int8) > 1)
        if len(twice):
            raise UserError(f"node {twice[0]} is in more than one of the train, val and test masks")
        return np.select(masks, list(SPLITS.values()), Split.NONE).astype(np.int8)


SPLITS = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST}  # the nodes in use
SPLIT_NAMES = {**SPLITS, "none": Split.NONE, "": Split.NONE}


def _named(names: Array, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
    if names.shape != (num_nodes,):
        raise UserError(f"split has shape {list(names.shape)}, expected [{num_nodes}]")
    words, word = np.unique(names, return_inverse=True)
    known = np.array([SPLIT_NAMES.get(str(name), -1) for name in words], np.int8)
    split = known[word.reshape(-1)] if len(words) else np.empty(0, np.int8)
    bad = np.flatnonzero(split < 0)
    if len(bad):
        raise UserError(f"split[{bad[0]}] = {str(names[bad[0]])!r} is none of train, val, test, none")
    return split


def read_shares(name: str, values: Any) -> tuple[float, float, float]:
    """Reads the shares of nodes that train, validate and test.

    Args:
        name: argument or configuration key, for the message.
        values: three numbers from 0 to 1, the first above 0, with a sum of at most 1.
    """
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != 3:
        raise UserError(f"{name}={shown(values)} must be three shares of nodes, such as [0.6,0.2,0.2]")
    train, val, test = (real(f"{name}[{place}]", value, 0, 1) for place, value in enumerate(values))
    if train == 0 or train + val + test > 1 + 1e-9:
        raise UserError(f"{name}={shown(list(values))} must train on some nodes and add up to at most 1")
    return train, val, test


def random_split(labelled: npt.NDArray[np.bool_], shares: Sequence[float], seed: int) -> npt.NDArray[np.int8]:
    """Draws the values of `Graph.split`. Nodes without label get NONE.

    Args:
        labelled: [num_nodes] which nodes have a label.
        shares: of the labelled nodes, for train, val and test. Any beyond are NONE.
        seed: of the draw.
    """
    given = read_shares("split", shares)
    order = np.random.default_rng(seed % 2**64).permutation(np.flatnonzero(labelled))
    ends = [min(round(len(order) * sum(given[: part + 1])), len(order)) for part in range(3)]
    split = np.zeros(len(labelled), np.int8)
    for value, nodes in zip(SPLITS.values(), np.split(order, ends), strict=False):
        split[nodes] = value
    return split
