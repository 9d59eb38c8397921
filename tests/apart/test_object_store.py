"""A run is copied to a server that speaks the protocol of S3."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
KEYS = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "workers=2", "trainer.max_epochs=1"]
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


def gnnkit(server: dict[str, str], *keys: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gnnkit", *keys, "cache=false"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=os.environ | server, timeout=240
    )


def test_a_run_and_predictions_are_copied_to_an_object_store(server: dict[str, str], tmp_path: Path) -> None:
    done = gnnkit(server, *KEYS, "output=run", "upload=s3://bucket/runs/first", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    local = {path.relative_to(tmp_path / "run").as_posix(): path for path in (tmp_path / "run").rglob("*")}
    local = {name: path for name, path in local.items() if path.is_file()}
    there = system().find("bucket/runs/first")
    assert {path.removeprefix("bucket/runs/first/") for path in there} == {*local}
    assert all(system().cat(f"bucket/runs/first/{name}") == path.read_bytes() for name, path in local.items())
    predict = ["job=predict", "checkpoint=run", "output=predicted", "upload=s3://bucket/predicted"]
    done = gnnkit(server, *KEYS[:-1], *predict, folder=tmp_path)
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
    url: str, access: dict[str, str], told: str, server: dict[str, str], tmp_path: Path
) -> None:
    done = gnnkit(server | access, *KEYS, "output=run", f"upload={url}", folder=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[-1].startswith(f"gnnkit: error: upload={url}: "), done.stderr
    assert told in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
