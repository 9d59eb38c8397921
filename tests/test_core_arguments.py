"""Random arguments to every function of the core: a result, or an error that names one.

The suite runs `FEW` of them, or all `CASES` with `--exhaustive`, in a separate process,
because a failed allocation would end the process. To run cases for minutes, from
another case on:

    export GNNKIT_FUZZ_SECONDS=600 GNNKIT_FUZZ_FIRST=1000000
    uv run pytest tests/test_core_arguments.py
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.sampler import Loader, MetropolisHastingsSampler, NeighborSampler
from gnnkit.sampler.base import Preference, Reading
from tests.cases import exhaustive

ODD = [-1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70), 10**5000]
ODD += [1.5, float("nan"), float("inf"), None, "a", b"a", [], {}, (1, 2), object(), np.zeros(3, np.float16)]  # type: ignore[list-item]
CASES, FEW = 15_000, 300  # in all, and by default
NUM_EDGES = 16
REFUSED = (ValueError, TypeError, OverflowError)
Make = Callable[[Random], Any]


def number(random: Random) -> int:
    return random.randrange(8)


def small_number(random: Random) -> int:
    return random.randrange(4) or 1


def eight(random: Random) -> int:
    """Mostly the number of nodes of `graph`."""
    return 8 if random.random() < 0.8 else number(random)


def ids(random: Random) -> Any:
    """Ids of eight nodes, in arrays of every kind that NumPy users have."""
    array = np.array(random.sample(range(8), random.choice([8, 8, 5, 1, 0])), np.int64)
    if random.random() < 0.1:
        array = np.array([random.randrange(-1, 10) for _ in range(random.randrange(12))], np.int64)
    width = random.choice([np.int64, np.int64, np.int32])
    turn = random.randrange(12)
    if turn == 0:
        return array.astype(width).repeat(2)[::2]
    if turn == 1:
        return np.frombuffer(b"\0" + array.astype(width).tobytes(), np.uint8)[1:].view(width)
    if turn == 2:
        return array.astype(width).reshape(-1, 1)
    return array.astype(np.dtype(random.choice(["u1", "f4", ">i8"])) if turn == 3 else np.dtype(width))


def indptr(random: Random) -> Any:
    rows = random.randrange(10)
    ends = np.sort(np.array([random.randrange(12) for _ in range(rows)], np.int64))
    return np.concatenate([[0], ends]) if random.random() < 0.9 else ids(random)


def array(random: Random, *shapes: tuple[int, ...], dtypes: str = "ddddfeH") -> Any:
    """Makes an array of one of `shapes`, or sometimes of a shape that seldom fits."""
    odd_shapes = [(random.randrange(12),), (8, 2, 2), (), (0, 2**40)]
    shape = random.choice(odd_shapes if random.random() < 0.2 else shapes)
    made = np.zeros(shape, random.choice(dtypes))
    return made if random.random() < 0.95 or not shape else made[..., ::2]


def costs(random: Random) -> Any:
    return array(random, (8,))


def rows(random: Random) -> Any:
    return array(random, (8, 2))


def wide_rows(random: Random) -> Any:
    return array(random, (8, 4))


def words(random: Random) -> Any:
    return array(random, (8, 1), dtypes="IIIIIl")


def edge_values(random: Random) -> Any:
    return array(random, (NUM_EDGES,), (NUM_EDGES, 2))


def node_values(random: Random) -> Any:
    return array(random, (8,), (8, 1))


def places(random: Random) -> Any:
    return array(random, (8, 2), dtypes="lllllld")


def pairs(random: Random) -> Any:
    return array(random, (8, 2), dtypes="llllllid") % 8


def codes(random: Random) -> Any:
    return np.sort(np.array([random.randrange(64) for _ in range(random.randrange(64))], np.int64))


def table(random: Random) -> Any:
    shape = random.choice([(8, 4)] * 8 + [(8, 0), (0, 2**60), (3, 4), (8,)])
    array = np.zeros(shape, np.uint8)
    array.flags.writeable = random.random() < 0.8
    return random.choice([array, array, np.asfortranarray(array)])


def few_bytes(random: Random) -> Any:
    return np.zeros(number(random) * number(random), np.uint8)


def graph(random: Random, num_sources: int = 8) -> tuple[Any, Any]:
    """Mostly a graph of eight nodes, or two arrays that fit by chance only."""
    if random.random() < 0.3:
        return indptr(random), ids(random)
    ends = np.sort(np.array([random.randrange(NUM_EDGES) for _ in range(7)] + [NUM_EDGES]))
    width = random.choice([np.int32, np.int64])
    return np.concatenate([[0], ends]), np.array([random.randrange(num_sources) for _ in range(ends[-1])], width)


def reading(random: Random) -> Any:
    pointers, sources = graph(random)
    extra: dict[str, Make] = {"wanted": costs, "features": rows}
    extra |= dict.fromkeys(("cluster", "rows", "sources", "counts", "keys"), ids)
    run_keys = {name: odd(random, make) if random.random() < 0.1 else None for name, make in extra.items()}
    run_keys["relations"] = None
    run_keys["visibility"] = visibility(random) if random.random() < 0.2 else None
    sharpness = odd(random, lambda random: random.randrange(1, 33), 40)
    run_keys["preference"] = SimpleNamespace(floor=odd(random, Random.random), sharpness=sharpness)
    weight = edge_values(random) if random.random() < 0.1 else None
    num_sources = odd(random, lambda _: 8, 20)
    return SimpleNamespace(
        csc=SimpleNamespace(indptr=pointers, indices=sources, num_sources=num_sources, weight=weight), **run_keys
    )


def visibility(random: Random) -> Any:
    bounds = odd(random, ids) if random.random() < 0.5 else None
    window = odd(random, lambda random: random.randrange(9)) if random.random() < 0.3 else None
    return SimpleNamespace(times=odd(random, ids), bounds=bounds, window=window, latest=odd(random, flag, 40))


def fanouts(random: Random) -> Any:
    return [odd(random, lambda random: random.randrange(-1, 6), 40) for _ in range(random.choice([1, 2, 2, 3, 0]))]


def walks(random: Random) -> Any:
    return tuple(odd(random, number, 30) for _ in range(3))


def flag(random: Random) -> bool:
    return random.random() < 0.5


def aggregator(random: Random) -> Any:
    pointers, sources = graph(random)
    try:
        made = _core.Aggregator(pointers, sources, 8)
    except REFUSED:
        return None
    return made.transpose() if random.random() < 0.4 else made


def importance(random: Random) -> Any:
    return random.choice([None, "mean", "sum", None, "mean", "sum", "max"])


def steps(random: Random) -> Any:
    seeds = ids(random)
    bounds = sorted(random.randrange(len(seeds) + 1) for _ in range(random.randrange(1, 5)))
    first = random.randrange(len(bounds))
    given = (seeds, bounds, first, 7)
    return tuple(random.choice(ODD) if random.random() < 0.05 else part for part in given)


def allocate(random: Random) -> Any:
    shared = np.empty(64, np.uint8)
    makers: list[Any] = [lambda size: np.empty(size, np.uint8)] * 6
    makers += [lambda size: np.empty(size // 2, np.uint8), lambda size: shared, bytes]
    makers += [lambda size: np.empty(size, np.float32), lambda size: None]
    return random.choice(makers)


def sampler(random: Random) -> Any:
    name = random.choice(["neighbor", "equal", "weighted", "balanced", "labor", "metropolis_hastings", "cluster"])
    run_keys = {argument: make(random) for argument, make in FUNCTIONS[f"Sampler.{name}"].items()}
    return getattr(_core.Sampler, name)(**run_keys)


def odd(random: Random, make: Make, one_in: int = 8) -> Any:
    """What `make` gives, or once in `one_in` calls a value that nobody expects."""
    return random.choice(ODD) if random.randrange(one_in) == 0 else make(random)


def per_row(numbers: int) -> Make:
    """Makes rows with some numbers of each of two heads."""
    return lambda random: array(random, (8, numbers, 2), dtypes="ddddf")


ATTENTION: dict[str, Make] = {"edges": aggregator, "x": per_row(3), "source": per_row(1)}
EDGES: dict[str, Make] = {
    "edge": lambda random: random.choice([None, edge_values(random)]),
    "ids": lambda random: random.choice([None, np.arange(NUM_EDGES), ids(random)]),
    "p": Random.random,
    "key": number,
    "threads": small_number,
}
GRAPH: dict[str, Make] = {"indptr": indptr, "indices": ids}
COMMON: dict[str, Make] = {"redraw": flag, "importance": importance}
TEXTS: dict[str, Make] = {
    "data": lambda random: np.array([random.randrange(4) for _ in range(random.randrange(20))], np.uint8),
    "offsets": indptr,
}
FUNCTIONS: dict[str, dict[str, Make]] = {
    "check_csc": {**GRAPH, "num_sources": eight},
    "csc_from_edges": {"src": ids, "dst": ids, "num_nodes": eight, "num_sources": eight, "positions": flag},
    "csc_with_tags": {
        "src": ids,
        "dst": lambda random: np.asarray(ids(random)).astype(np.int32) if flag(random) else ids(random),
        "tags": ids,
        "num_nodes": eight,
        "num_sources": eight,
        "threads": small_number,
    },
    "csc_crossing": {
        **GRAPH,
        "owner": lambda random: np.array([random.randrange(4) for _ in range(random.choice([8, 8, 7]))], np.int32),
        "grid": lambda random: tuple(odd(random, small_number, 20) for _ in range(3)),
        "edge_cell": lambda random: random.choice(
            [None, np.array([random.randrange(4) for _ in range(random.choice([24, 24, 7]))], np.int32)]
        ),
        "threads": small_number,
    },
    "csc_edges": GRAPH,
    "csc_cuthill_mckee": {**GRAPH, "num_sources": eight},
    "csc_missed_rows": {
        **GRAPH,
        "num_sources": eight,
        "slots": lambda random: random.choice([(4, 16), (1, 1), (0, 3), (4,), [2, 2**40], (-1, 2)]),
        "order": lambda random: random.choice(
            [None, np.arange(8), np.arange(8)[::-1].copy(), np.zeros(8, np.int64), np.arange(7), np.arange(1, 9)]
        ),
    },
    "count_bins": {"ids": ids, "shift": small_number, "num_bins": number, "threads": small_number},
    "bucket_order": {
        "ids": ids,
        "shift": small_number,
        "buckets": lambda random: np.array([random.randrange(4) for _ in range(random.randrange(6))], np.int32),
        "num_buckets": small_number,
        "threads": small_number,
    },
    "IdTable": TEXTS,
    "csc_transpose": {**GRAPH, "num_sources": eight, "threads": small_number},
    "csc_symmetrize": {**GRAPH, "threads": small_number},
    "csc_degrees": {**GRAPH, "num_sources": eight, "weight": edge_values},
    "min_words": {
        **GRAPH,
        "node_rank": lambda random: np.asarray([random.randrange(4) for _ in range(8)], np.int32),
        "grid": lambda random: tuple(odd(random, small_number, 20) for _ in range(3)),
        "max_imbalance": lambda random: random.random() * 3,
    },
    "negative_pairs": {
        "pairs": pairs,
        "ids": ids,
        "num_nodes": eight,
        "known": codes,
        "among": ids,
        "count": number,
        "key": number,
        "threads": small_number,
        "ends": lambda random: random.choice([None, tuple(odd(random, small_number, 20) for _ in range(4))]),
    },
    "pair_draws": {"pairs": pairs, "num_nodes": eight, "key": number, "threads": small_number},
    "edges_without": {**GRAPH, "src_nodes": ids, "excluded": codes, "num_nodes": eight},
    "stream_nodes": {
        **GRAPH,
        "num_parts": small_number,
        "score": lambda random: random.choice(["ldg", "fennel"]),
        "order": lambda random: random.choice(["id", "random", "bfs"]),
        "key": number,
        "max_imbalance": lambda random: random.random() * 3,
        "passes": small_number,
    },
    "buffer_nodes": {
        **GRAPH,
        "num_parts": small_number,
        "buffer": small_number,
        "max_imbalance": lambda random: random.random() * 3,
        "passes": small_number,
    },
    "stream_edges": {
        **GRAPH,
        "num_parts": small_number,
        "max_imbalance": lambda random: random.random() * 3,
        "balance": lambda random: random.choice([None, random.random() * 3]),
    },
    "cover_cells": {
        **GRAPH,
        "node_cell": lambda random: np.asarray([random.randrange(4) for _ in range(8)], np.int32),
        "num_cells": small_number,
        "max_imbalance": lambda random: random.random() * 3,
    },
    "generate_rmat": {"num_nodes": number, "num_edges": number, "key": number, "threads": small_number},
    "generate_block_model": {
        "num_nodes": number,
        "num_edges": number,
        "num_blocks": number,
        "in_block": Random.random,
        "key": number,
    },
    "generate_lattice": {"num_nodes": number, "side": number, "dims": number, "threads": small_number},
    "generate_labels": {"num_nodes": number, "num_classes": number, "key": number},
    "generate_features": {"labels": ids, "width": number, "noise": Random.random, "key": number},
    "gather_rows": {"source": table, "ids": ids, "out": table, "threads": small_number},
    "RowFile": {
        "path": lambda random: __file__,
        "begin": number,
        "num_rows": eight,
        "row_bytes": number,
        "policy": lambda random: random.choice(["exact", "static", "lru"]),
        "capacity": number,
        "direct": lambda random: False,
        "ring": lambda random: False,
    },
    "tree_sizes": {**GRAPH, "fanouts": fanouts, "replace": flag, "seeds": ids, "threads": small_number},
    "even_order": {"costs": costs, "num_workers": number, "batch_size": number, "window": number, "key": number},
    "shuffled_order": {"ids": ids, "key": number},
    "dropout": {"x": rows, "ids": ids, "p": Random.random, "key": number, "out": rows, "gate": rows},
    "dropout_kept": {
        "ids": ids,
        "width": lambda random: random.choice([2, number(random)]),
        "p": Random.random,
        "key": number,
        "kept": words,
        "threads": small_number,
    },
    "rectify": {
        "x": rows,
        "ids": ids,
        "p": Random.random,
        "key": number,
        "out": rows,
        "kept": words,
        "threads": small_number,
    },
    "rectify_backward": {"grad": rows, "kept": words, "p": Random.random, "out": rows, "threads": small_number},
    "attend": {
        **ATTENTION,
        "destination": per_row(1),
        "slope": Random.random,
        "out": per_row(3),
        "stats": per_row(3),
        "bent": lambda random: random.choice([None, per_row(3)(random)]),
        **EDGES,
    },
    "attend_destinations": {
        "destination": per_row(1),
        **dict.fromkeys(("grad", "out", "bent", "stats"), per_row(3)),
        "info": per_row(4),
        "slopes": per_row(1),
        "threads": small_number,
    },
    "attend_backward": {
        **ATTENTION,
        "grad": per_row(3),
        "info": per_row(4),
        "slope": Random.random,
        "out": per_row(3),
        "slopes": per_row(1),
        **EDGES,
    },
    "attend_edges": {**ATTENTION, "info": per_row(4), "slope": Random.random, "out": edge_values, **EDGES},
    "derive": {"key": number, "value": number},
    "visited": {"reading": reading, "starts": ids, "walks": walks, "key": number},
    "grow": {
        "edge_types": lambda random: [(sampler(random), reading(random), 0, odd(random, lambda _: 0, 40))],
        "seeds": lambda random: [(ids(random), np.zeros(number(random), np.uint32), eight(random))],
        "trees": lambda random: random.choice([None, (ids(random), random.choice([None, ids(random)]))]),
        "num_hops": lambda random: random.randrange(3),
        "key": number,
        "induced": flag,
        "most_draws": number,
        "threads": small_number,
    },
    "water_fill": {"degrees": ids, "budget": number},
    "Sampler.neighbor": {"fanouts": fanouts, "replace": flag, **COMMON},
    "Sampler.equal": {"fanouts": fanouts, **COMMON},
    "Sampler.weighted": {"fanouts": fanouts, "replace": flag, **COMMON},
    "Sampler.balanced": {"fanouts": fanouts, **COMMON},
    "Sampler.labor": {"fanouts": fanouts, **COMMON},
    "Sampler.metropolis_hastings": {"fanouts": fanouts, "walks": walks, **COMMON},
    "Sampler.cluster": {"num_hops": number},
    "Aggregator": {**GRAPH, "num_sources": eight},
    "Numbering": {"seeds": ids, "num_nodes": eight},
    "Loader": {
        "graph": reading,
        "sampler": sampler,
        "steps": steps,
        "table": table,
        "allocate": allocate,
        "threads": small_number,
        "depth": small_number,
    },
}
FACTORS: dict[str, Make] = {
    "weight": lambda random: random.choice([None, edge_values(random)]),
    "source": lambda random: random.choice([None, node_values(random)]),
    "destination": lambda random: random.choice([None, node_values(random)]),
}
METHODS: dict[str, dict[str, dict[str, Make]]] = {
    "IdTable": {"find": {**TEXTS, "threads": small_number}},
    "Sampler": {
        "draw": {
            "reading": reading,
            "nodes": ids,
            "hop": lambda random: random.randrange(3),
            "key": number,
            "threads": small_number,
        },
        "sample": {"reading": reading, "seeds": ids, "key": number, "threads": small_number},
    },
    "Aggregator": {
        "transpose": {},
        "sum": {
            "x": rows,
            "out": rows,
            "threads": small_number,
            **FACTORS,
            "own": Random.random,
            "add": flag,
            "width": lambda random: random.choice([None, small_number(random)]),
        },
        "sum_beside": {
            "x": rows,
            "out": wide_rows,
            "threads": small_number,
            **FACTORS,
            "kept": lambda random: random.choice([None, words(random)]),
            "p": Random.random,
        },
        "sum_beside_backward": {"grad": wide_rows, "out": rows, "threads": small_number, **FACTORS},
        "drop_stored": {
            "values": edge_values,
            "ids": ids,
            "p": Random.random,
            "key": number,
            "out": edge_values,
            "threads": small_number,
        },
        "edge_dot": {"x": rows, "grad": rows, "out": edge_values, "threads": small_number},
        "max": {"x": rows, "out": rows, "arg": places, "threads": small_number},
        "max_backward": {"grad": rows, "arg": places, "out": rows, "threads": small_number},
    },
    "RowFile": {
        "announce": {"rows": ids},
        "read": {"ids": ids, "out": few_bytes},
        "fill": {"rows": ids},
        "take": {"out": few_bytes},
        "count": {},
        "forget": {},
    },
    "Numbering": {"add": {"ids": ids}, "nodes": {}},
    "Loader": {"take": {}, "last_work": {}, "close": {}},
}
# Fields of arguments that have no place of their own in a signature.
FIELDS = "csc|weight|wanted|features|floor|sharpness|similarity|cluster|rows|sources|counts|keys|times|by time|bounds|window|latest|trees|edge_types|num_neighbors|walk_length|num_walks|alpha|seeds|offsets|first step|fanouts?"
FIELDS += "|importance|redraw|key|walks|num_hops|grid|allocate|table|num_sources|num_classes|columns|prefetch|indices|indptr|edges|num_nodes|draws|input_nodes|replacement|byte|take"


def check_named(error: BaseException, arguments: Mapping[str, Make]) -> None:
    """Fails unless callers expect `error` and the message names an argument."""
    if isinstance(error, RuntimeError) and "no more batches" in str(error):
        return
    if not arguments and (isinstance(error, MemoryError) or "array is too big" in str(error)):
        return  # `allocate` of the caller, in `Loader.take`
    assert isinstance(error, REFUSED), f"{type(error).__name__}: {error}"
    names = "|".join([*arguments, FIELDS])
    assert re.search(rf"\b({names})\b", str(error)), f"no argument named: {type(error).__name__}: {error}"


def call(random: Random, function: Callable[..., Any], arguments: Mapping[str, Make]) -> Any:
    """The result of one call, or None where it is refused."""
    one_in = random.choice([4, 16, 1000, 1000])
    try:
        run_keys = {name: odd(random, make, one_in) for name, make in arguments.items()}
        if {"indptr", "indices"} <= run_keys.keys() and random.random() < 0.7:
            num_sources = random.choice([8, 8, 8, 12, 5, 1])  # other than the eight nodes in a bipartite graph
            run_keys["indptr"], run_keys["indices"] = graph(random, num_sources)
            if "num_sources" in run_keys and num_sources != 8:
                run_keys["num_sources"] = num_sources
        return function(**run_keys)
    except BaseException as error:
        check_named(error, arguments)
        return None


def run(case: int) -> None:
    """One function or constructor of the core, and the methods of what it makes."""
    random = Random(case)
    name = random.choice(list(FUNCTIONS))
    owner, _, method = name.partition(".")
    function = getattr(_core, owner)
    result = call(random, getattr(function, method) if method else function, FUNCTIONS[name])
    for method, arguments in METHODS.get(type(result).__name__, {}).items():
        for _ in range(3):
            call(random, getattr(result, method), arguments)


def fuzz(first: int, num_cases: int, seconds: float) -> None:
    """Runs cases from `first` on, for some seconds where these are not 0."""
    begin = time.monotonic()
    for case in itertools.count(first):
        if time.monotonic() - begin > seconds if seconds else case - first == num_cases:
            return
        print(case, flush=True)
        run(case)


def test_every_function_of_the_core_has_random_arguments() -> None:
    public = {name for name in dir(_core) if not name.startswith("_")} - {"Memory"}
    assert public == {name.partition(".")[0] for name in FUNCTIONS}
    for kind, methods in METHODS.items():
        named = {name for name in vars(getattr(_core, kind)) if not name.startswith("_")}
        of_class = {name.partition(".")[2] for name in FUNCTIONS if name.startswith(f"{kind}.")}
        assert named - of_class - {"num_sources", "num_destinations", "num_edges"} == set(methods)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "num_cases"), [(0, FEW), exhaustive((FEW, CASES - FEW))])
def test_random_arguments_are_answered_or_refused_by_name(first: int, num_cases: int) -> None:
    seconds = float(os.environ.get("GNNKIT_FUZZ_SECONDS", "0"))  # 0: the same cases on every machine
    first = int(os.environ.get("GNNKIT_FUZZ_FIRST", first))
    command = [sys.executable, __file__, str(first), str(num_cases), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 280)
    cases = done.stdout.split()
    assert done.returncode == 0, f"case {cases[-1:]} ended with {done.returncode}: {done.stderr[-2000:]}"
    assert seconds or len(cases) == num_cases


ring = CSC(np.arange(9), (np.arange(8) + 1) % 8)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            lambda: MetropolisHastingsSampler([3], num_walks=2**40),
            "num_walks=1099511627776 must be a whole number from 1 to",
        ),
        (
            lambda: MetropolisHastingsSampler([3], walk_length=2**40),
            "walk_length=1099511627776 must be a whole number from 1 to",
        ),
        (
            lambda: MetropolisHastingsSampler([3], walk_length=2**62),
            "walk_length=4611686018427387904 must be a whole number from 1 to",
        ),
        (
            lambda: MetropolisHastingsSampler([3], walk_length=2**70),
            "walk_length=1180591620717411303424 must be a whole number from 1 to",
        ),
        (
            lambda: MetropolisHastingsSampler([3], walk_length=2**13, num_walks=2**13),
            "num_walks=8192 times sampler.options.walk_length=8192 must be at most 16777216 steps",
        ),
        (lambda: NeighborSampler([3, 2**63]), r"fanouts\[1\]=9223372036854775808 must be a whole number from -1 to"),
        (
            lambda: NeighborSampler([2**40], replace=True),
            r"fanouts\[0\]=1099511627776 must be a whole number from -1 to",
        ),
        (lambda: NeighborSampler([1] * 5000), "fanouts has 5000 hops, expected 1 to 1000"),
        (
            lambda: list(Loader(ring, NeighborSampler([3]), threads=2**20)),
            "threads=1048576 must be a whole number from 1 to 1024",
        ),
        (
            lambda: list(Loader(ring, NeighborSampler([3]), prefetch=2**40)),
            "prefetch=1099511627776 must be a whole number from 1 to 65536",
        ),
        (lambda: CSC(ring.indptr, ring.indices, num_sources=2**40).out_degree(), "num_sources = 1099511627776 needs"),
        (lambda: CSC(ring.indptr, ring.indices, num_sources=2**62).out_degree(), "num_sources = 46116860184273879"),
        (lambda: _core.generate_lattice(5, 0, 2), "side = 0 must be within"),
        (lambda: _core.even_order(np.ones(4), 0, 1, 1, 0), "num_workers = 0 must be within"),
        (lambda: _core.Sampler.cluster(2**60), "num_hops=1152921504606846976 must be at most 1024"),
        (lambda: _core.Aggregator(ring.indptr, ring.indices, 2**32), "4294967296 sources are more than the limit"),
    ],
)
def test_counts_beyond_their_bounds_are_refused_at_once(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refused()


IN_LITTLE_MEMORY = """
import resource
import numpy as np
from gnnkit import _core
from gnnkit.errors import UserError

