"""The launcher of ranks, and whether ranks were started before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit import plugins
from gnnkit.config import of_option
from gnnkit.config.settings.choice import Choice
from gnnkit.config.settings.values import AUTO
from gnnkit.errors import UserError
from gnnkit.ranges import shown

if TYPE_CHECKING:
    from gnnkit.launch.environment import StartedRank
    from gnnkit.launcher import Launcher


def _asked(choice: Choice) -> list[Choice]:
    """Returns the launcher, or all that launcher=auto asks."""
    if choice.name != AUTO:
        return [choice]
    names, known = choice.arguments["ask"], plugins.names("launcher")
    if not isinstance(names, list) or not names or any(name not in known for name in names):
        raise UserError(f"launcher.ask={shown(names)} must be a list of launchers, there are: {', '.join(known)}")
    return [Choice("launcher", name, {}) for name in names]


def started_of(choice: Choice) -> StartedRank | None:
    """Returns this process's rank, where a launcher finds one.

    Raises `UserError` where ranks were started, and the launcher would start others.
    """
    from gnnkit.launch.environment import started_rank

    for candidate in _asked(choice):
        launcher: Launcher = candidate.create()
        if (started := launcher.started()) is not None:
            return started
    if (other := started_rank()) is not None:
        raise UserError(
            f"launcher={choice.name}: this is rank {other.rank} of {other.world_size} that were started before, leave the "
            "launcher out"
        )
    return None


def that_suits(choice: Choice, comm: str, in_one_process: bool, beside: bool) -> Choice:
    """Returns the first launcher that suits, of those that launcher=auto asks.

    Args:
        choice: The section. Another launcher stands for the usual ones.
        comm: Name of the communicator.
        in_one_process: Whether all ranks are threads of one process.
        beside: Whether to leave out launchers that have started the ranks before.
    """
    auto = choice if choice.name == AUTO else Choice("launcher", AUTO, {"ask": of_option("launcher", AUTO)["ask"]})
    for candidate in _asked(auto):
        launcher: Launcher = candidate.create()
        if launcher.suits(in_one_process=in_one_process) and not (beside and launcher.started() is not None):
            return candidate
    raise UserError(f"launcher.ask={shown(auto.arguments['ask'])}: none of these starts the ranks of comm={comm} here")


def launcher_for(choice: Choice, what: str) -> Launcher:
    """Makes a launcher. Raises `UserError` where the launcher does not start `what`.

    Args:
        choice: The launcher.
        what: ranks or jobs.
    """
    launcher: Launcher = choice.create()
    if what not in launcher.starts:
        usual = "add -m to run a sweep, or leave the launcher out" if what == "ranks" else "choose another launcher"
        raise UserError(f"launcher={choice.name} starts {' and '.join(launcher.starts)}, not {what}: {usual}")
    launcher.check(what)
    return launcher
