"""A web application that serves a trained run."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    model_validator,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from gnnkit.errors import UserError
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.launch.progress import collected_warnings
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_line, shown
from gnnkit_serve.new_nodes import FeatureCell, NewEdge, NewNode
from gnnkit_serve.served import ChangedError, ServedRun
from gnnkit_serve.served_edges import ServedEdges

MAX_IDS, MAX_NEW, MAX_EDGES = 10_000, 1_000, 100_000  # of a request
MAX_BYTES = 16 * 2**20  # of a request's body
MAX_QUEUED = 64  # requests for new nodes or edges, which are computed in turn
MAX_LINES = 3  # listed errors of an invalid request
DRAIN = 1.0  # seconds after a signal in which accepted connections may still send a request


def _check_cells(cells: dict[str, FeatureCell]) -> dict[str, FeatureCell]:
    """Raises at the first cell, because pydantic would create an error for each."""
    for name, value in cells.items():
        if isinstance(value, bool) or not isinstance(value, float | int | str | None):
            raise ValueError(f"{shown(name)} should be a number (1 for true, 0 for false), text or null")
        with suppress(OverflowError):  # an integer may exceed the range of floats
            if isinstance(value, str | None) or math.isfinite(value):
                continue
        raise ValueError(f"{shown(name)} should be a finite number")
    return cells


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Cells = Annotated[list[Number | StrictStr | None], Field(fail_fast=True), Tag("list")]
_NamedCells = Annotated[dict[str, object], AfterValidator(_check_cells), Tag("dict")]
Features = Annotated[_Cells | _NamedCells, Discriminator(lambda value: "dict" if isinstance(value, dict) else "list")]
Name = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
NodeId = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | Name
# Types in the places of pydantic's errors.
_STEPS = ("int", "constrained-int", "float", "str", "constrained-str", "pair", "values", "list", "dict")


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")  # "forbid" would create an error for each

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        for name in self.model_extra or ():
            raise ValueError(f"Extra inputs are not permitted: {shown(name)}")
        return self


class KnownNodes(_Body):
    """Nodes in the graph."""

    ids: Annotated[list[NodeId], Field(min_length=1, max_length=MAX_IDS, fail_fast=True)]


class Node(_Body):
    """A new node."""

    id: NodeId
    features: Features = []
    type: Name | None = None


class Edge(_Body):
    """An edge with values."""

    source: NodeId
    destination: NodeId
    weight: Number | None = None
    features: Features = []
    relation: Name | None = None


_EdgeForms = Annotated[tuple[NodeId, NodeId], Tag("pair")] | Annotated[Edge, Tag("values")]
_WHICH = Discriminator(
    lambda value: "values" if isinstance(value, dict) else "pair" if isinstance(value, list) else None,
    custom_error_type="edge",
    custom_error_message="Input should be a pair of ids, or an object with source and destination",
)


class LabelledEdge(Edge):
    """An edge to predict."""

    time: Annotated[StrictInt, Field(gt=ALWAYS, lt=NEVER)] | Name | None = None


_NewForms = Annotated[tuple[NodeId, NodeId], Tag("pair")] | Annotated[LabelledEdge, Tag("values")]


class NewEdges(_Body):
    """New edges between nodes of the graph."""

    edges: Annotated[list[Annotated[_NewForms, _WHICH]], Field(min_length=1, max_length=MAX_EDGES, fail_fast=True)]

    def read(self) -> list[NewEdge]:
        """Returns the edges."""
        return [NewEdge(**dict(edge)) if isinstance(edge, Edge) else NewEdge(*edge) for edge in self.edges]


class NewNodes(_Body):
    """New nodes and their edges."""

    nodes: Annotated[list[Node], Field(min_length=1, max_length=MAX_NEW, fail_fast=True)]
    edges: Annotated[list[Annotated[_EdgeForms, _WHICH]], Field(max_length=MAX_EDGES, fail_fast=True)] = []

    def read(self) -> tuple[list[NewNode], list[NewEdge]]:
        """Returns the nodes and edges."""
        edges = [NewEdge(**dict(edge)) if isinstance(edge, Edge) else NewEdge(*edge) for edge in self.edges]
        return [NewNode(**dict(node)) for node in self.nodes], edges


Body = TypeVar("Body", bound=BaseModel)
Call = Callable[..., Awaitable[Json]]  # calls a function in a thread


def application(run: ServedRun | ServedEdges, hosts: Sequence[str] = ()) -> FastAPI:
    """Returns an application with the routes `/health`, `/predict` and `/predict_new`.

    For a run on labelled edges, `/predict_edges` replaces `/predict_new`.

    Requests are bounded, and errors are 4xx answers with a `detail`, or 503 while too
    many requests wait. Bodies are read in threads, one at a time, so that `/health`
    never waits for one.

    Args:
        run: What is served.
        hosts: Further names in the header `Host`, in addition to this machine's names.
    """
    app = FastAPI(
        title="gnnkit", docs_url=None, redoc_url=None, lifespan=_draining
    )  # both pages load scripts from the network
    app.add_middleware(_Bounds, hosts=frozenset(map(str.lower, (*hosts, "localhost", socket.gethostname()))))
    app.state.headers = {}  # of answers
    answers = _Answers(run)

    @app.get("/health")
    async def health() -> Json:
        return run.identity

    def add_route(path: str, form: type[Body], call: Call, compute: Callable[[Body], list[Json]]) -> None:
        schema = {"application/json": {"schema": form.model_json_schema()}}
        extra = {"requestBody": {"content": schema, "required": True}}
        app.post(path, openapi_extra=extra, response_model=None)(answers.route(form, call, compute))

    add_route("/predict", KnownNodes, run_in_threadpool, partial(_predict_known, run))
    if isinstance(run, ServedEdges):
        add_route("/predict_edges", NewEdges, answers.in_turn, lambda body: run.predict_edges(body.read()))
    else:
        add_route("/predict_new", NewNodes, answers.in_turn, lambda body: run.predict_new(*body.read()))
    return app


def _predict_known(run: ServedRun | ServedEdges, body: KnownNodes) -> list[Json]:
    try:
        return run.predict(body.ids)
    except KeyError as error:
        raise HTTPException(404, f"ids: no {run.noun} has the id {error}") from None


@asynccontextmanager
async def _draining(app: FastAPI) -> AsyncIterator[None]:
    """Lets uvicorn read the requests of accepted connections when a signal ends it.

    By itself, it closes connections whose request it has not read yet.
    """
    loop = asyncio.get_running_loop()

    def drain(number: int, handler: Any) -> None:
        app.state.headers = {"connection": "close"}
        listeners = getattr(handler.__self__, "servers", ())
        for sock in (sock for listener in listeners for sock in listener.sockets):
            loop.remove_reader(sock)
        loop.call_soon(stop, listeners)  # follows the tasks of accepted connections, which need the listener
        loop.call_later(DRAIN, handler, number, None)

    def stop(listeners: Sequence[Any]) -> None:
        app.state.accepted = [_stop_listening(listener, loop) for listener in listeners]

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if hasattr(getattr(handler, "__self__", None), "server_state"):  # a method of uvicorn's server
            answer = partial(loop.call_soon_threadsafe, partial(drain, number, handler))
            signal.signal(number, lambda *_, answer=answer: answer())
    yield


def _stop_listening(listener: Any, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Accepts the connections that wait, and refuses later ones.

    Closing by itself resets those that arrived since the event loop last looked.

    Returns:
        The tasks that serve them, which the caller keeps.
    """
    queues = [sock.dup() for sock in listener.sockets]  # copies keep the queues of connections
    factory, tasks = getattr(listener, "_protocol_factory", None), []  # other loops have none
    listener.close()
    for queue in queues:
        queue.setblocking(False)
        with queue, suppress(OSError):  # until none waits
            while factory:
                tasks.append(loop.create_task(loop.connect_accepted_socket(factory, queue.accept()[0])))
    return tasks


