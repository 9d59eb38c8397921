"""Runs whose input rows are no features of the data set."""

from __future__ import annotations

from gnnkit.errors import UserError
from gnnkit.jobs.models import ModelSource
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy
from gnnkit.sync import GradientSync


def check(settings: Settings, source: ModelSource, strategy: ExecutionStrategy, sync: GradientSync) -> None:
    """Raises `UserError` for a run that cannot have the input rows of `inputs`.

    Args:
        settings: The configuration.
        source: The maker of the model.
        strategy: The configured strategy.
        sync: The configured synchronisation.
    """
    if settings.inputs != "features" and not source.trains:
        raise UserError(
            f"inputs={settings.inputs}: model={source.name} is iterated and learns nothing, leave the key out"
        )
    if settings.inputs != "learned":
        return
    if settings.job == "plan":
        raise UserError(
            "inputs=learned: job=plan counts no gradients of input rows: plan with inputs=features or inputs=degree"
        )
    if strategy.refuses_learned is not None:
        raise UserError(f"inputs=learned: strategy={settings.strategy.name} {strategy.refuses_learned}")
    if not (sync.exact and sync.lockstep and sync.collective):
        raise UserError(
            f"inputs=learned: sync={settings.sync.name} with these options does not make one step from the exact gradient "
            "of all workers, which the owner of a learned row adds up: use sync=all_reduce or sync=leader"
        )
    if sync.on_lost == "continue":
        raise UserError("inputs=learned: the rows of a lost worker would be lost too: use sync.on_lost=stop")
