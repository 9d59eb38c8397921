"""Sweeps: several jobs, a folder for each, and one table of results.

`plans` says which jobs: all combinations, or what Optuna chooses. `runner` runs jobs by
a launcher. `table` shows and writes the results. `sweep` puts these together.
"""

from gnnkit.jobs.sweep.sweep import Command as Command
from gnnkit.jobs.sweep.sweep import run as run
