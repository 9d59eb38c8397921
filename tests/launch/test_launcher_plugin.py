"""A launcher from a package of its own, whose ranks another process starts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit import plugins, testing
from gnnkit.__main__ import main
from gnnkit.comm import PeerLost
from gnnkit.errors import UserError
from gnnkit.launch.launcher import RankReport
from tests.conftest import Install
from tests.runs import within_process

LAUNCHER = '''
import dataclasses, json, multiprocessing, os, signal, socket, tempfile, time
from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.launch.launcher import Launcher, RankError, RankReport, StartedRank


class Served(Launcher):
    """Another process starts the ranks, which get their work as a message."""

    def __init__(self, grace: float = 0.5) -> None:  # seconds for reports after a failure
        if grace < 0:
            raise ValueError(f"grace={grace} must be at least 0")
        self.grace = grace

    def ranks(self, ranks, meanwhile=lambda: None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["gnnkit.testing", "gnnkit.jobs.train", "torch.utils.tensorboard"])
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        size = ranks.world_size
        places = [StartedRank(rank, size, rank, size, "127.0.0.1", port) for rank in range(size)]
        with tempfile.TemporaryDirectory() as name:
            reports = [Path(name, str(rank)) for rank in range(size)]
            running = [context.Process(target=run, args=each) for each in zip([ranks] * size, places, reports)]
            try:
                for process in running:
                    process.start()
                while any(process.exitcode is None for process in running):
                    meanwhile()
                    if any(process.exitcode for process in running):
                        break
                    time.sleep(0.02)
                if any(process.exitcode for process in running):
                    time.sleep(self.grace)
                    raise failure([process.exitcode for process in running], reports)
                return {rank: json.loads(report.read_text()) for rank, report in enumerate(reports)}
            finally:
                for process in running:
                    process.kill()
                    process.join()


def failure(codes, reports):
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            return RankError(f"rank {rank} was ended by {signal.Signals(-code).name}")
    by_rank = {rank: RankReport(**json.loads(reports[rank].read_text())) for rank, code in enumerate(codes) if code}
    # A rank that has lost its peer may report before the peer does.
    rank = min(by_rank, key=lambda rank: (by_rank[rank].lost_peer, reports[rank].stat().st_mtime_ns))
    report = by_rank[rank]
    return UserError(report.message) if report.is_user_error else RankError(f"rank {rank} failed: {report.error}")


def run(ranks, place, report):
    os.environ.update(place.variables())
    code = 0
    try:
        found = ranks.run(place.rank)
    except Exception as error:
        code, found = 1, dataclasses.asdict(RankReport.of(error))
    report.write_text(json.dumps(found))
    os._exit(code)
'''
FILES = {
    "served/__init__.py": LAUNCHER,
    "served/conf/launcher/served.yaml": "# Another process starts the ranks.\nname: served\ngrace: 0.5  # seconds\n",
}
RUN = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200", "workers=2",
       "threads=1", "trainer.max_epochs=2", "trainer.checkpoint=false", "report=false", "logger=none", "cache=false"]  # fmt: skip


@pytest.fixture
def installed(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    points = {"gnnkit.launcher": {"served": "served:Served"}, "gnnkit.conf": {"served": "served"}}
    monkeypatch.chdir(tmp_path)
    yield install("served", points, FILES)
    sys.modules.pop("served", None)  # another test has another folder


def test_a_launcher_prefers_a_cause_to_the_errors_that_it_has_caused(installed: Path, tmp_path: Path) -> None:
    served = plugins.load("launcher", "served")
    errors = [PeerLost("rank 0: lost its peer rank 1, which exited", 1), ValueError("no such file"), UserError("k=1")]
    reports = [tmp_path / str(rank) for rank in range(3)]
    for path, error in zip(reports, errors, strict=True):
        path.write_text(json.dumps(dataclasses.asdict(RankReport.of(error))))
    failure = sys.modules[served.__module__].failure
    assert str(failure([1, 1, 0], reports)) == "rank 1 failed: ValueError: no such file"
    assert isinstance(failure([1, 0, 1], reports), UserError)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_launcher_of_another_package_keeps_the_promises(installed: Path) -> None:
    testing.check_launcher(plugins.load("launcher", "served"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_launcher_of_another_package_runs_the_ranks_of_a_job(installed: Path) -> None:
    with within_process():
        assert main([*RUN, "output=usual"]) == 0
        assert main([*RUN, "output=run", "launcher=served"]) == 0
    usual, result = (json.loads(Path(name, "result.json").read_text()) for name in ("usual", "run"))
    assert result["train_loss"] == usual["train_loss"]
    assert result["world_size"] == 2


@pytest.mark.slow
def test_keys_of_such_a_launcher_are_checked_and_listed(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "launcher=served", "launcher.grace=-1"]) == 2
    assert capsys.readouterr().err == "gnnkit: error: launcher.grace=-1 must be at least 0\n"
    assert main(["--help", "launcher=served"]) == 0
    assert "launcher.grace=0.5" in capsys.readouterr().out
