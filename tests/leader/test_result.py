"""What a run hands back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gnnkit
from gnnkit.leader.result import Result


def test_the_folder_of_a_result_is_the_leaders(tmp_path: Path) -> None:
    assert Result("train", {}, run_folder=tmp_path).folder == tmp_path
    with pytest.raises(gnnkit.UserError, match=r"^the run folder is the leader's: read the result of rank 0"):
        Result("train", {}).folder  # noqa: B018


def test_a_program_may_name_the_class_of_results() -> None:
    assert gnnkit.Result is Result
    with pytest.raises(AttributeError, match="has no attribute 'Results'"):
        gnnkit.Results  # noqa: B018
    light = "import gnnkit, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0
