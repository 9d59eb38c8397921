"""Values logged by a user's model, reduced over all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from gnnkit.comm import Communicator
from gnnkit.errors import UserError

REDUCTIONS = ("mean", "sum", "min", "max")


@dataclass(frozen=True, slots=True)
class Logged:
    """A value of one rank, or reduced over several steps or ranks."""

    value: float
    weight: float  # number of rows, the weight in a mean. Values of weight 0 count only if there is no other
    reduce: str  # a key of `REDUCTIONS`
    prog_bar: bool
    keys: Mapping[str, Any]  # further plain arguments of Lightning's `log`

    def joined(self, others: Iterable[Logged]) -> Logged:
        """Reduces this value and others of the same name."""
        values = [self, *others]
        counted = [logged for logged in values if logged.weight > 0] or values
        weights = [logged.weight or 1.0 for logged in counted]
        numbers = [logged.value for logged in counted]
        if self.reduce == "mean":
            value = sum(x * weight for x, weight in zip(numbers, weights, strict=True)) / sum(weights)
        elif self.reduce == "sum":
            value = sum(numbers)
        else:  # with NaN, the result of min and max depends on the order
            value = math.nan if any(map(math.isnan, numbers)) else {"min": min, "max": max}[self.reduce](numbers)
        return replace(self, value=value, weight=sum(logged.weight for logged in values))


def reduction(name: str, reduce_fx: Any) -> str:
    """Returns the name of a reduction. Raises `UserError` for an unsupported one.

    Args:
        name: Name of the value.
        reduce_fx: As in Lightning's `log`: a name, or a torch function.
    """
    reduce: str = getattr(reduce_fx, "__name__", reduce_fx)
    if reduce not in REDUCTIONS:
        raise UserError(f"self.log({name!r}, reduce_fx={reduce_fx!r}) must be mean, sum, min or max")
    return reduce


def over_ranks(local_values: Mapping[str, Logged], comm: Communicator) -> dict[str, Logged]:
    """Reduces values over all ranks. The result is equal on all ranks. Collective.

    A rank without rows may have skipped a `log` call, so ranks may have different
    names.

    Args:
        local_values: This rank's values by name.
        comm: Connects the ranks.
    """
    if comm.world_size == 1:
        return dict(local_values)
    fields = ("value", "weight", "reduce", "prog_bar", "keys")
    text = json.dumps(
        {name: [getattr(logged, field) for field in fields] for name, logged in local_values.items()}
    ).encode()
    parts = comm.gather(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(comm.device))
    ranks = comm.share([json.loads(bytes(part.tolist())) for part in parts if len(part)])  # a lost rank's is empty
    by_name: dict[str, list[Logged]] = {}
    for values in ranks:
        for name, row in values.items():
            by_name.setdefault(name, []).append(Logged(*row))
    return {name: first.joined(others) for name, (first, *others) in by_name.items()}


class EpochFigures(Callback):
    """Provides metrics of all ranks' steps to other callbacks.

    It must precede the callbacks that read metrics at the end of an epoch.
    """

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if isinstance(module.model, L.LightningModule):
            module.publish_steps()
