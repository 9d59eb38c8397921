"""Modules that ranks which train import, brought before ranks are forked."""

from __future__ import annotations

import contextlib
import importlib

# Lightning's loggers import s3fs where it is installed.
_MODULES = ("numpy.ma", "numpy.random", "torch.utils.tensorboard", "gnnkit.jobs.trial_steps", "s3fs")


def import_for_training() -> None:
    """Imports what ranks would import after the fork, each for itself."""
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
