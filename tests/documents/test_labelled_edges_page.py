"""The code of the page on labelled edges runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runs import within_process

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/labelled-edges.md"
pytestmark = pytest.mark.reads("docs/howto/labelled-edges.md", "gnnkit", "conf", "tests/runs.py")


@pytest.mark.slow
@pytest.mark.long("trains 50 epochs, as the page does")
@pytest.mark.exhaustive
def test_the_blocks_of_the_page_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with within_process():
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            exec(block, names)
    run, outputs = names["run"], names["outputs"]
    assert run["test_roc_auc"] > 0.9  # type: ignore[index]
    assert outputs.shape == (2000, 2)  # type: ignore[attr-defined]
