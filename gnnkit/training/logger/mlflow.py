"""MLflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.training.logger.base import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


_folders: set[str] = set()  # run folders of this process. MLflow stores the last one in the environment


class MLflow(RunLogger):
    """Writes curves and settings to MLflow.

    Choose this logger to compare runs in MLflow, on a server or in a folder.
    """

    module, package = "mlflow", "mlflow"

    def __init__(self, experiment: str = "gnnkit", run_name: str | None = None) -> None:
        """Stores the keys. MLFLOW_TRACKING_URI names a server or folder.

        Args:
            experiment: Name of the experiment.
            run_name: Name of the run. If None, the run folder's name.
        """
        self.experiment, self.run_name = experiment, run_name

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import MLFlowLogger

        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        uri = "" if tracking_uri in _folders else tracking_uri
        if not uri:
            uri = (folder / "mlflow").as_uri()
            _folders.add(uri)
        if uri.startswith("file:"):  # must be allowed explicitly since version 3.7
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        return MLFlowLogger(self.experiment, self.run_name or folder.name, uri)
