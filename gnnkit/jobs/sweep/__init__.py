"""Sweeps and comparisons: several jobs, a folder for each, and one table of results.

`plans` lists the jobs of a sweep: all combinations, or what Optuna chooses. `runner`
runs jobs by a launcher. `table` prints and writes the results. `sweep` is `gnnkit -m`,
and `compare` is job=compare: training schemes (`schemes`), and a table with a row for
each of them (`scheme_table`).
"""

from gnnkit.jobs.sweep.compare import compare as compare
from gnnkit.jobs.sweep.sweep import Command as Command
from gnnkit.jobs.sweep.sweep import run as run
