"""report=live: the page of a run while it trains, for browsers of this machine."""

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
_KEPT = 1.0  # seconds that a page is good for
_NAMES = {"localhost", HOST}  # by which a browser of this machine asks

# Ranks are forked from this process. A fork in the middle of a page would leave them
# locks that nobody opens, so that the two take turns.
_making = threading.Lock()
_sockets: set[socket.socket] = set()  # that are open, and of no use in a rank


def _leave() -> None:
    """Leaves the page to the launching process. Called in a rank."""
    _making.release()
    for each in _sockets:
        each.close()
    _sockets.clear()


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_leave)


@contextlib.contextmanager
def served(order: Order) -> Iterator[str]:
    """Serves the page at a secret address of this machine, and gives the address.

    Ends with the block. Nothing of it keeps the process alive. Raises `UserError` where
    the port is taken.

    Args:
        order: The leader's, with the run folder.
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
        self._order, self._known = order, _known(order)  # imports here, not in a thread
        self._page, self._made = b"", float("-inf")

    def page(self) -> bytes:
        """Makes the page from what the run folder holds now, once a second at most."""
        with _making:
            if time.monotonic() - self._made > _KEPT:
                self._page = self._new_page()
                self._made = time.monotonic()
            return self._page

    def _new_page(self) -> bytes:
        run = report.read_folder(self._order.run_folder, self._known)
        done = int(run.epochs[-1]["epoch"]) + 1 if run.epochs else 0
        whole = self._order.settings.trainer.max_epochs
        status = f"The run goes on: epoch {done} of {whole}." if done else "The run begins."
        return report.served_page(run, status).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a browser that leaves is no matter of the run."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = DEADLINE

    def do_GET(self) -> None:
        if not self._is_ours():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif not hmac.compare_digest(self.path.encode(errors="replace"), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._answer(self.server.page())

    def _is_ours(self) -> bool:
        """Whether a program of this machine asks, by a name of this machine."""
        try:
            name = f"//{self.headers.get('Host', '')}"
            host = urlsplit(name).netloc.rpartition("@")[2]
            known = host in _NAMES or host.rpartition(":")[0] in _NAMES
        except ValueError:
            return False
        return known and ip_address(self.client_address[0]).is_loopback

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
        """Says nothing."""


def _known(order: Order) -> dict[str, Any]:
    """Returns what `result.json` will say, as far as it is known before."""
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
