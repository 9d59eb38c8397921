"""The program lets waiting threads of OpenMP sleep early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import few

pytestmark = pytest.mark.slow  # starts processes


@pytest.mark.skipif(sys.platform != "linux", reason="torch uses GNU's OpenMP on Linux only")
@few(
    ("chosen", "count"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
    default=1,
)
def test_the_program_shortens_spinning(chosen: dict[str, str], count: str, tmp_path: Path) -> None:
    data = ["dataset=synthetic", "dataset.num_nodes=40", "dataset.num_edges=100"]
    run = ["+strategy=vertex_centric", "workers=1", "trainer.max_epochs=1", "report=false", f"output={tmp_path}/run"]
    usual = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-m", "gnnkit", *data, *run],
        env=usual | {"OMP_DISPLAY_ENV": "verbose"} | chosen,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
