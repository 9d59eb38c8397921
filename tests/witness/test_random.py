"""Random graphs, models and configurations: the ranks train as plain torch does.

For as long as you like: `python -m gnnkit_witness --seconds 600`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from gnnkit_testing.ranks import GRIDS
from gnnkit_witness import check_plan

from gnnkit.errors import UserError
from gnnkit.model.gcn import GCN
from gnnkit.testing import check_model, check_witness
from tests.cases import few
from tests.witness.__main__ import main
from tests.witness.cases import draw


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
        assert plan.seed != draw(Random(8)).plan.seed, "epoch 1: logits: 0.5 difference from plain torch"

    monkeypatch.setattr("tests.witness.__main__.check_plan", fails_once)
    monkeypatch.setattr("sys.argv", ["witness", "--first", "7", "--cases", "2"])
    assert main() == 1
    out = capsys.readouterr().out
    assert "seed 8: epoch 1: logits: 0.5 difference from plain torch" in out
    assert "again: --first 8 --cases 1" in out
    assert out.endswith("2 cases from seed 7 on, 1 failed\n")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnkit_testing.witness.is_installed", lambda: False)
    monkeypatch.setattr("gnnkit_testing.model.is_installed", lambda: False)


MISSING = "the package gnnkit-witness is not installed: pip install gnnkit-witness"


@pytest.mark.usefixtures("not_installed")
def test_without_the_package_the_check_says_how_to_install_it() -> None:
    with pytest.raises(UserError, match=MISSING):
        check_witness(GCN)


@pytest.mark.slow
@pytest.mark.usefixtures("not_installed")
def test_without_the_package_a_model_is_checked_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="check_model does not compare with plain torch: pip install gnnkit-witness"):
        check_model(GCN, GRIDS[:1])
