"""Selects the launcher, and detects ranks that were started externally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit import plugins
from gnnkit.config import of_option
from gnnkit.config.settings.choice import Choice
from gnnkit.config.settings.values import AUTO
from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

if TYPE_CHECKING:
    from gnnkit.launch.environment import StartedRank
    from gnnkit.launch.launcher import Launcher


def _candidates(choice: Choice) -> list[Choice]:
    """Returns the launcher, or the candidates of launcher=auto."""
    if choice.name != AUTO:
        return [choice]
    names, options = choice.arguments["ask"], plugins.names("launcher")
    if not isinstance(names, list) or not names or any(name not in options for name in names):
        raise UserError(f"launcher.ask={shown(names)} must be a list of launchers, there are: {', '.join(options)}")
    return [Choice("launcher", name, {}) for name in names]


def started_of(choice: Choice) -> StartedRank | None:
    """Returns this process's rank, if a launcher detects one.

    Raises `UserError` if ranks were started externally, but the launcher would start
    others.
    """
    from gnnkit.launch.environment import started_rank

    for candidate in _candidates(choice):
        launcher: Launcher = candidate.create()
        if (rank := launcher.started()) is not None:
            return rank
    if (external_rank := started_rank()) is not None:
        raise UserError(
            f"launcher={choice.name}: this process is rank {external_rank.rank} of {external_rank.world_size}, which were started externally: leave the "
            "launcher out"
        )
    return None


def find_launcher(choice: Choice, comm: str, in_one_process: bool, additional: bool) -> Choice:
    """Returns the first suitable candidate of launcher=auto.

    Args:
        choice: The section. For another launcher, the default candidates are used.
        comm: The communicator's name.
        in_one_process: Whether all ranks are threads of one process.
        additional: Whether to skip launchers that have already started ranks.
    """
    auto = choice if choice.name == AUTO else Choice("launcher", AUTO, {"ask": of_option("launcher", AUTO)["ask"]})
    for candidate in _candidates(auto):
        launcher: Launcher = candidate.create()
        if launcher.suits(in_one_process=in_one_process) and not (additional and launcher.started() is not None):
            return candidate
    raise UserError(f"launcher.ask={shown(auto.arguments['ask'])}: none of these starts the ranks of comm={comm} here")


def launcher_for(choice: Choice, target: str) -> Launcher:
    """Creates a launcher. Raises `UserError` if it does not start `target`.

    Args:
        target: ranks or jobs.
    """
    launcher: Launcher = choice.create()
    if target not in launcher.starts:
        usual = "add -m to run a sweep, or leave the launcher out" if target == "ranks" else "choose another launcher"
        raise UserError(f"launcher={choice.name} starts {' and '.join(launcher.starts)}, not {target}: {usual}")
    launcher.check(target)
    return launcher
