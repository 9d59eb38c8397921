"""The code of each job.

Imports torch where a job needs torch, and Lightning where a job trains. Both are
imported once, before ranks are forked, and Lightning while the data are prepared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit import config
from gnnkit.errors import UserError
from gnnkit.launcher import RANKS
from gnnkit.leader.result import Result
from gnnkit.ranges import one_of
from gnnkit.settings import AUTO, Choice, Settings, launcher_for, settle, with_choice

if TYPE_CHECKING:
    from torch import nn

    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given, ModelSource
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.launch.environment import StartedRank
    from gnnkit.leader.cut import Needs
    from gnnkit.model.program import Program
    from gnnkit.sampler import Sampler
    from gnnkit.strategy import ExecutionStrategy
    from gnnkit.sync import GradientSync
    from gnnkit.task import Task

TRAINED = ("predict", "test")
DEFAULT_SAMPLER = "neighbor"  # of strategies that draw and bring none


def check(settings: Settings, graph: Graph | None = None, model: Given = None) -> Settings:
    """Raises `UserError` for plugins and arguments that do not fit.

    Makes every plugin that the job reads once, before anything is started. So each
    constructor checks the arguments.

    Args:
        settings: The configuration.
        graph: Instead of the data set.
        model: Instead of the configured model.

    Returns:
        The settings, with the default sampler if the strategy draws and none is chosen.
    """
    store = settings.dataset.create().store_folder if graph is None else None
    if store is not None and settings.job.name == "partition":
        raise UserError(f"dataset.root={store} is cut already: job=partition reads the data set itself")
    if settings.partition.nodes.name != AUTO:
        settings.partition.nodes.create()
    if settings.launcher.name != AUTO:
        launcher_for(settings.launcher, RANKS)
    if settings.job.name == "partition" and not settings.is_open:
        return settings
    if settings.strategy.name == AUTO:
        return _check_open(settings, graph, model)
    return _check_parts(settings, model)


def _check_open(settings: Settings, graph: Graph | None, model: Given) -> Settings:
    """Checks each strategy that `strategy=auto` may lead to.

    Raises the `UserError` of the first where all are refused.

    Args:
        settings: The configuration.
        graph: Instead of the data set.
        model: Instead of the configured model.

    Returns:
        The settings. With the one strategy that is not refused, if there is one only.
    """
    from gnnkit.jobs import decide

    fit: list[Settings] = []
    refused: list[UserError] = []
    for each in decide.possible(settings):
        try:
            fit.append(check(each, graph, model))
        except UserError as error:
            refused.append(error)
    if not fit:
        raise refused[0]
    if not refused:
        return settings
    note = f"strategy=auto takes {fit[0].strategy.name}, as another is refused: {refused[0]}"
    return replace(fit[0], notes=(*fit[0].notes, note))


def done(settings: Settings, folder: str | Path | None, graph: Graph | None) -> Result | None:
    """Returns the result of the same job, where the run folder holds it already.

    Args:
        settings: The configuration, from `check`.
        folder: The run folder, or None for the key `output`.
        graph: Instead of the data set.
    """
    named = settings.output if folder is None else folder
    if settings.job.name != "partition" or settings.on_exists != "refuse" or named is None:
        return None
    from gnnkit.jobs.partition import unchanged

    run_folder = Path(named).absolute()
    found = unchanged(settings, run_folder, graph)
    return None if found is None else replace(found, run_folder=run_folder)


def _check_parts(settings: Settings, model: Given) -> Settings:
    """Checks the parts of the ranks' work, for one strategy.

    Args:
        settings: The configuration.
        model: Instead of the configured model.

    Returns:
        The settings, with a sampler if the strategy draws.
    """
    from gnnkit.jobs import inputs, lost
    from gnnkit.jobs.models import ModelSource
    from gnnkit.model.unchanged import adapted

    settings.create_launcher()
    sync: GradientSync = settings.sync.create()
    task: Task = settings.task.create()
    _check_trainer(settings, sync, task)
    strategy: ExecutionStrategy = settings.create_strategy()
    source = ModelSource(settings.model, model)
    tried = _try_model(source) if model is None else adapted(model)
    num_layers = getattr(tried, "num_layers", None)
    settings = _with_sampler(settings, strategy, num_layers)
    sampler: Sampler | None = None if settings.sampler is None else settings.sampler.create()
    if source.trains:
        _check_training(settings, tried, strategy, sync, task, sampler)
    else:
        _check_iterated(settings, source, strategy)
    _check_companions(settings, source)
    _check_grid(settings, strategy)
    inputs.check(settings, source, strategy, sync)
    if settings.leader.rebalance:
        from gnnkit.jobs import relief

        relief.check(settings, strategy, sync, task)
    if settings.job.trains and source.trains and sync.on_lost == "continue":
        lost.check(settings, strategy, task)
    return settings


def _check_training(
    settings: Settings,
    model: object,
    strategy: ExecutionStrategy,
    sync: GradientSync,
    task: Task,
    sampler: Sampler | None,
) -> None:
    """Raises `UserError` for parts that do not train this model together.

    Args:
        settings: The configuration.
        model: The model, or None where the model is not known yet.
        strategy: The configured strategy.
        sync: The configured synchronisation.
        task: The configured task.
        sampler: The configured sampler, or None.
    """
    from gnnkit.jobs import models, outputs

    task.check(strategy, sampler)
    models.check(settings, strategy, model)
    outputs.check(settings, model)
    _check_accumulate(settings, strategy, sync)
    if isinstance(num_layers := getattr(model, "num_layers", None), int):
        strategy.check(sampler, num_layers)
    if settings.trainer.resume is not None:
        from gnnkit.training import resume

        resume.load(settings.trainer.resume)  # the ranks read it again


def _check_iterated(settings: Settings, source: ModelSource, strategy: ExecutionStrategy) -> None:
    """Raises `UserError` for a job or a strategy that iterates no program."""
    from gnnkit.jobs import iterate

    if settings.job.reads_checkpoint:
        raise UserError(f"job={settings.job}: model={source.name} is iterated, and has no trained parameters")
    iterate.check(settings, strategy)


def _check_grid(settings: Settings, strategy: ExecutionStrategy) -> None:
    """Raises `UserError` for a grid that the strategy does not go with."""
    if (strategy.reads_graph or strategy.one_column or strategy.fetches) and settings.partition.grid != "1d":
        raise UserError(
            f"partition.grid={settings.partition.grid}: strategy={settings.strategy.name} has no process grid, use 1d"
        )


def _check_trainer(settings: Settings, sync: GradientSync, task: Task) -> None:
    """Raises `UserError` for keys of the trainer that the synchronisation refuses."""
    if settings.trainer.monitor is not None:
        _check_monitor(settings.trainer.monitor, settings, sync, task)
    if settings.trainer.clip_norm is not None and not sync.steps_here:
        raise UserError(
            f"trainer.clip_norm={settings.trainer.clip_norm}: with sync={settings.sync.name} servers step, each with "
            "some of the parameters: use sync=all_reduce, or leave the key out"
        )


def _check_accumulate(settings: Settings, strategy: ExecutionStrategy, sync: GradientSync) -> None:
    """Raises `UserError` where batches cannot be added up to one step.

    Args:
        settings: The configuration.
        strategy: The configured strategy.
        sync: The configured synchronisation.
    """
    if settings.trainer.accumulate == 1:
        return
    why = None
    if strategy.full_graph:
        why = f"strategy={settings.strategy.name} has one batch an epoch"
    elif strategy.drifts or strategy.keeps_state or not strategy.only_synchronises:
        why = f"strategy={settings.strategy.name} with these options takes steps of its own between two batches"
    elif not sync.lockstep or sync.on_lost == "continue":
        why = f"sync={settings.sync.name} with these options has ranks that do not step together"
    elif settings.embedding is not None:
        why = "inputs=learned updates the rows of each batch"
    if why is not None:
        raise UserError(f"trainer.accumulate={settings.trainer.accumulate}: {why}, use trainer.accumulate=1")


def _check_companions(settings: Settings, source: ModelSource) -> None:
    """Raises `UserError` for loggers and callbacks that the job cannot have."""
    if settings.companions and not source.trains:
        raise UserError(f"{settings.companions[0]}: model={source.name} is iterated, not trained: leave it out")
    if not settings.job.trains:
        return
    for choice in settings.logger:
        choice.create().check()
    if settings.callback:
        from gnnkit import callback

        for choice in settings.callback:
            callback.check(choice.name, choice.create())


def _check_monitor(name: str, settings: Settings, sync: GradientSync, task: Task) -> None:
    """Raises `UserError` for a value that the run does not look at.

    Args:
        name: The value of `trainer.monitor`.
        settings: The configuration.
        sync: The configured synchronisation.
        task: The configured task.
    """
    from gnnkit.training.monitor import LOSS

    one_of("trainer.monitor", name, (LOSS, *(each for each in task.names if each.startswith("val_"))))
    if name == LOSS and not sync.lockstep:
        raise UserError(
            f"trainer.monitor={LOSS} needs workers that step together, sync={settings.sync.name} has none: "
            f"choose {task.progress}"
        )


def _with_sampler(settings: Settings, strategy: ExecutionStrategy, num_layers: object) -> Settings:
    """Brings the default sampler where the strategy draws and none was chosen.

    Raises `UserError` for a sampler that the strategy does not read.

    Args:
        settings: The configuration.
        strategy: The configured strategy.
        num_layers: Layers of the model, each of which gets a fanout. Not a number where
            the layers are not known yet.
    """
    if settings.sampler is not None and not strategy.samples:
        raise UserError(
            f"sampler={settings.sampler.name}: strategy={settings.strategy.name} draws nothing, leave the sampler out"
        )
    if settings.sampler is not None or not strategy.samples:
        return settings
    default = settle(config.compose([f"strategy={settings.strategy.name}", f"sampler={DEFAULT_SAMPLER}"])).sampler
    assert default is not None
    if isinstance(num_layers, int):
        default = replace(default, arguments={**default.arguments, "fanouts": _fanouts(default, num_layers)})
    return with_choice(settings, default)


def _fanouts(sampler: Choice, num_layers: int) -> list[int]:
    """Returns one fanout for each layer, repeating the last of the sampler."""
    fanouts: list[int] = list(sampler.arguments["fanouts"])
    return [fanouts[min(hop, len(fanouts) - 1)] for hop in range(num_layers)]


def _try_model(source: ModelSource) -> nn.Module | Program | None:
    """Makes the configured model, without memory for parameters.

    The widths of the data are not known yet, so the model is made for other widths.
    Raises `UserError` for errors that name a key of the model. Returns None after any
    other error, because the widths may be the cause. The ranks make the model again.
    """
    import torch

    from gnnkit.jobs.models import Widths

    source.choice.check(extra=("in_features", "num_classes", "edge_width", "num_relations"))
    widths = Widths(in_features=16, num_classes=16, edge_width=16, num_relations=2)
    try:
        with torch.device("meta"):
            return source.make_model(widths, 0) if source.trains else source.make_program()
    except UserError as error:
        if str(error).startswith(tuple(f"model.{key}=" for key in source.choice.arguments)):
            raise
    except Exception:
        return None
    return None


def run(
    settings: Settings, folder: Path | None, started: StartedRank | None, graph: Graph | None, model: Given
) -> Result:
    """Does the job.

    Args:
        settings: The configuration, from `check`.
        folder: The run folder, on the leader.
        started: This rank, where ranks were started from outside.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    if settings.job.name == "plan":
        from gnnkit.jobs.plan import plan

        assert folder is not None
        return plan(settings, folder, graph, model)

    def decided(meanwhile: Callable[[], None] = lambda: None) -> Settings:
        if not settings.is_open:
            return settings
        from gnnkit.jobs import decide
        from gnnkit.launch.phases import phase

        assert folder is not None
        phase("choosing the layout")
        return check(decide.decide(settings, folder, graph, model, meanwhile), graph, model)

    if settings.job.name == "partition":
        from gnnkit.jobs.partition import partition

        assert folder is not None
        return partition(settings, decided(), folder, graph)
    from gnnkit.jobs.join import join
    from gnnkit.jobs.models import ModelSource
    from gnnkit.jobs.run import run_ranks

    work = functools.partial(_work, settings.job.name, ModelSource(settings.model, model).trains)
    if started is not None:
        return join(work(), functools.partial(_needs, model), decided, settings, folder, started, graph, model)
    assert folder is not None
    chosen = decided()
    return run_ranks(work, _needs(model, chosen), chosen, folder, graph, model)


