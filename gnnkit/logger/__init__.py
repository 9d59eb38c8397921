"""What writes the scalars of a run, one file each."""

from gnnkit.logger.base import Given as Given
from gnnkit.logger.base import RunLogger as RunLogger
