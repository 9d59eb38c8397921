"""One launcher of ranks from outside for all modules."""

from collections.abc import Iterator

import pytest

from tests.launch.outside import Outside


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    launcher = Outside()
    yield launcher
    launcher.close()
