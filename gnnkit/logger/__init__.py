"""Loggers for the scalars of a run, one file each."""

from gnnkit.logger.base import ExistingLogger as ExistingLogger
from gnnkit.logger.base import RunLogger as RunLogger
