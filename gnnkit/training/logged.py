"""Values that a user's model logs, as figures over the rows of all ranks."""

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
    """A value of one rank, or of several steps or ranks together."""

    value: float
    weight: float  # rows of the batch: the weight in a mean. A value of weight 0 counts where no other does
    reduce: str  # a key of `REDUCTIONS`
    prog_bar: bool
    keys: Mapping[str, Any]  # further arguments of Lightning's `log`, plain values

    def joined(self, others: Iterable[Logged]) -> Logged:
        """Returns this value together with others of the same name."""
        values = [self, *others]
        counted = [each for each in values if each.weight > 0] or values
        weights = [each.weight or 1.0 for each in counted]
        numbers = [each.value for each in counted]
        if self.reduce == "mean":
            value = sum(x * weight for x, weight in zip(numbers, weights, strict=True)) / sum(weights)
        elif self.reduce == "sum":
            value = sum(numbers)
        else:  # NaN, which min and max leave out or not, by its place
            value = math.nan if any(map(math.isnan, numbers)) else {"min": min, "max": max}[self.reduce](numbers)
        return replace(self, value=value, weight=sum(each.weight for each in values))


def reduction(name: str, reduce_fx: Any) -> str:
    """Returns the name of a reduction. Raises `UserError` for an unsupported one.

    Args:
        name: Of the value.
        reduce_fx: As in Lightning's `log`: a name, or a function of torch.
    """
    reduce: str = getattr(reduce_fx, "__name__", reduce_fx)
    if reduce not in REDUCTIONS:
        raise UserError(f"self.log({name!r}, reduce_fx={reduce_fx!r}) must be mean, sum, min or max")
    return reduce


def over_ranks(own: Mapping[str, Logged], comm: Communicator) -> dict[str, Logged]:
    """Returns the values of all ranks together, equal on all ranks. Collective.

    A rank need not have all names: one that has no rows may leave out its `log`.

    Args:
        own: The values of this rank, by name.
        comm: The ranks.
    """
    if comm.world_size == 1:
        return dict(own)
    fields = ("value", "weight", "reduce", "prog_bar", "keys")
    text = json.dumps({name: [getattr(each, field) for field in fields] for name, each in own.items()}).encode()
    parts = comm.gather(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(comm.device))
    ranks = comm.share([json.loads(bytes(each.tolist())) for each in parts if len(each)])  # a lost rank has nothing
    found: dict[str, list[Logged]] = {}
    for values in ranks:
        for name, row in values.items():
            found.setdefault(name, []).append(Logged(*row))
    return {name: first.joined(others) for name, (first, *others) in found.items()}


class EpochFigures(Callback):
    """The callback that gives other callbacks the figures of all ranks' steps.

    Stands before these, which look at the end of the epoch.
    """

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if isinstance(module.model, L.LightningModule):
            module.publish_steps()
