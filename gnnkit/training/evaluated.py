"""The argument of a user's `validation_step` and `test_step`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from gnnkit.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """A split's labelled nodes on one rank, in a single batch.

    Outputs are exact, computed from all neighbours, with any training strategy.
    """

    logits: Tensor  # [k, width] model outputs
    labels: Tensor  # [k, ...] in the form of `Graph.labels`
    total: int  # sum of k over all ranks

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"batch.{name}: validation_step and test_step get batch.logits, batch.labels and batch.total, as the model "
            "has computed the outputs from all neighbours already"
        )
