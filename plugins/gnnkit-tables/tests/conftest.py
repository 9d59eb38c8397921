"""Keeps whole runs cheap."""

from tests.jobs.conftest import one_core, within  # noqa: F401
