"""Sweeps: several jobs, a folder for each, and one table of results.

`plans` lists the jobs of a sweep: all combinations, or Optuna's suggestions. `runner`
runs jobs with a launcher. `table` prints and writes the results, and `page` draws them.
`sweep` implements `gnnkit -m`.
"""
