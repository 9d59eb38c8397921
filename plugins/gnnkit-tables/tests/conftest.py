"""Keeps whole runs cheap."""

from tests.conftest import data_folder, install  # noqa: F401
from tests.jobs.conftest import one_core, within  # noqa: F401
