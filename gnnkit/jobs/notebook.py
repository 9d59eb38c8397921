"""Whether a notebook shows a bar during training, and its updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gnnkit.config.settings import in_notebook
from gnnkit.jobs.order import Order
from gnnkit.jobs.pages import is_installed, report
from gnnkit.launch.allocator import without_garbage_collection


@without_garbage_collection()
def shows_bar(order: Order) -> bool:
    """Returns whether this process shows a bar instead of lines. Imports torch."""
    settings = order.settings
    trains = settings.job.trains and order.source.trains
    return in_notebook() and trains and settings.trainer.progress_bar and is_installed()


@contextlib.contextmanager
def following(order: Order) -> Iterator[Callable[[], None]]:
    """Yields a function to call a few times a second while the ranks work.

    Args:
        order: The request, with the run folder on the leader.
    """
    if not shows_bar(order):
        yield lambda: None
        return
    bar = report().notebook_bar(order.settings, order.run_folder)
    yield bar.look
    bar.show()
