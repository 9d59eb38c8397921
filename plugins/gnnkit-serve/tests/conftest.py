"""Keeps whole runs cheap, and shares finished runs, like the tests of other jobs."""

from tests.farm import finished_run  # noqa: F401
from tests.jobs.conftest import within  # noqa: F401
