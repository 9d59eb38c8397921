"""The rules of the tests find what breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUSY = """
import pytest, time

def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_long():
    busy(1.3)

@pytest.mark.slow
def test_long_and_marked():
    busy(1.3)

def test_short():
    busy(0.1)
"""
TURNS = """
import os, pathlib, pytest, time

def stay(seconds):
    here = pathlib.Path(os.environ["HERE"]) / str(os.getpid())
    here.touch()
    time.sleep(seconds)
    beside = len(list(here.parent.iterdir()))
    here.unlink()
    return beside

@pytest.mark.parametrize("turn", range(6))
def test_with_others(turn):
    stay(0.05)

@pytest.mark.alone
@pytest.mark.parametrize("turn", range(6))
def test_alone(turn):
    assert stay(0.05) == 1
"""
PROJECT = """
[pytest]
markers =
    slow
    alone
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makefile(".ini", pytest=PROJECT)
    return pytester


@pytest.mark.slow
def test_a_long_test_that_is_not_marked_is_named(project: pytest.Pytester) -> None:
    project.makepyfile(BUSY)
    done = project.runpytest_subprocess("-p", "tests.rules", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=3, warnings=1)
    done.stdout.fnmatch_lines(["*::test_long", "*takes * s of a processor*"])


@pytest.mark.slow
def test_nothing_runs_beside_a_test_that_is_alone(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project.makepyfile(TURNS)
    monkeypatch.setenv("HERE", str(tmp_path))
    options = ("-n", "3", "--dist", "each", "-p", "no:cacheprovider")
    project.runpytest_subprocess("-p", "tests.rules", *options).assert_outcomes(passed=36)
    beside = project.runpytest_subprocess(*options).parseoutcomes()
    assert beside["failed"] > 0, "the test sees what runs beside"
