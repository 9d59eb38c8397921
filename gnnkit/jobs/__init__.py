"""The jobs of the command line, one file each."""

from gnnkit.jobs.redacted import to_yaml as to_yaml
from gnnkit.jobs.start import start as start
