"""Which code does which job. Imports torch and Lightning, once, before ranks are forked."""

from __future__ import annotations

from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import iterate, train, verify
from gnnkit.jobs.models import Given, ModelSource
from gnnkit.jobs.partition import partition
from gnnkit.jobs.plan import plan
from gnnkit.jobs.run import RankWork, join, run_ranks
from gnnkit.launch.environment import StartedRank
from gnnkit.leader.cut import Needs
from gnnkit.leader.result import Result
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy

_WORK: dict[tuple[str, bool], RankWork] = {  # by job, and whether the model is trained
    ("train", True): train.train,
    ("train", False): iterate.run_program,
    ("verify", True): verify.verify,
    ("verify", False): verify.verify_program,
}


def check(settings: Settings, graph: Graph | None, model: Given) -> None:
    """Raises `UserError` for plugins and arguments that do not fit, before anything is made."""
    choices = [settings.strategy, settings.sync, settings.partition.nodes]
    if graph is None:
        choices.append(settings.dataset)
    for choice in choices:
        choice.check()
    if model is None:
        settings.model.check(extra=("in_features", "num_classes", "edge_width"))
    strategy: ExecutionStrategy = settings.strategy.create()
    settings.sync.create()
    _check_sampler(settings, strategy)
    trains = ModelSource(settings.model, model).trains
    if not trains:
        iterate.check(settings, strategy)
    if strategy.reads_graph and settings.partition.grid != "1d":
        raise UserError(
            f"partition.grid={settings.partition.grid}: strategy={settings.strategy.name} has no process grid, use 1d"
        )


def _check_sampler(settings: Settings, strategy: ExecutionStrategy) -> None:
    name = settings.strategy.name
    if settings.sampler is None:
        if strategy.samples:
            raise UserError(f"sampler is missing: strategy={name} draws, choose one with sampler=NAME")
    elif not strategy.samples:
        raise UserError(f"sampler={settings.sampler.name}: strategy={name} draws nothing, leave the sampler out")
    else:
        settings.sampler.create()


def run(
    settings: Settings, folder: Path | None, started: StartedRank | None, graph: Graph | None, model: Given
) -> Result:
    """Does the job.

    Args:
        settings: The configuration, which `check` has seen.
        folder: The run folder, on the leader.
        started: This rank, where ranks were started from outside.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    if settings.job in ("plan", "partition"):
        assert folder is not None
        return plan(settings, graph, model) if settings.job == "plan" else partition(settings, folder, graph)
    source = ModelSource(settings.model, model)
    strategy: ExecutionStrategy = settings.strategy.create()
    work = _WORK[settings.job, source.trains]
    needs = Needs(source.trains, strategy.reads_graph and source.trains, settings.job == "verify")
    if started is not None:
        return join(work, needs, settings, folder, started, graph, model)
    assert folder is not None
    return run_ranks(work, needs, settings, folder, graph, model)
