"""report=live: serves the page of a run during training, on this machine only."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gnnkit import report
from gnnkit.errors import UserError
from gnnkit.jobs.order import Order
from gnnkit.launch.phases import say

HOST = "127.0.0.1"
DEADLINE = 10.0  # seconds of one request, and of the end of the server
_MAX_AGE = 1.0  # seconds until a page is rendered again
_NAMES = {"localhost", HOST}  # accepted host names of requests

# Ranks are forked from this process. A fork while a page is rendered would copy locks
# that are never released, so forking and rendering exclude each other.
_rendering = threading.Lock()
_sockets: set[socket.socket] = set()  # open ones, which ranks close


def _leave() -> None:
    """Closes the server's sockets in a rank."""
    _rendering.release()
    for opened in _sockets:
        opened.close()
    _sockets.clear()


os.register_at_fork(before=_rendering.acquire, after_in_parent=_rendering.release, after_in_child=_leave)


@contextlib.contextmanager
def served(order: Order) -> Iterator[str]:
    """Serves the page at a secret address of this machine, and yields the address.

    Ends with the block, and does not keep the process alive. Raises `UserError` if the
    port is taken.

    Args:
        order: The leader's request, with the run folder.
    """
    token = secrets.token_urlsafe(16)
    try:
        server = _Server(order, token)
    except OSError as error:
        raise UserError(f"report_port={order.settings.report_port} cannot be opened: {error.strerror}") from error
    address = f"http://{HOST}:{server.server_address[1]}/{token}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="page", daemon=True)
    thread.start()
    _sockets.add(server.socket)
    say(f"report=live: {address}")
    try:
        yield address
    finally:
        server.shutdown()
        thread.join(DEADLINE)
        _sockets.discard(server.socket)
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, order: Order, token: str) -> None:
        super().__init__((HOST, order.settings.report_port), _Handler)
        self.path = f"/{token}/"
        self._order, self._result = order, _early_result(order)  # imports here, not in a thread
        self._page, self._rendered = b"", float("-inf")

    def page(self) -> bytes:
        """Renders the page from the run folder, at most once a second."""
        with _rendering:
            if time.monotonic() - self._rendered > _MAX_AGE:
                self._page = self._new_page()
                self._rendered = time.monotonic()
            return self._page

    def _new_page(self) -> bytes:
        run = report.read_folder(self._order.run_folder, self._result)
        done = int(run.epochs[-1]["epoch"]) + 1 if run.epochs else 0
        max_epochs = self._order.settings.trainer.max_epochs
        status = f"The run goes on: epoch {done} of {max_epochs}." if done else "The run begins."
        return report.served_page(run, status).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors, such as a browser that disconnects."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = DEADLINE

    def do_GET(self) -> None:
        if not self._is_local():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif not hmac.compare_digest(self.path.encode(errors="replace"), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._answer(self.server.page())

    def _is_local(self) -> bool:
        """Whether the request is from this machine, to a name of this machine."""
        try:
            name = f"//{self.headers.get('Host', '')}"
            host = urlsplit(name).netloc.rpartition("@")[2]
            is_named = host in _NAMES or host.rpartition(":")[0] in _NAMES
        except ValueError:
            return False
        return is_named and ip_address(self.client_address[0]).is_loopback

    def _answer(self, page: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(page))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(page)

    def version_string(self) -> str:
        return "gnnkit"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing."""


def _early_result(order: Order) -> dict[str, object]:
    """Returns the entries of `result.json` that are known before training."""
    settings = order.settings
    task = settings.task.create()
    return {
        "strategy": settings.strategy.name,
        "partition": str(settings.partition.grid),
        "nodes": settings.partition.nodes.name,
        "world_size": settings.workers,
        "dataset": settings.dataset.name,
        "model": order.source.name,
        "task": settings.task.name,
        "seed": settings.seed,
        "main_figure": {"name": task.progress, "lower_is_better": task.is_lower_better(task.progress)},
    }
