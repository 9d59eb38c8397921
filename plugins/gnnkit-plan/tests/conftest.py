"""Keeps whole runs cheap. A module that tests processes overrides `within`."""

from tests.jobs.conftest import finished_run, one_core, short_trials, within  # noqa: F401
