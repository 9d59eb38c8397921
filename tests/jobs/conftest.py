"""Keeps whole runs cheap. A module that tests processes overrides `within`."""

from collections.abc import Iterator

import pytest
from gnnkit_plan import trial_steps

from gnnkit.config.settings import ranks
from tests.farm import finished_run  # noqa: F401
from tests.runs import within_process


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a single worker one thread. A second one costs more than it brings."""
    monkeypatch.setattr(ranks, "num_cores", lambda: 1)


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets trials measure a single epoch of each layout."""
    monkeypatch.setattr(trial_steps, "EPOCHS", 2)


@pytest.fixture(scope="module", autouse=True)
def within() -> Iterator[None]:
    with within_process():
        yield
