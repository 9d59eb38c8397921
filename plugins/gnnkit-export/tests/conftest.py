"""Keeps whole runs cheap, like the tests of jobs."""

from tests.jobs.conftest import within  # noqa: F401
