"""The rules of the tests find what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import rules

ROOT = Path(__file__).resolve().parents[1]
PROJECT = """
[pytest]
addopts = -p tests.rules
markers =
    slow
    alone
    exhaustive
    long(reason)
"""
BUSY = """
import pytest, time

def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

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
    assert stay(0.3) == 1
"""
READER = """
import pathlib, pytest

pytestmark = pytest.mark.reads("text", "folder")

def test_text():
    assert pathlib.Path("text").read_text() == "right"

@pytest.mark.slow
def test_folder():
    assert len(list(pathlib.Path("folder").iterdir())) < 4

@pytest.mark.exhaustive
def test_rare():
    pass
"""
LEFT_OUT = "2 tests of inner/test_reader.py left out, *: text, folder"
Outcomes = Callable[..., dict[str, int]]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project that has these rules and no other plugins."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makefile(".ini", pytest=PROJECT)
    return pytester


@pytest.fixture
def outcomes(project: pytest.Pytester) -> Outcomes:
    """Runs the tests of the project. Returns how many have each outcome."""
    return lambda *options: project.runpytest_inprocess(*options).parseoutcomes()


@pytest.fixture
def reader(project: pytest.Pytester) -> pytest.Pytester:
    """A project with a module that reads files, and a module that reads none."""
    for name in ("folder", "elsewhere"):
        (project.mkdir(name) / "file").touch()
    (project.path / "folder/link").symlink_to("../elsewhere")
    (project.path / "text").write_text("right")
    (project.mkdir("inner") / "test_reader.py").write_text(READER)
    project.makepyfile(test_other="def test_other(): pass")
    return project


@pytest.mark.slow
def test_a_long_test_that_is_not_marked_is_named(project: pytest.Pytester) -> None:
    tests = "def test_long(): busy(0.06)\n@pytest.mark.slow\ndef test_marked(): busy(0.06)\ndef test_short(): pass\n"
    project.makepyfile(BUSY + tests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MAX_SECONDS", 0.04)
        done = project.runpytest_inprocess()
    done.assert_outcomes(passed=3, warnings=1)
    done.stdout.fnmatch_lines(["*::test_long", "*takes * s of a processor*"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_nothing_runs_beside_a_test_that_is_alone(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project.makepyfile(TURNS)
    monkeypatch.setenv("HERE", str(tmp_path))
    options = ("-p", "xdist.plugin", "-n", "2", "--dist", "each", "-p", "no:cacheprovider")
    project.runpytest_subprocess(*options).assert_outcomes(passed=24)
    beside = project.runpytest_subprocess("-p", "no:tests.rules", *options).parseoutcomes()
    assert beside["failed"] > 0, "the test sees what runs beside"


@pytest.mark.slow
def test_exhaustive_tests_run_where_they_are_asked_for(project: pytest.Pytester, outcomes: Outcomes) -> None:
    project.makepyfile(
        test_few="import pytest\n@pytest.mark.exhaustive\ndef test_rare(): pass\ndef test_usual(): pass\n"
    )
    assert outcomes() == {"passed": 1, "deselected": 1}
    assert outcomes("--exhaustive") == {"passed": 2}
    assert outcomes("-m", "exhaustive") == {"passed": 1, "deselected": 1}
    assert outcomes("test_few.py") == {"passed": 1, "deselected": 1}
    assert outcomes("test_few.py::test_rare") == {"passed": 1}


@pytest.mark.slow
def test_durations_are_stored_and_a_long_test_without_a_reason_is_named(project: pytest.Pytester) -> None:
    def run() -> pytest.RunResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rules, "LONG", 0.04)
            return project.runpytest_inprocess("--store-durations=seconds", "--exhaustive")

    marked = [
        f"@pytest.mark.{mark}\ndef test_{mark[:4]}(): busy(0.06)\n" for mark in ("long('a reason')", "exhaustive")
    ]
    project.makepyfile("".join([BUSY, "def test_short(): pass\n", *marked]))
    done = run()
    assert done.ret == pytest.ExitCode.OK
    lines = (project.path / "seconds").read_text().splitlines()
    assert [line.split("::")[1] for line in lines[2:]] == ["test_short"]
    assert {line.split("::")[1] for line in lines[:2]} == {"test_long", "test_exha"}
    assert all(float(line.split()[0]) >= 0.05 for line in lines[:2])
    done.stdout.fnmatch_lines(["*seconds of a processor, and by the clock: seconds*", lines[0].strip().join("**")])
    project.makepyfile(test_more=f"{BUSY}def test_without(): busy(0.06)\n")
    done = run()
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["takes over * s of a processor without a reason: test_more.py::test_without"])


@pytest.mark.slow
def test_a_module_is_left_out_while_what_it_reads_stays(reader: pytest.Pytester, outcomes: Outcomes) -> None:
    assert outcomes() == {"passed": 3, "deselected": 1}
    done = reader.runpytest_inprocess()
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines([LEFT_OUT])
    assert outcomes("-m", "not slow") == {"passed": 1}
    done = reader.runpytest_inprocess("test_other.py")
    done.stdout.no_fnmatch_line(LEFT_OUT)
    for asked in (["inner"], ["inner/test_reader.py"]):
        assert outcomes(*asked) == {"passed": 2, "deselected": 1}
    assert outcomes("inner/test_reader.py::test_text") == {"passed": 1}
    assert outcomes("--exhaustive") == {"passed": 4}
    assert outcomes("-k", "text") == {"passed": 1, "deselected": 3}
    assert outcomes() == {"passed": 1}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["text", "folder/file", "folder/new", "elsewhere/file", "inner/test_reader.py"])
def test_a_module_runs_again_once_a_file_changes(path: str, reader: pytest.Pytester, outcomes: Outcomes) -> None:
    outcomes()
    with (reader.path / path).open("a") as file:
        file.write("\n")
    assert outcomes().get("failed", 0) == (path == "text")
    (reader.path / "text").write_text("right")
    assert outcomes()["passed"] == (3 if path == "text" else 1)  # one that failed runs until it passes
    assert outcomes() == {"passed": 1}


@pytest.mark.slow
def test_built_and_hidden_files_change_nothing(reader: pytest.Pytester, outcomes: Outcomes) -> None:
    outcomes()
    for path in ("__pycache__/file.txt", ".hidden/file", "core.so"):
        (reader.path / "folder" / path).parent.mkdir(exist_ok=True)
        (reader.path / "folder" / path).touch()
    assert outcomes() == {"passed": 1}


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-m", "not slow"], ["-k", "text"], ["inner/test_reader.py::test_text"]], ids=str)
def test_a_module_of_which_only_some_tests_ran_runs_again(
    options: list[str], reader: pytest.Pytester, outcomes: Outcomes
) -> None:
    outcomes(*options)
    assert outcomes() == {"passed": 3, "deselected": 1}


@pytest.mark.slow
def test_a_file_that_changes_while_tests_run_counts_as_changed(reader: pytest.Pytester, outcomes: Outcomes) -> None:
    reader.makepyfile(test_other="def test_other(): open('folder/file', 'w').write('new')")
    assert outcomes()["passed"] == 3
    reader.makepyfile(test_other="def test_other(): pass")
    assert outcomes()["passed"] == 3
    assert outcomes()["passed"] == 1


@pytest.mark.slow
def test_a_path_that_does_not_exist_is_refused(reader: pytest.Pytester) -> None:
    (reader.path / "text").unlink()
    done = reader.runpytest_inprocess()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: inner/test_reader.py reads text, which does not exist"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_processes_of_xdist_leave_out_the_same_modules(reader: pytest.Pytester) -> None:
    options = ("-p", "xdist.plugin", "-n", "2")
    reader.runpytest_subprocess(*options).assert_outcomes(passed=3)
    done = reader.runpytest_subprocess(*options)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines([LEFT_OUT])