class _Answers:
    """Answers requests in threads."""

    def __init__(self, run: ServedRun | ServedEdges) -> None:
        self._run, self._reading = run, threading.Lock()
        self._turn, self._num_queued = asyncio.Lock(), 0

    async def in_turn(self, function: Callable[..., Json], *arguments: Any) -> Json:
        """Calls a function in a thread, which waiting requests do not occupy."""
        if self._num_queued >= MAX_QUEUED:
            raise HTTPException(503, f"{MAX_QUEUED} requests are waiting: try again later")
        self._num_queued += 1
        try:
            async with self._turn:
                return await run_in_threadpool(function, *arguments)
        finally:
            self._num_queued -= 1

    def route(self, form: type[Body], call: Call, compute: Callable[[Body], list[Json]]) -> Callable[[Request], Any]:
        """Returns a function that answers the requests of one form."""

        async def answer(request: Request) -> JSONResponse:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # which pages of other sites cannot send
                raise HTTPException(422, "body: the content-type must be application/json")
            predictions = await call(self._answer, form, await request.body(), compute)
            return JSONResponse(predictions, headers=request.app.state.headers)

        return answer

    def _answer(self, form: type[Body], content: bytes, compute: Callable[[Body], list[Json]]) -> Json:
        try:
            if change := self._run.changed():
                raise ChangedError(change)
            with self._reading:
                body = form.model_validate_json(content)
            with collected_warnings() as lines:
                predictions = compute(body)
            return {"predictions": predictions} | ({"warnings": lines} if lines else {})
        except ChangedError as error:
            raise HTTPException(409, f"{error}: restart the server") from None
        except ValidationError as error:
            raise HTTPException(422, _describe(error)) from None
        except UserError as error:
            raise HTTPException(422, one_line(error)) from error


def _describe(error: ValidationError) -> str:
    """Lists errors by place, without the values, which may be large."""
    lines: dict[str, list[str]] = {}
    for details in error.errors(include_url=False, include_input=False, include_context=False):
        lines.setdefault(_place(details["loc"]), []).append(details["msg"].removeprefix("Value error, "))
    return one_line("; ".join(f"{place}: {' or '.join(texts)}" for place, texts in [*lines.items()][:MAX_LINES]))


def _place(steps: Sequence[int | str]) -> str:
    """Returns where a value stands in a body, without the types that were tried."""
    return ".".join(str(step) for step in steps if "[" not in str(step) and step not in _STEPS) or "body"


class _Bounds:
    """Rejects bodies of unknown or large size, and hosts other than this machine.

    A page of another site can resolve its name to this machine.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        length, app = headers.get(b"content-length", b"0"), self._app
        if scope["type"] == "http" and not self._knows(scope):
            app = JSONResponse({"detail": "Host: a name of another machine; use gnnkit.serve(run, hosts=[NAME])"}, 421)
        elif b"transfer-encoding" in headers or not length.isdigit() or int(length) > MAX_BYTES:
            app = JSONResponse({"detail": f"the body must have a content-length of at most {MAX_BYTES} bytes"}, 413)
        await app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        """Returns whether a request names the server, or an address without a name."""
        host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        with suppress(ValueError):
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            server = str((scope.get("server") or ("",))[0])
            return name in (*self._hosts, server) or bool(ipaddress.ip_address(name))
        return False
