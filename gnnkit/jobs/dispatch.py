"""Starts the selected job.

Torch is imported only for jobs that need it, and Lightning only for training. Both are
imported once before the ranks fork, and Lightning while the data are prepared.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from gnnkit.config import EXPERIMENT, key_of, of_option
from gnnkit.config.settings import AUTO
from gnnkit.jobs.lock import apply_permissions
from gnnkit.jobs.notebook import shows_bar
from gnnkit.jobs.order import Order
from gnnkit.launch.environment import count_call
from gnnkit.launch.phases import begin
from gnnkit.result.result import Result

if TYPE_CHECKING:
    from gnnkit.config.settings import Choice
    from gnnkit.jobs.job import Job

_MODULES = ("numpy.ma", "numpy.random", "torch.utils.tensorboard", "gnnkit.jobs.train")


def start(order: Order) -> Result:
    """Does the job and prints the result. A run's folder holds `result.json`.

    Returns the result on the leader. Other externally started ranks return one without
    figures.
    """
    begin(silent=shows_bar(order))
    if _implies_task(order):
        order = replace(order, settings=replace(order.settings, implies_task=True))
    job = _job(order)
    if not (order.is_leader or job.on_ranks):
        return Result(job.name, {})
    _check_unread(order)
    if job.on_ranks and order.settings.started is not None:
        count_call()
    with apply_permissions(order.settings.permissions):
        return job.start(order)


def _job(order: Order) -> Job:
    return cast("type[Job]", order.settings.job)()


def _implies_task(order: Order) -> bool:
    """Returns whether the user has left the task of a new model at its default."""
    settings, keys = order.settings, {*map(key_of, order.overrides)}
    is_new = not settings.job.reads_checkpoint and settings.trainer.resume is None
    return is_new and bool(keys) and not order.options and keys.isdisjoint(("task", EXPERIMENT))


def check(order: Order) -> Order:
    """Raises `UserError` if the job cannot do the order."""
    _check_unread(order)
    return _job(order).check(order)


def _check_unread(order: Order) -> None:
    """Checks the keys of plugins that the job may not read, such as `model.hidden`.

    A job that trains, or reads a trained run, constructs these plugins itself.
    """
    settings = order.settings
    if settings.job.trains or settings.job.reads_checkpoint:
        return
    if _is_configured(settings.model):
        order.source.trial()
    if settings.strategy.name != AUTO and _is_configured(settings.strategy):
        settings.create_strategy()
    for choice in (settings.task, settings.sync, settings.sampler):
        if choice is not None and _is_configured(choice):
            choice.create()


def _is_configured(choice: Choice) -> bool:
    """Returns whether a key of the plugin differs from its default."""
    defaults = of_option(choice.kind, choice.name)
    return any(key not in defaults or value != defaults[key] for key, value in choice.arguments.items())


def preload(order: Order) -> None:
    """Imports everything that the job's ranks import, before processes fork."""
    _job(order).preload(order)


def import_for_training() -> None:
    """Imports the modules that training ranks need, once for all forked ranks."""
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if (files := sys.modules.get("lightning.fabric.utilities.cloud_io")) is not None:
        # Lightning would import s3fs to learn that a local file is not in S3.
        setattr(files, "module_available", sys.modules.__contains__)  # noqa: B010
