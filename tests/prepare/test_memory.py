"""Data that do not fit into memory end in one error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

_LIMITED = """
import resource, sys
from gnnkit.__main__ import main
import gnnkit.dataset.edges, gnnkit.dataset.npz, gnnkit.prepare.inputs, gnnkit.jobs.init
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
sys.exit(main(sys.argv[1:]))
"""
_COUNT = 1 << 26  # numbers: 512 MiB of 64 bits


def _npz(folder: Path) -> list[str]:
    np.savez_compressed(folder / "g.npz", indptr=[0, 0], indices=[], x=np.zeros((1, _COUNT)))
    return ["dataset=npz", f"dataset.root={folder / 'g.npz'}"]


def _npy(folder: Path) -> list[str]:
    np.lib.format.open_memmap(folder / "edges.npy", "w+", "<i8", (2, _COUNT)).flush()
    return ["dataset=edges", f"dataset.root={folder}"]


def _parquet(folder: Path) -> list[str]:
    ends = np.zeros(_COUNT, np.int64)
    pa.parquet.write_table(pa.table({"src": ends, "dst": ends}), folder / "edges.parquet")
    return ["dataset=edges", f"dataset.root={folder}"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.parametrize("write", [_npz, _npy, _parquet])
def test_data_beyond_the_memory_end_in_one_error(write: Callable[[Path], list[str]], tmp_path: Path) -> None:
    keys = [*write(tmp_path), "job=init", "init.minutes=0", f"output={tmp_path / 'out'}"]
    ended = subprocess.run([sys.executable, "-c", _LIMITED, *keys], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "does not fit into memory" in ended.stderr
    assert "job=import" in ended.stderr
    assert "Traceback" not in ended.stderr
