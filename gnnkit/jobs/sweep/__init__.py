"""Sweeps and comparisons: several jobs, a folder for each, and one table of results.

`plans` lists the jobs of a sweep: all combinations, or Optuna's suggestions. `runner`
runs jobs with a launcher. `table` prints and writes the results. `sweep` implements
`gnnkit -m`, and `compare` implements job=compare, with one row per training scheme
(`scheme_table`).
"""

from gnnkit.jobs.sweep.compare import compare as compare
from gnnkit.jobs.sweep.sweep import Command as Command
from gnnkit.jobs.sweep.sweep import run as run
