"""The jobs of the command line, one file each."""

from gnnkit.jobs.start import start as start
from gnnkit.jobs.start import to_yaml as to_yaml
