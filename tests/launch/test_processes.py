from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.launch import processes
from gnnkit.launch.child import STARTED_AGAIN, forks_differentiate
from gnnkit.launch.launcher import Ranks, builtin
from gnnkit.launch.processes import RankError, launch, run_in_child
from gnnkit.utils.storage import write_atomically
from tests.cases import exhaustive
from tests.waiting import GUARD, NEVER, wait_until


def environment(rank: int, world_size: int) -> dict[str, Any]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return {name: os.environ[name] for name in names}


def meet(rank: int, world_size: int) -> dict[str, Any]:
    """Each rank writes the token into the file of the meeting, and waits for others."""
    path = Path(os.environ["GNNKIT_STORE"])
    with path.open("a") as store:
        store.write(os.environ["GNNKIT_TOKEN"] + "\n")
    while len(heard := path.read_text().split()) < world_size:
        time.sleep(0.01)
    return {"heard": heard}


@pytest.mark.slow
def test_a_crash_in_native_code_says_where_it_was() -> None:
    script = """
        import ctypes
        from gnnkit.launch.processes import launch

        def crash_natively(rank, world_size):
            return {"never": ctypes.string_at(0)}

        launch(crash_natively, 1)
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert "rank 0 was ended by SIGSEGV" in done.stderr
    assert "Segmentation fault" in done.stderr
    assert "in crash_natively" in done.stderr


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_meet_in_a_file_and_have_one_token_of_their_own(start_method: Any) -> None:
    first, second = launch(meet, 2, start_method=start_method), launch(meet, 1)
    tokens = {token for found in first.values() for token in found["heard"]}
    assert len(tokens) == 1
    assert len(*tokens) == 32
    assert tokens != {second[0]["heard"][0]}, "a run has a token of its own"


def print_lines(rank: int, world_size: int) -> dict[str, Any]:
    for _ in range(1000):
        print("line", "of", "rank", rank, "in", "many", "pieces")
    return {}


@pytest.mark.slow
def test_printed_lines_of_ranks_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # as with PYTHONUNBUFFERED
    launch(print_lines, 2)
    reference = [f"line of rank {rank} in many pieces" for rank in (0, 1) for _ in range(1000)]
    assert sorted(capfd.readouterr().out.splitlines()) == reference


@pytest.mark.slow
def test_every_rank_knows_its_place() -> None:
    assert launch(environment, 2)[0] == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }
    assert "MASTER_PORT" not in os.environ


def fail_on(rank: int, action: Callable[[], Any], others: Callable[[], Any] = lambda: time.sleep(NEVER)) -> Any:
    def function(own: int, world_size: int) -> dict[str, Any]:
        (action if own == rank else others)()
        return {}

    return function


def divide() -> None:
    print(1 // 0)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_peer() -> None:
    raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")


def later(action: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: (time.sleep(0.15), action())


def refuse() -> None:
    raise UserError("model.hidden=0 must be positive")


def panic() -> None:
    raise BaseException("a panic of native code")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (divide, "rank 1 failed: ZeroDivisionError"),
        exhaustive((kill, "rank 1 was ended by SIGKILL")),
        exhaustive((lambda: os.kill(os.getpid(), signal.SIGTERM), "rank 1 was ended by SIGTERM")),
        (lambda: sys.exit(0), "rank 1 ended with exit code 0 and no result"),
        exhaustive((lambda: os._exit(7), "rank 1 ended with exit code 7 and no result")),
        (panic, "rank 1 failed: BaseException: a panic"),
    ],
)
def test_the_rank_that_fails_is_named_at_once_and_the_others_are_ended(
    action: Callable[[], Any], expected: str
) -> None:
    with pytest.raises(RankError, match=expected) as caught:
        launch(fail_on(1, action), 3)
    assert "rank 0 was running, in its start" in str(caught.value)


@pytest.mark.slow
def test_the_message_shows_the_ranks_own_traceback() -> None:
    with pytest.raises(RankError, match=r"in divide\n\s+print\(1 // 0\)"):
        launch(fail_on(1, divide), 2)


@pytest.mark.slow
@pytest.mark.parametrize("cause", [exhaustive(kill), divide])
def test_ranks_that_lost_a_peer_are_not_blamed(cause: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for grace in ("GRACE", "GRACE_FOR_CAUSE"):  # all fail, so waiting for them costs nothing
        monkeypatch.setattr(processes, grace, GUARD)
    with pytest.raises(RankError, match=r"(?s)^rank 2 .*rank 0 failed: RuntimeError: Connection closed by peer"):
        launch(fail_on(2, later(cause), others=lose_peer), 3)


@pytest.mark.slow
def test_what_the_user_can_mend_stays_a_user_error() -> None:
    with pytest.raises(UserError, match=r"^model\.hidden=0 must be positive$") as caught:
        launch(fail_on(0, refuse), 2)
    assert isinstance(caught.value.__cause__, RankError)


@pytest.mark.slow
def test_a_rank_that_is_a_thread_is_named() -> None:
    def threads(rank: int, world_size: int) -> dict[str, Any]:
        error = ZeroDivisionError("division by zero")
        error.add_note("on rank 2")
        raise error

    reference = r"^the process of all ranks failed: ZeroDivisionError: division by zero \(on rank 2\)"
    with pytest.raises(RankError, match=reference):
        launch(threads, 1, names=["the process of all ranks"])


@pytest.mark.slow
def test_results_larger_than_a_pipe_come_back() -> None:
    assert len(launch(lambda rank, world_size: {"text": "x" * 2**22}, 2)[0]["text"]) == 2**22


@pytest.mark.slow
def test_results_that_are_not_json_are_an_error_of_the_rank() -> None:
    with pytest.raises(RankError, match="rank 0 failed: TypeError"):
        launch(lambda rank, world_size: {"value": object()}, 1)


@pytest.mark.slow
def test_a_child_returns_its_result_or_its_error() -> None:
    assert run_in_child(divmod, 7, 3) == [2, 1]
    with pytest.raises(UserError, match=r"^model\.hidden=0 must be positive$"):
        run_in_child(refuse)
    with pytest.raises(RuntimeError, match="the process of kill was ended by SIGKILL"):
        run_in_child(kill)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_in_child(divide)


@pytest.mark.slow
def test_work_beside_a_child_is_done_once_while_the_child_works(tmp_path: Path) -> None:
    calls = []

    def beside() -> None:
        calls.append(1)
        (tmp_path / "beside").touch()

    def wait() -> bool:
        wait_until((tmp_path / "beside").exists)
        return True

    assert run_in_child(wait, beside=beside) is True
    assert calls == [1]
    with pytest.raises(UserError, match=r"^model\.hidden=0 must be positive$"):
        run_in_child(refuse, beside=beside)


@pytest.mark.slow
def test_a_child_collects_garbage_whatever_the_launcher_does() -> None:
    gc.disable()
    try:
        assert run_in_child(gc.isenabled) is True
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["an error", exhaustive("SIGTERM")])
def test_work_beside_a_child_that_fails_ends_the_child(ends: str, tmp_path: Path) -> None:
    def beside() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        if ends == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        else:
            raise ImportError("no such module")

    def work() -> None:
        write_atomically(tmp_path / "pid", str(os.getpid()).encode())
        time.sleep(NEVER)

    with pytest.raises(SystemExit if ends == "SIGTERM" else ImportError):
        run_in_child(work, beside=beside)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.slow
def test_ranks_may_use_openmp_after_their_parent_did() -> None:
    """Ranks that are forked from a thread that has used OpenMP would hang."""
    import torch

    def work(rank: int, world_size: int) -> dict[str, Any]:
        return {"sum": float((torch.ones(300_000) * 2).sum())}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert float((torch.ones(300_000) * 2).sum()) == 600_000
        assert launch(work, 2)[0] == {"sum": 600_000}
    finally:
        torch.set_num_threads(before)


def start_program(tmp_path: Path, body: str, world_size: int = 3) -> tuple[subprocess.Popen[str], list[int]]:
    """A program whose ranks run `body`, and the ranks' process ids."""
    program = f"""
        import os, signal, sys, time
        from pathlib import Path
        from gnnkit.launch.processes import launch

        def function(rank, world_size):
            {body}
            (Path({str(tmp_path)!r}) / f"{{rank}}.tmp").write_text(str(os.getpid()))
            os.rename(f"{tmp_path}/{{rank}}.tmp", f"{tmp_path}/{{rank}}")
            time.sleep({NEVER})

        try:
            launch(function, {world_size})
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.exit(130)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    files = [tmp_path / str(rank) for rank in range(world_size)]
    wait_until(lambda: all(file.exists() for file in files), alive=lambda: process.poll() is None)
    return process, [int(file.read_text()) for file in files]


def is_alive(pid: int) -> bool:
    """Whether the process is there, and not a zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pids: Sequence[int]) -> None:
    """Waits until none of the processes is left."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("body", ["pass", exhaustive(STUBBORN)])
@pytest.mark.parametrize(("number", "code"), [exhaustive((signal.SIGINT, 130)), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_process(tmp_path: Path, number: signal.Signals, code: int, body: str) -> None:
    process, pids = start_program(tmp_path, body)
    process.send_signal(number)
    assert process.wait(GUARD) == code
    wait_gone(pids)


@pytest.mark.slow
@needs_proc
def test_ctrl_c_in_a_terminal_reaches_the_group_and_only_the_parent_acts(tmp_path: Path) -> None:
    process, pids = start_program(tmp_path, "pass")
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=GUARD)
    assert process.returncode in (130, -signal.SIGINT)  # the second one may come while Python ends
    assert "KeyboardInterrupt" not in errors
    wait_gone(pids)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("body", ["pass", STUBBORN])
def test_ranks_die_with_their_parent(tmp_path: Path, body: str) -> None:
    process, pids = start_program(tmp_path, body)
    process.kill()
    process.wait(GUARD)
    wait_gone(pids)


@pytest.mark.slow
@needs_proc
def test_a_killed_rank_ends_the_run_at_once(tmp_path: Path) -> None:
    process, pids = start_program(tmp_path, "pass")
    os.kill(pids[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=GUARD)
    assert process.returncode == 1
    assert re.search("rank 1 was ended by SIGKILL", errors)
    wait_gone(pids)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_eight_runs_at_once_do_not_meet() -> None:
    """Each rank hears only from the ranks of the same run."""
    imports = "from __future__ import annotations\nimport os, time\nfrom pathlib import Path\nfrom gnnkit.launch.processes import launch\n"
    check = "\nheard = launch(meet, 3)[0]['heard']\nassert len(heard) == 3 and len(set(heard)) == 1"
    source = imports + inspect.getsource(meet) + check
    running = [subprocess.Popen([sys.executable, "-c", source]) for _ in range(8)]
    assert [process.wait(2 * GUARD) for process in running] == [0] * 8


COMPILED = """
    import torch

    import gnnkit

    if __name__ == "__main__":
        linear = torch.compile(torch.nn.Linear(2, 2), backend="eager")
        linear(torch.ones(1, 2)).sum().backward()  # torch's autograd refuses to go on in a fork


    class Mean(torch.nn.Module):
        num_layers = 1

        def __init__(self, in_features, num_classes):
            super().__init__()
            self.linear = torch.nn.Linear(in_features, num_classes)

        def forward(self, x, adjacencies):
            return adjacencies[0].aggregate(self.linear(x))


    if __name__ == "__main__":
        data = {"name": "synthetic", "num_nodes": 100, "num_edges": 500}
        keys = {"workers": 2, "trainer": {"max_epochs": 1}, "report": False, "logger": "none"}
        run = gnnkit.train(strategy="vertex_centric", dataset=data, model=Mean, **keys)
        print("loss", run["train_loss"])
    """
ANEW = (
    'spawned ranks import this script again: move everything that it runs below `if __name__ == "__main__":`,'
    " and keep classes and functions above"
)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_cannot_be_forked_starts_ranks_afresh(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(COMPILED))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "spawning ranks" in done.stderr
    assert "loss" in done.stdout


def test_ranks_start_afresh_where_a_fork_cannot_differentiate(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from gnnkit.comm.threads import Threads  # imports torch, which other ranks that start afresh do without

    started = []

    def launch(*_: Any, start_method: str, **__: Any) -> dict[int, Any]:
        started.append(start_method)
        return {0: [{}]}

    monkeypatch.setattr(processes, "launch", launch)
    for forks in (True, False):
        monkeypatch.setattr(builtin, "forks_differentiate", lambda forks=forks: forks)
        assert builtin.Processes().ranks(Ranks(print, 1, Threads, 1.0)) == {0: {}}
    assert started == ["fork", "spawn"]
    message = "spawning ranks: torch's autograd threads of this process do not survive a fork\n"
    assert capfd.readouterr().err == message


@pytest.mark.slow
def test_a_fork_tries_whether_it_can_differentiate(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    parent = os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys.modules.get("torch._dynamo", os))
    assert forks_differentiate()

    def refuse_in_fork(_: object) -> None:
        assert os.getpid() == parent

    monkeypatch.setattr(torch.Tensor, "backward", refuse_in_fork)
    assert not forks_differentiate()
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    assert forks_differentiate(), "nothing is tried before the compiler is imported"


@pytest.mark.slow
def test_ranks_that_read_the_script_anew_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    from gnnkit.launch.child import end_if_started_anew
    from gnnkit.launch.processes import launch

    end_if_started_anew()
    launch(print, 1, start_method="spawn")
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=GUARD, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(ANEW)
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit) as exits:
        gnnkit.train(strategy="vertex")
    assert exits.value.code == STARTED_AGAIN


@pytest.mark.slow
def test_ranks_that_lack_a_class_of_a_notebook_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_cell(rank: int, world_size: int) -> None:
        raise AssertionError

    of_a_cell.__module__, of_a_cell.__qualname__ = "__main__", "of_a_cell"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_cell", of_a_cell, raising=False)
    with pytest.raises(RankError, match="could not import what it runs, such as a notebook's class: move that to"):
        launch(of_a_cell, 1, start_method="spawn")
