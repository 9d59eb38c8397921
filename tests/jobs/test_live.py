"""report=live: a page on loopback, for this machine, as long as the run."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gnnkit import config
from gnnkit.__main__ import main
from gnnkit.config import settings
from gnnkit.errors import UserError
from gnnkit.jobs import live
from gnnkit.jobs.live import served
from gnnkit.jobs.order import Order
from tests.forked import forked
from tests.report.folders import HOSTILE, run_folder

SMALL = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "workers=2", "trainer.max_epochs=20"]


def order(folder: Path, *keys: str) -> Order:
    return Order(settings.settle(config.compose([*SMALL, "report=live", *keys])), folder=folder)


def ask(address: str, method: str = "GET", path: str | None = None, **headers: str) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request(method, parts.path if path is None else path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.slow
def test_a_page_is_served_to_this_machine_alone_and_ends_with_the_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", text=HOSTILE)
    (folder / "result.json").unlink()
    with served(order(folder)) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        status, text = ask(address)
        assert status == 200
        assert "The run goes on: epoch 12 of 20." in text
        assert 'id="loss"' in text
        assert "connect-src 'self'" in text
        assert text.count("<script") == 1
        assert "<img" not in text
        for path in ("/", "/report.html", urlsplit(address).path[:-2] + "x/", "/../result.json"):
            assert ask(address, path=path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(address, method)[0] == 501
        for host in ("evil.example", f"evil.example:{urlsplit(address).port}", "", "127.0.0.1.evil.example"):
            assert ask(address, Host=host)[0] == 403
        assert ask(address, Host="localhost:1")[0] == 200
        assert not (folder / "report.html").exists()
    with pytest.raises(ConnectionRefusedError):
        ask(address)


@pytest.mark.slow
def test_the_page_has_what_is_new_and_nothing_before_the_first_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_MAX_AGE", 0)
    with served(order(tmp_path)) as address:
        assert "The run begins." in ask(address)[1]
        (tmp_path / "epochs.jsonl").write_text(json.dumps({"epoch": 0, "train_loss": 0.5}) + "\n")
        assert "The run goes on: epoch 1 of 20." in ask(address)[1]


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(UserError, match=f"report_port={port} cannot be opened"),
            served(order(tmp_path, f"report_port={port}")),
        ):
            pass


def refuses(address: str) -> bool:
    try:
        ask(address)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_forked_rank_holds_neither_the_socket_nor_a_lock(tmp_path: Path) -> None:
    with served(order(tmp_path)) as address:
        asking = [ask(address) for _ in range(3)]
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        assert [status for status, _ in asking] == [200] * 3
    try:
        assert any(refuses(address) for _ in range(100)), "the child closes its copy of the socket once it runs"
    finally:
        child.kill()
        child.join()


@pytest.fixture(scope="module", autouse=True)
def within() -> None:
    """Takes the place of the fixture that keeps runs in the process of the test."""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_serves_its_page_and_leaves_no_server(tmp_path: Path) -> None:
    command = [*SMALL[:-1], "trainer.max_epochs=100000", "report=live", "output=run"]
    with forked(lambda: sys.exit(main(command)), tmp_path) as program:
        deadline = time.monotonic() + 60
        while (found := re.search(r"http://127\S+", program.text())) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while "The run goes on" not in ask(address := found[0])[1]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(program.pid, signal.SIGINT)
        code, text = program.ended()
    assert code == 130, text
    with pytest.raises(ConnectionRefusedError):
        ask(address)
