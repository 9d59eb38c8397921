"""The contract of loggers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from lightning.pytorch.loggers import Logger

from gnnkit.training.logger import RunLogger
from gnnkit_testing.arguments import check_maker


def check_logger(make: Callable[[], RunLogger]) -> None:
    """Checks a logger in the way that a run's leader uses it, in a new folder.

    `check` must accept this machine. `make` must return a Lightning logger that accepts
    nested settings, scalars with slashes in their names, and scalars after `finalize`.

    Examples:
        >>> from gnnkit.testing import check_logger
        >>> from gnnkit.training.logger import Csv
        >>> check_logger(Csv)
    """
    check_maker(make, RunLogger)
    maker = make()
    maker.check()
    with tempfile.TemporaryDirectory() as folder:
        logger = maker.make(Path(folder))
        assert isinstance(logger, Logger), f"make gives {type(logger).__name__}, no logger of lightning.pytorch"
        logger.log_hyperparams({"seed": 0, "model": {"name": "gcn", "hidden": 16}, "write": ["predictions"]})
        for step in range(3):
            logger.log_metrics({"train_loss": 1.0 / (step + 1), "seconds/compute": 0.5}, step=step)
        logger.save()
        logger.finalize("success")
        logger.log_metrics({"test_accuracy": 0.5}, step=3)
        logger.finalize("success")
        maker.close(logger)
