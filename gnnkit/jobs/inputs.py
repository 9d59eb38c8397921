"""Whether ranks may keep features without zeros."""

from __future__ import annotations

from gnnkit.config.settings import Settings
from gnnkit.jobs.models import ModelSource
from gnnkit.strategy import ExecutionStrategy, SparseRows


def reads_sparse(settings: Settings, source: ModelSource, strategy: ExecutionStrategy) -> bool:
    """Says whether ranks may keep features without zeros."""
    return not dense_readers(settings, source, strategy)


def dense_readers(settings: Settings, source: ModelSource, strategy: ExecutionStrategy) -> list[str]:
    """Lists the parts of a run that read dense rows."""
    readers = {
        f"strategy={settings.strategy.name}": not strategy.lacks(SparseRows),
        f"model={source.name}": source.reads_sparse,
        f"features.place={settings.features.place}": settings.features.place != "disk",
        f"comm={settings.comm.name}": settings.comm.name != "nccl",  # products of sparse rows are native
    }
    return [name for name, sparse in readers.items() if not sparse]
