"""Latency and throughput of gnnkit.serve over HTTP, and its answers beside job=predict.

Starts uvicorn for a run folder, and sends requests from one connection: ids drawn by a
seed, in batches of several sizes, then single new nodes with a few edges. Ends with 1
if an answer differs from the tables of job=predict.

    uv run python benchmarks/serve.py RUN --requests 200

With `--soak N`, sends N requests from four threads instead, valid and invalid ones,
prints the server's memory and descriptors after each tenth, and then sends SIGTERM
among further requests. Ends with 1 if an answer is wrong or missing.

    uv run python benchmarks/serve.py RUN --soak 20000 --width 4
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet
from gnnkit_serve.serve import DRAIN

import gnnkit

BATCHES = (1, 64, 1024)
TABLES = ("predictions", "probabilities")


@contextmanager
def served(run: Path, folder: Path, drain: float = DRAIN) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """Yields a client of a server in its own process, and the process."""
    lines = [
        "import gnnkit",
        "from gnnkit_serve import serve",
        f"serve.DRAIN = {drain}",
        f"app = gnnkit.serve({str(run)!r})",
    ]
    (folder / "app.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stderr is not None
        try:
            address = next(match[0] for line in server.stderr if (match := re.search(r"http://[\d.]+:\d+", line)))
            with httpx.Client(base_url=address, timeout=60) as client:
                yield client, server
        finally:
            server.terminate()


def timed(client: httpx.Client, route: str, bodies: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Returns the rows of all answers, and the seconds of each request."""
    answers, seconds = [], []
    for body in bodies:
        start = time.perf_counter()
        response = client.post(route, content=json.dumps(body), headers={"content-type": "application/json"})
        seconds.append(time.perf_counter() - start)
        answers += response.raise_for_status().json()["predictions"]
    return answers, seconds


def row(name: str, count: int, seconds: Sequence[float]) -> str:
    """Returns a Markdown row. `count` is the number of nodes per request."""
    middle, late = np.quantile(seconds, (0.5, 0.99)) * 1000
    return f"| {name} | {middle:.2f} | {late:.2f} | {count * len(seconds) / sum(seconds):,.0f} |"


def expected(run: Path, folder: Path) -> dict[Any, dict[str, Any]]:
    """Returns the rows of job=predict by id."""
    result = gnnkit.predict(run, folder=folder / "tables", write=list(TABLES), write_format="parquet")
    columns = {}
    for name in TABLES:
        columns |= pyarrow.parquet.read_table(result.folder / f"{name}.parquet").to_pydict()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {values["id"]: {name: value for name, value in values.items() if name != "type"} for values in rows}


def post(address: str, route: str, body: Any, drain: float = DRAIN) -> int | None:
    """Sends a request on a connection of its own. Returns its status.

    Returns None if the server no longer accepts connections, and 0 without an answer.
    A connection that arrives as the server stops to listen is reset at once.
    """
    connection, start = HTTPConnection(address, timeout=60), time.monotonic()
    try:
        connection.request("POST", route, json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse().status
    except ConnectionRefusedError:
        return None
    except ConnectionResetError:
        return None if time.monotonic() - start < drain / 2 else 0
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


def soak(server: subprocess.Popen[str], address: str, count: int, width: int, drain: float = DRAIN) -> bool:
    """Sends requests, then SIGTERM among more. Returns whether all were right."""
    new = {"nodes": [{"id": "new", "features": [0.5] * width}]}
    kinds = [("/predict", {"ids": ["no such node"]}, 404), ("/predict_new", new, 200)]
    kinds.append(("/predict_new", {**new, "edges": [{}] * 1000}, 422))

    def send(number: int) -> bool:
        route, body, status = kinds[number % len(kinds)]
        return post(address, route, body, drain) == status

    wrong, process = 0, Path(f"/proc/{server.pid}")
    with ThreadPoolExecutor(4) as threads:
        for tenth in range(10):
            wrong += [*threads.map(send, range(count // 10))].count(False)
            pages = int((process / "statm").read_text().split()[1])
            print(
                f"{(tenth + 1) * count // 10} requests: {pages * 4} kB, {len(list((process / 'fd').iterdir()))} files open"
            )
        last = [threads.submit(post, address, "/predict_new", new, drain) for _ in range(400)]
        time.sleep(0.2)
        server.terminate()
        statuses = Counter(future.result() for future in last)
    print(f"{wrong} wrong answers; during SIGTERM {dict(statuses)}; exit code {server.wait(60)}")
    return not wrong and set(statuses) <= {200, None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that has trained classes on a data set")
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--width", type=int, help="columns of features, to measure new nodes too")
    parser.add_argument("--new", type=Path, help="JSON file with a body of /predict_new, to measure it too")
    parser.add_argument("--soak", type=int, help="number of requests, in place of measurements")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        if options.soak:
            with served(options.run.absolute(), Path(folder)) as (client, server):
                sys.exit(not soak(server, client.base_url.netloc.decode(), options.soak, options.width or 1))
        tables = expected(options.run.absolute(), Path(folder))
        ids, differing = list(tables), 0
        lines = ["| request | p50 ms | p99 ms | nodes/s |", "|---|---|---|---|"]
        with served(options.run.absolute(), Path(folder)) as (client, _):
            for count in BATCHES:
                bodies = [{"ids": [ids[i] for i in draw.integers(0, len(ids), count)]} for _ in range(options.requests)]
                answers, seconds = timed(client, "/predict", bodies)
                differing += sum(answer != tables[answer["id"]] for answer in answers)
                lines.append(row(f"{count} ids", count, seconds))
            if options.width is not None:
                features = [0.0] * options.width
                ends = draw.integers(0, len(ids), (options.requests, 3))
                bodies = [
                    {"nodes": [{"id": "new", "features": features}], "edges": [[ids[i], "new"] for i in near]}
                    for near in ends
                ]
                lines.append(row("1 new node", 1, timed(client, "/predict_new", bodies)[1]))
            if options.new is not None:
                body = json.loads(options.new.read_text(encoding="utf-8"))
                _, seconds = timed(client, "/predict_new", [body] * options.requests)
                lines.append(row(options.new.stem, len(body["nodes"]), seconds))
    print("\n".join(lines))
    print(f"{differing} answers differ from job=predict")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
