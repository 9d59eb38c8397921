"""The plugin that a section of the configuration selects."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnnkit import plugins
from gnnkit.config.settings.fields import expect_keys
from gnnkit.config.settings.values import AUTO
from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

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

    def create(self, **extra: Any) -> Any:
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
