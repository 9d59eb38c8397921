"""Processes that share the passes over a graph, on one disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class WorkGroup(ABC):
    """Processes that share the work of each pass, one pass after the other.

    Either one process leads and starts the others for each pass, or all processes run
    the same program and make the same calls.
    """

    def __init__(self, size: int, *, is_leader: bool = True) -> None:
        """Stores the number of processes, and whether this one is the leader."""
        self.size, self.is_leader = size, is_leader

    @abstractmethod
    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Calls `work(rank)` for each rank, and returns the results in rank order.

        Results are plain data for JSON. Raises the error of the process that failed,
        and ends the others.
        """

    def run_on_leader(self, work: Callable[[], T]) -> T:
        """Calls `work` on the leader, and returns the result in all processes.

        The result is plain data for JSON.
        """
        return work()

    def wait(self) -> None:  # noqa: B027 - processes started for each pass have ended by then
        """Waits until all processes call it, for instance before files are removed."""

    def check(self) -> None:  # noqa: B027 - most groups notice failures without it
        """Raises an error if another process has failed. Called often during a pass."""


class SequentialGroup(WorkGroup):
    """Runs the ranks one after the other in this process."""

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        return [work(rank) for rank in range(self.size)]


ALONE = SequentialGroup(1)
