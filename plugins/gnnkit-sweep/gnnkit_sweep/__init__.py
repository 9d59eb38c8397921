"""Sweeps: several jobs, a folder for each, and one table of results.

`plans` lists the jobs of a sweep: all combinations, or Optuna's suggestions. `runner`
runs jobs with a launcher and records them. `sweep` implements `gnnkit -m`, and
`schemes` implements `job=compare`. gnnkit-report draws their page.
"""
