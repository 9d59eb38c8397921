"""The plugin that a section of the configuration selects."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnnkit import plugins
from gnnkit.config import keys, of_option
from gnnkit.config.settings.fields import AUTO, expect_keys
from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank, started_rank
from gnnkit.utils.ranges import one_of, shown

if TYPE_CHECKING:
    from gnnkit.launch.launcher import Launcher

_AUTO_SECTIONS = ("partition", "strategy", "launcher")  # sections that may be AUTO


@dataclass(frozen=True, slots=True)
class Choice:
    """A plugin's name, with its constructor arguments."""

    kind: str
    name: str
    arguments: Mapping[str, Any]
    instance: Any = None  # the plugin itself, if passed from Python

    @property
    def origin(self) -> str:
        """The plugin's entry point and distribution, or "Python" for an object."""
        names = plugins.parts(self.kind, self.name)
        if not set(names) <= set(plugins.names(self.kind)):
            return "Python"
        points = [plugins.find(self.kind, name) for name in names]
        return " and ".join(
            f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist else point.value
            for point in points
        )

    def load(self) -> type[Any]:
        """Imports the plugin's class."""
        return plugins.load(self.kind, self.name)

    def check(self, extra: Collection[str] = ()) -> None:
        """Raises `UserError` for arguments that the constructor does not accept.

        `extra` names the arguments that gnnkit adds.
        """
        plugins.check(self, extra)

    def create(self, **extra: object) -> Any:
        """Creates the plugin. `extra` are arguments that gnnkit adds.

        A plugin passed from Python is copied, because ranks may be threads.
        """
        return plugins.create(self, **extra) if self.instance is None else copy.deepcopy(self.instance)


def choice_of(kind: str, config: Mapping[str, Any]) -> Choice:
    """Returns the plugin that a section names, without importing it."""
    section = config[kind]
    name = plugins.plugin_name(kind, section)
    arguments = plugins.arguments_of(kind, section)
    if name != AUTO or kind not in _AUTO_SECTIONS:
        for part in plugins.parts(kind, name):
            plugins.find(kind, part)
    elif kind == "strategy":
        expect_keys("strategy", arguments, ())
    elif kind == "launcher":
        expect_keys("launcher", arguments, ("ask",))
    return Choice(kind, name, arguments)


def exchange_of(config: Mapping[str, Any]) -> Choice | None:
    """Returns the exchange. Raises `UserError` if it is set under strategy=auto."""
    if config["exchange"] is None:
        return None
    choice = choice_of("exchange", config)
    if config["strategy"].get("name") == AUTO:
        raise UserError(f"exchange={choice.name}: strategy=auto also chooses the exchange: leave it out")
    return choice


def several_of(kind: str, config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Returns a section's plugins, each of which is keyed by its name."""
    for name, section in config[kind].items():
        plugin_name = section.get("name") if isinstance(section, dict) else section
        if not isinstance(section, dict) or plugin_name != name:
            raise UserError(
                f"{kind}.{name}={shown(plugin_name)} must be a section with this name: choose {kind}={name}"
            )
    return tuple(choice_of(kind, {kind: section}) for section in config[kind].values())


def move_task_keys(dataset: Choice, task: Choice) -> tuple[Choice, Choice]:
    """Moves keys of the task that determine the data to the data set's arguments.

    Raises `UserError` if the data set's class does not list them in `of_task`.
    """
    data_arguments = {key: value for key, value in task.arguments.items() if key in plugins.TASK_KEYS}
    if not data_arguments:
        return dataset, task
    reads = dataset.load().of_task if dataset.name in plugins.names("dataset") else ()
    if unread := [key for key in data_arguments if key not in reads]:
        raise UserError(
            f"task.{unread[0]}={shown(data_arguments[unread[0]])}: dataset={dataset.name} has a single task; remove the key, or use "
            "dataset=tables"
        )
    task_arguments = {key: value for key, value in task.arguments.items() if key not in data_arguments}
    return replace(dataset, arguments={**dataset.arguments, **data_arguments}), replace(task, arguments=task_arguments)


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


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The node assignment and the process grid."""

    nodes: Choice  # the partitioner
    grid: str | list[int]  # 1d, 1.5d, 2d, 3d or [rows, cols, slices]
    replication: int | None  # for grid 1.5d
    border: str  # a name in `gnnkit.partition.border`


def partition_of(config: Mapping[str, Any], workers: int) -> PartitionSettings:
    from gnnkit.partition import border, make_grid

    section = config["partition"]
    grid, replication = section["grid"], section["replication"]
    make_grid(grid, workers, replication, key="workers" if config["parts"] is None else "parts")
    if plugins.plugin_name("partition", section) == AUTO:
        _check_auto(section)
    return PartitionSettings(
        choice_of("partition", config), grid, replication, one_of("partition.border", section["border"], border.NAMES)
    )


def _check_auto(section: Mapping[str, object]) -> None:
    """Raises `UserError` for a key that `partition=auto` selects itself."""
    defaults = {key.name: key.value for key in keys.shared_keys("partition")}
    for key, value in section.items():
        if key != "nodes" and value != defaults.get(key):
            raise UserError(f"partition.{key}={shown(value)}: partition=auto chooses this key itself: leave it out")
