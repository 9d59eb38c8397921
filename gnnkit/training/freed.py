"""Memory freed by the first steps."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from gnnkit.launch.allocator import FIRST_STEPS, give_back_freed_memory


class FreedMemory(Callback):
    """Returns memory freed by the first steps and evaluations to the system.

    The first steps allocate small, permanent objects between large, temporary arrays.
    Later arrays do not fit the gaps, so the heap would grow to twice the arrays of a
    step. From then on, freed memory is kept and reused.
    """

    def __init__(self) -> None:
        self._steps, self._evaluations = FIRST_STEPS, FIRST_STEPS  # remaining numbers

    def on_before_backward(self, *_: object) -> None:
        if self._steps > 0:
            give_back_freed_memory()

    def on_train_batch_end(self, *_: object) -> None:
        self._steps = _one_less(self._steps)

    def on_validation_end(self, *_: object) -> None:
        self._evaluations = _one_less(self._evaluations)


def _one_less(count: int) -> int:
    if count > 0:
        give_back_freed_memory()
    return count - 1