indptr, indices = np.arange(9), (np.arange(8) + 1) % 8
many = 2**29
aggregator = _core.Aggregator(indptr, indices, many)
calls = {
    "num_sources": lambda: _core.csc_degrees(indptr, indices, many, None),
    "num_sources ": lambda: aggregator.transpose(),
    "num_nodes": lambda: _core.csc_transpose(indptr, indices, many),
    "num_nodes ": lambda: _core.generate_rmat(many, 9, 1),
    "num_nodes  ": lambda: _core.generate_labels(many, 2),
    "width": lambda: _core.generate_features(np.zeros(8, np.int64), many, 0.5, 1),
}
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
for name, call in calls.items():
    try:
        call()
    except UserError as error:
        assert str(error) == f"{name.strip()} = {many} needs more memory than there is", error
    else:
        raise AssertionError(name)
"""


@pytest.mark.slow
def test_allocations_that_the_system_refuses_are_errors() -> None:
    command = [sys.executable, "-c", IN_LITTLE_MEMORY]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [1.5, None, "a", [1]])
def test_arguments_of_another_type_are_named(value: object) -> None:
    with pytest.raises(TypeError, match="num_nodes must be a whole number, got"):
        _core.generate_labels(value, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key must be a whole number, got"):
        _core.shuffled_order(np.arange(3), value)  # type: ignore[arg-type]


def test_buffers_are_writeable_large_enough_and_nobody_elses() -> None:
    class Short(Loader):
        def __init__(self, allocate: Callable[[int], object]) -> None:
            super().__init__(ring, NeighborSampler([3]), features=np.ones((8, 2)), threads=1)
            self._allocate = allocate  # type: ignore[assignment]

    def read_only(size: int) -> object:
        made = np.empty(size, np.uint8)
        made.flags.writeable = False
        return made

    shared = np.empty(1024, np.uint8)
    with pytest.raises(UserError, match="allocate: returned 5 bytes for 128"):
        list(Short(lambda size: np.empty(5, np.uint8)))
    with pytest.raises(UserError, match="allocate: returned an object that somebody else holds"):
        list(Short(lambda size: shared))
    with pytest.raises(UserError, match=r"allocate: .*writeable"):
        list(Short(read_only))


def test_a_reading_names_the_array_that_does_not_fit() -> None:
    with pytest.raises(TypeError, match="wanted must be a one-dimensional NumPy array of dtype"):
        NeighborSampler([2]).draw(Reading(ring, wanted=np.ones(8, np.float32)), np.arange(2), 0, key=1)


@pytest.mark.parametrize(
    ("features", "floor", "message"),
    [
        (np.ones(8), 0.1, "features must be a two-dimensional NumPy array of float32 or float64, got"),
        (np.ones((8, 2), np.float16), 0.1, "features must be a two-dimensional NumPy array of float32 or float64"),
        ([[1.0]] * 8, 0.1, "features must be a two-dimensional NumPy array of float32 or float64, got"),
        (np.ones((2, 8)).T, 0.1, "features: must be C-contiguous and aligned"),
        (np.frombuffer(b"\0" * 65, np.uint8)[1:].view(np.float64).reshape(8, 1), 0.1, "features: must be C-contiguous"),
        (np.ones((7, 2)), 0.1, "features has 14 entries, expected 16"),
        (np.ones((9, 2), np.float32), 0.1, "features has 18 entries, expected 16"),
        (np.ones((8, 2)), "a", "floor must be a number, got"),
        (np.ones((8, 2)), None, "floor must be a number, got"),
        (np.ones((8, 2)), -0.5, "floor = -0.5 is not a finite number of at least 0"),
        (np.ones((8, 2)), np.inf, "floor = inf is not a finite number of at least 0"),
        (np.full((8, 2), np.nan), 0.1, r"similarity\[0\] = NaN is not finite"),
        (np.full((8, 2), 1e300), 0.1, r"similarity\[0\] = NaN is not finite"),
    ],
)
def test_rows_to_compare_are_refused_by_name(features: Any, floor: Any, message: str) -> None:
    reading = Reading(ring, features=features, preference=Preference(floor))
    with pytest.raises((UserError, TypeError), match=message):
        _core.visited(reading, np.arange(2), (3, 2, 1.0), 1)
    with pytest.raises((UserError, TypeError), match=message):
        MetropolisHastingsSampler([2]).native().sample(reading, np.arange(2), 1, 2)
    native, steps = MetropolisHastingsSampler([2]).native(), (np.arange(2), [0, 2], 0, 7)
    with pytest.raises((UserError, TypeError), match=message):
        _core.Loader(reading, native, steps, (), lambda size: np.empty(size, np.uint8), 1, 1).take()


def test_tables_without_nodes_or_columns_are_walked_by_the_floor() -> None:
    empty = CSC(np.zeros(1, np.int64), np.empty(0, np.int64))
    for csc, num_starts, width in ((empty, 0, 2**40), (ring, 8, 0)):
        reading = Reading(csc, features=np.empty((csc.num_nodes, width)), preference=Preference(0.5))
        assert len(_core.visited(reading, np.arange(num_starts), (3, 2, 1.0), 1)) == num_starts * 2 * 4


if __name__ == "__main__":
    fuzz(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