def preload(settings: Settings) -> None:
    """Imports all that the job's ranks will import, for processes to be forked."""
    if settings.job.name in ("train", "verify", *TRAINED):
        from gnnkit.jobs.models import ModelSource

        _work(settings.job.name, ModelSource(settings.model, None).trains)


def _needs(model: Given, settings: Settings) -> Needs:
    """Says what the ranks read.

    Args:
        model: Instead of the configured model.
        settings: The configuration, without any `auto`.
    """
    from gnnkit.jobs import inputs
    from gnnkit.jobs.models import ModelSource
    from gnnkit.leader.cut import Needs

    source = ModelSource(settings.model, model)
    strategy: ExecutionStrategy = settings.create_strategy()
    return Needs(
        trains=source.trains and settings.job.needs_labels,
        graph=strategy.reads_graph and source.trains,
        reference=settings.job.name == "verify",
        features=not strategy.fetches,
        sparse=inputs.reads_sparse(settings, source, strategy),
        owned_edges=strategy.one_column or strategy.fetches,
        recut=settings.leader.rebalance and strategy.relief == "nodes",
        inputs=source.trains,
    )


def _work(job: str, trains: bool) -> RankWork:
    """Imports the work of one rank.

    Args:
        job: The job.
        trains: Whether the model is trained. Otherwise the model is iterated.
    """
    if job in TRAINED:
        from gnnkit.jobs.predict import predict

        return predict
    if job == "train" and not trains:
        from gnnkit.jobs.iterate import run_program

        return run_program
    if job == "train":
        import torch.utils.tensorboard  # noqa: F401 - the leader's logger would import it after the fork

        from gnnkit.jobs.train import train

        return train
    from gnnkit.jobs import verify

    return verify.verify if trains else verify.verify_program
