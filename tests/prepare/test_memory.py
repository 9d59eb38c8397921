"""Data that do not fit into memory end in one error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gnnkit_formats.npz import Npz

from gnnkit.__main__ import main
from gnnkit.graph import Graph


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate 3.73 GiB")])
def test_data_beyond_the_memory_end_in_one_error(
    error: MemoryError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(self: Npz) -> Graph:
        raise error

    monkeypatch.setattr(Npz, "load", load)
    np.savez(tmp_path / "g.npz", indptr=[0, 0])
    keys = ["job=init", "init.minutes=0", "dataset=npz", f"dataset.root={tmp_path / 'g.npz'}"]
    assert main([*keys, f"output={tmp_path / 'out'}"]) == 2
    assert f"does not fit into memory ({str(error) or 'an allocation failed'}): import it" in capfd.readouterr().err
