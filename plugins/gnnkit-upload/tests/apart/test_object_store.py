"""A run is copied to a server that speaks the protocol of S3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gnnkit.__main__ import main
from tests.runs import within_process

pytestmark = pytest.mark.slow
KEYS = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "workers=2", "comm=threads",
        "cache=false", "logger=none", "report=false", "trainer.max_epochs=1"]  # fmt: skip
ACCESS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "a long secret", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The environment of programs that reach the server. It has one bucket."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    started = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    started.start()
    _, port = started.get_host_and_port()
    found = {**ACCESS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        system().mkdir("bucket")
        yield found
    started.stop()


def system() -> Any:
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True)


class Done(NamedTuple):
    """How a command ended, and what it has printed."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def gnnkit(
    server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """The command line, in this process and in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def gnnkit(*keys: str) -> Done:
        type(system()).clear_instance_cache()  # an instance keeps its server
        capfd.readouterr()
        with within_process():
            code = main(keys)
        return Done(code, *capfd.readouterr())

    return gnnkit


def test_a_run_and_predictions_are_copied_to_an_object_store(gnnkit: Command, tmp_path: Path) -> None:
    done = gnnkit(*KEYS, "output=run", "upload=s3://bucket/runs/first")
    assert done.returncode == 0, done.stderr
    local = {path.relative_to(tmp_path / "run").as_posix(): path for path in (tmp_path / "run").rglob("*")}
    local = {name: path for name, path in local.items() if path.is_file()}
    there = system().find("bucket/runs/first")
    assert {path.removeprefix("bucket/runs/first/") for path in there} == {*local}
    assert all(system().cat(f"bucket/runs/first/{name}") == path.read_bytes() for name, path in local.items())
    predict = ["job=predict", "checkpoint=run", "output=predicted", "upload=s3://bucket/predicted"]
    done = gnnkit(*KEYS[:-1], *predict)
    assert done.returncode == 0, done.stderr
    expected = (tmp_path / "run" / "predictions.npy").read_bytes()
    assert system().cat("bucket/predicted/predictions.npy") == expected
    for written in (tmp_path / "run").rglob("*"):
        assert not written.is_file() or ACCESS["AWS_SECRET_ACCESS_KEY"].encode() not in written.read_bytes()


@pytest.mark.parametrize(
    ("url", "access", "told"),
    [
        ("s3://no-such-bucket/run", {}, "bucket does not exist"),
        ("s3://bucket/run", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
    ids=["no bucket", "no server"],
)
def test_a_place_that_takes_no_files_ends_the_run_before_it_starts(
    url: str, access: dict[str, str], told: str, gnnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    done = gnnkit(*KEYS, "output=run", f"upload={url}")
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[-1].startswith(f"gnnkit: error: upload={url}: "), done.stderr
    assert told in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_the_store_after_its_machine_is_lost(
    server: dict[str, str], gnnkit: Command, tmp_path: Path
) -> None:
    url, newest = "s3://bucket/runs/lost", "bucket/runs/lost/checkpoints/last.json"
    command = [sys.executable, "-m", "gnnkit", *KEYS[:-1], "trainer.max_epochs=100000"]
    killed = subprocess.Popen(
        [*command, "output=first", f"upload={url}"],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | server,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while not system().exists(newest):
        assert killed.poll() is None, "it ended"
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not system().exists("bucket/runs/lost/result.json")
    reached = dict(json.loads(json.loads(system().cat(newest))["body"])["state"]["dict"])["epoch"]
    shutil.rmtree(tmp_path / "first")
    more = [*KEYS[:-1], f"trainer.max_epochs={reached + 2}"]
    done = gnnkit(*more, "output=second", f"upload={url}")
    assert done.returncode == 2
    assert f"upload={url} contains a run: choose another folder, or set on_exists=resume" in done.stderr
    done = gnnkit(*more, "on_exists=resume", f"upload={url}")
    assert "on_exists=resume with upload needs output=FOLDER" in done.stderr
    done = gnnkit(*more, "output=second", "on_exists=resume", f"upload={url}")
    assert done.returncode == 0, done.stderr
    assert f"copying the last checkpoint of {url}" in done.stdout
    assert system().exists("bucket/runs/lost/result.json")
    assert gnnkit(*more, "output=alone").returncode == 0
    expected = (tmp_path / "alone/model.safetensors").read_bytes()
    assert system().cat("bucket/runs/lost/model.safetensors") == expected
