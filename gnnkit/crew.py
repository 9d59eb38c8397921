"""Processes that do the passes over a graph together, on one disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Crew(ABC):
    """Members that share the work of each pass, one pass after the other.

    Either one process leads and starts the others for each pass, or all members run the
    same program and make the same calls.
    """

    def __init__(self, size: int, *, leads: bool = True) -> None:
        """Keeps the number of members, and whether this process is the leader."""
        self.size, self.leads = size, leads

    @abstractmethod
    def share(self, work: Callable[[int], Any]) -> list[Any]:
        """Calls `work(member)` for each member, and returns the results in this order.

        Results are plain data for JSON. Raises the error of the member that failed, and
        ends the others.
        """

    def lead(self, work: Callable[[], T]) -> T:
        """Calls `work` in the leader alone, and returns the result in all programs.

        The result is plain data for JSON.
        """
        return work()

    def look(self) -> None:  # noqa: B027 - most hear of it by themselves
        """Raises where another member has failed. Called often while a member works."""


class Turns(Crew):
    """Members whose work is done in this process, one after the other."""

    def share(self, work: Callable[[int], Any]) -> list[Any]:
        return [work(member) for member in range(self.size)]


ALONE = Turns(1)
