"""A web application that serves a trained run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictInt, StrictStr, Tag
from starlette.types import ASGIApp, Receive, Scope, Send

from gnnkit.errors import UserError
from gnnkit.jobs.new_nodes import NewEdge, NewNode
from gnnkit.jobs.served import ServedRun
from gnnkit.utils.documents import Json

MAX_IDS, MAX_NEW, MAX_EDGES = 10_000, 1_000, 100_000  # of a request
MAX_BYTES = 16 * 2**20  # of a request's body
MAX_LINES = 3  # listed errors of an invalid request

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Features = list[Number | StrictStr | None] | dict[str, Number | StrictStr | None]
Name = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
NodeId = StrictInt | Name
_STEPS = ("int", "float", "str", "constrained-str", "pair", "values")  # types in the places of pydantic's errors


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KnownNodes(_Body):
    """Nodes in the graph."""

    ids: Annotated[list[NodeId], Field(min_length=1, max_length=MAX_IDS)]


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


class NewNodes(_Body):
    """New nodes and their edges."""

    nodes: Annotated[list[Node], Field(min_length=1, max_length=MAX_NEW)]
    edges: Annotated[list[Annotated[_EdgeForms, _WHICH]], Field(max_length=MAX_EDGES)] = []


def application(run: ServedRun) -> FastAPI:
    """Returns an application with the routes `/health`, `/predict` and `/predict_new`.

    Requests are bounded, and errors are 4xx answers with a `detail`.
    """
    app = FastAPI(title="gnnkit", docs_url=None, redoc_url=None)  # both pages load scripts from the network
    app.add_middleware(_BoundedBody)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        """Leaves out the values, which may be large, or have no form in JSON."""
        lines: dict[str, list[str]] = {}
        for one in error.errors():
            lines.setdefault(_place(one["loc"]), []).append(one["msg"])
        detail = "; ".join(f"{place}: {' or '.join(texts)}" for place, texts in [*lines.items()][:MAX_LINES])
        return JSONResponse({"detail": detail}, 422)

    @app.get("/health")
    def health() -> Json:
        return {"nodes": run.num_nodes}

    @app.post("/predict")
    def predict(request: KnownNodes) -> Json:
        try:
            return {"predictions": run.predict(request.ids)}
        except KeyError as error:
            raise HTTPException(404, f"ids: no node has the id {error}") from error

    @app.post("/predict_new")
    def predict_new(request: NewNodes) -> Json:
        nodes = [NewNode(**dict(node)) for node in request.nodes]
        edges = [NewEdge(**dict(edge)) if isinstance(edge, Edge) else NewEdge(*edge) for edge in request.edges]
        try:
            return {"predictions": run.predict_new(nodes, edges)}
        except UserError as error:
            raise HTTPException(422, str(error)) from error

    return app


def _place(steps: Sequence[int | str]) -> str:
    """Returns where a value stands in a body, without the types that were tried."""
    return ".".join(str(step) for step in steps[1:] if "[" not in str(step) and step not in _STEPS) or "body"


class _BoundedBody:
    """Rejects requests with a body of unknown or large size."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        length = headers.get(b"content-length", b"0")
        if scope["type"] == "http" and (
            b"transfer-encoding" in headers or not length.isdigit() or int(length) > MAX_BYTES
        ):
            body = json.dumps({"detail": f"the body must have a content-length of at most {MAX_BYTES} bytes"}).encode()
            kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 413, "headers": kind})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)
