"""Keeps whole runs cheap. A module that tests processes overrides `within`."""

from collections.abc import Iterator

import pytest

from tests.runs import within_process


@pytest.fixture(scope="module", autouse=True)
def within() -> Iterator[None]:
    with within_process():
        yield
