"""No file of a run or of a sweep holds a secret that was typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.__main__ import main
from tests.cases import few

SECRET = "wJalrXUtnFEMI"
RUN = ["strategy=vertex_centric", "workers=2", "comm=threads", "trainer.max_epochs=1", "dataset=saved", "types=ignore"]


@pytest.mark.slow
@pytest.mark.exhaustive
@few("query", ["sig", "X-Amz-Signature", "token", "password"], default=("sig",))
def test_no_file_of_a_run_shows_a_secret(query: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / f"graph?{query}={SECRET}"
    check_graph().save(root)
    data = f"dataset.root='{root}'"
    assert main([*RUN, data, f"output={tmp_path / 'run'}"]) == 0
    assert main([*RUN, data, "-m", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]) == 0
    missing = f"dataset.root='{tmp_path / f'none?{query}={SECRET}'}'"
    assert main([*RUN, missing, f"output={tmp_path / 'none'}"]) == 2
    assert main([*RUN, missing, "-m", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'failed'}"]) == 1
    folders = [tmp_path / name for name in ("run", "sweep", "failed")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"result.json", "config.yaml", "report.html", "overrides.yaml", "results.csv"} <= {
        each.name for each in files
    }
    assert [str(path.relative_to(tmp_path)) for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in "".join(capfd.readouterr())
