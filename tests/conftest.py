"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from gnnkit.dataset.npz import Npz
from gnnkit.graph import Graph

# A shell that starts the tests in the background makes them, and all that they start, deaf to Ctrl-C, which is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests start many interpreters: without its byte code on disk, each of them would compile Lightning anew, for 10 seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("gnnkit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("gnnkit")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real graphs: GNNKIT_TEST_DATA, else `shared/data` beside the checkout or above it."""
    parents = Path(__file__).resolve().parents
    candidates = (
        [Path(value)] if (value := os.environ.get("GNNKIT_TEST_DATA")) else [p / "shared/data" for p in parents]
    )
    for folder in candidates:
        if (folder / "cora.npz").is_file():
            return folder
    pytest.skip("needs real graphs: set GNNKIT_TEST_DATA to a folder with cora.npz")


@pytest.fixture(scope="session")
def planetoid(data_folder: Path) -> Callable[[str], Graph]:
    """Loads one of the real graphs by name, with row-normalised features: `planetoid("cora")`."""
    return lambda name: Npz(root=str(data_folder / f"{name}.npz"), row_normalize=True).load()
