"""What the model of a run reads: relations of edges, and rows of nodes."""

from __future__ import annotations

from gnnkit.errors import UserError
from gnnkit.jobs.models import ModelSource
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy
from gnnkit.sync import GradientSync


def check(settings: Settings, source: ModelSource, strategy: ExecutionStrategy, sync: GradientSync) -> None:
    """Raises `UserError` for a run that cannot have the edge types or the input rows.

    Args:
        settings: The configuration.
        source: The maker of the model.
        strategy: The configured strategy.
        sync: The configured synchronisation.
    """
    if source.reads_relations and strategy.refuses_relations is not None:
        raise UserError(
            f"model={source.name} tells relations of edges apart, and strategy={settings.strategy.name} "
            f"{strategy.refuses_relations}: choose strategy=vertex_centric with exchange=exact or quantized and "
            "strategy.local_iterations=1"
        )
    if settings.inputs != "features" and not source.trains:
        raise UserError(
            f"inputs={settings.inputs}: model={source.name} is iterated and learns nothing, leave the key out"
        )
    if settings.input_rows == "sparse":
        dense = _dense_readers(settings, source, strategy)
        if dense:
            raise UserError(f"input_rows=sparse: {dense[0]} reads dense rows: use input_rows=auto")
    if settings.inputs != "learned":
        return
    if settings.job.reads_plan:
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


def reads_sparse(
    settings: Settings, source: ModelSource, strategy: ExecutionStrategy | type[ExecutionStrategy]
) -> bool:
    """Says whether ranks may keep features without zeros."""
    return not _dense_readers(settings, source, strategy)


def _dense_readers(
    settings: Settings, source: ModelSource, strategy: ExecutionStrategy | type[ExecutionStrategy]
) -> list[str]:
    """Lists the parts of a run that read dense rows."""
    readers = {
        f"strategy={settings.strategy.name}": strategy.reads_sparse,
        f"model={source.name}": source.reads_sparse,
        f"comm={settings.comm.name}": settings.comm.name != "nccl",  # products of sparse rows are native
    }
    return [name for name, sparse in readers.items() if not sparse]
