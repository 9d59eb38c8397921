"""A table of a model's modules."""

from __future__ import annotations

import sys
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import nn

from gnnkit.utils.ranges import MAX_COUNT, whole


class Summary(Callback):
    """Prints the model's modules and their numbers of parameters before training.

    Only the leader prints.
    """

    def __init__(self, depth: int = 2) -> None:
        """Checks the options.

        Args:
            depth: Number of nesting levels to print.
        """
        self.depth = whole("callback.summary.options.depth", depth, 1, MAX_COUNT)

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.is_global_zero:
            print("\n".join(self.lines(module.model)), file=sys.stderr, flush=True)

    def lines(self, model: nn.Module) -> list[str]:
        """Returns a line per module, with its number of trained parameters."""
        modules = [(name, part) for name, part in model.named_modules() if name.count(".") < self.depth]
        rows = [(name or type(model).__name__, type(part).__name__, _count(part)) for name, part in modules]
        width = max(len(name) for name, _, _ in rows)
        kinds = max(len(kind) for _, kind, _ in rows)
        return [f"  {name:<{width}}  {kind:<{kinds}}  {count:>12,}" for name, kind, count in rows]


def _count(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters() if parameter.requires_grad)
