"""Sweeps: several jobs, a folder for each, and one table of results.

`plans` lists the jobs of a sweep: all combinations, or Optuna's suggestions. `runner`
runs jobs with a launcher. `table` prints and writes the results. `sweep` implements
`gnnkit -m`.
"""

from gnnkit.jobs.sweep.sweep import Command as Command
from gnnkit.jobs.sweep.sweep import run as run
