"""Random graphs, models and configurations: the ranks train as plain torch does.

For as long as you like: `python -m gnnkit.testing.witness --seconds 600`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gnnkit.testing.witness import check_plan
from gnnkit.testing.witness.__main__ import main
from gnnkit.testing.witness.cases import draw
from tests.cases import few


@pytest.mark.slow
@few("seed", range(24), default=[0, 5, 9, 14, 23])
def test_ranks_train_as_plain_torch_does(seed: int) -> None:
    case = draw(Random(seed))
    print(case.words)  # shown where the test fails
    check_plan(case.plan)


@pytest.mark.slow
def test_the_command_counts_cases_and_names_those_that_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_once(plan: Any) -> None:
        assert plan.seed != draw(Random(8)).plan.seed, "epoch 1: logits: 0.5 away from plain torch"

    monkeypatch.setattr("gnnkit.testing.witness.__main__.check_plan", fails_once)
    monkeypatch.setattr("sys.argv", ["witness", "--first", "7", "--cases", "2"])
    assert main() == 1
    out = capsys.readouterr().out
    assert "seed 8: epoch 1: logits: 0.5 away from plain torch" in out
    assert "again: --first 8 --cases 1" in out
    assert out.endswith("2 cases from seed 7 on, 1 failed\n")
