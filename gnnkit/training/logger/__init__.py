"""Loggers for the scalars of a run, one file each."""

from gnnkit.training.logger.base import ExistingLogger as ExistingLogger
from gnnkit.training.logger.base import Loggers as Loggers
from gnnkit.training.logger.base import RunLogger as RunLogger
