"""What the launching process shows while ranks train: a bar in a notebook, a page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gnnkit.jobs.notebook import Bar, shows_bar
from gnnkit.jobs.order import Order


@contextlib.contextmanager
def following(order: Order) -> Iterator[Callable[[], None]]:
    """Gives what is to be called a few times a second while the ranks work.

    Args:
        order: What was asked. The leader's has the run folder.
    """
    settings = order.settings
    with contextlib.ExitStack() as held:
        if settings.serves_report and order.is_leader:
            from gnnkit.jobs.live import served

            held.enter_context(served(order))
        if not shows_bar(order):
            yield lambda: None
            return
        bar = Bar(settings, order.run_folder)
        yield bar.look
        bar.show()
