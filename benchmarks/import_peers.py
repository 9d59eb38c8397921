"""The same edges imported and cut by gnnkit, DGL, GraphBolt and PyG.

    uv run python benchmarks/import_peers.py --folder DISK --dgl ENV/bin/python

Draws pairs of int64, rows of features and labels, and has each way make of these files
what training in `--parts` processes reads. gnnkit imports with `memory=` of a quarter
of what the arrays take, or 64 MiB, and cuts by hash, ldg and fennel while it imports,
and by METIS in memory (job=partition). `--dgl` is an environment with dgl 2.1, and
`--pyg` one with torch_geometric: its `Partitioner` asks for the METIS of torch-sparse
or pyg-lib. Prints the seconds of the command, start of Python included, the largest
anonymous memory of one of its processes, the bytes of the result, and what failed.
GraphBolt prepares the whole graph for sampling, and cuts nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from store import Memory

PEERS = Path(__file__).parent / "peer"


def draw(folder: Path, nodes: int, edges: int, width: int) -> int:
    """Writes the arrays, unless they are there. Returns their bytes."""
    if not (folder / "labels.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        near = rng.integers(0, nodes, edges)  # most edges stay near, so that a cut can be better than another
        far = np.where(rng.random(edges) < 0.8, near + rng.integers(-nodes // 200, nodes // 200 + 1, edges), near[::-1])
        np.save(folder / "edges.npy", np.stack([near, far % nodes]))
        np.save(folder / "features.npy", rng.standard_normal((nodes, width), np.float32))
        np.save(folder / "labels.npy", rng.integers(0, 16, nodes))
    return sum(path.stat().st_size for path in folder.glob("*.npy"))


def ways(tables: Path, parts: int, memory: int, dgl: str | None, pyg: str | None) -> dict[str, list[str]]:
    """Lists the commands, which want the folder of the result behind."""
    data = ["dataset=edges", f"dataset.root={tables}", "strategy=vertex_centric", f"workers={parts}"]
    data += ["dataset.split=[0.6,0.2,0.2]", "features.scale=none", "dataset.symmetrize=false", "cache=false"]
    gnnkit = [sys.executable, "-m", "gnnkit", *data]
    commands = {
        f"gnnkit import, {name}": [*gnnkit, "job=import", f"memory={memory}", f"partition={name}"]
        for name in ("hash", "ldg", "fennel")
    }
    commands["gnnkit in memory, metis"] = [*gnnkit, "job=partition", "partition=metis"]
    if dgl is not None:
        cut = [dgl, str(PEERS / "cut_dgl_peer.py"), str(tables), "OUTPUT", str(parts)]
        commands |= {f"DGL partition_graph, {name}": [*cut, name] for name in ("random", "metis")}
        commands["GraphBolt, no cut"] = [*cut, "graphbolt"]
    if pyg is not None:
        commands["PyG Partitioner, metis"] = [pyg, str(PEERS / "cut_pyg_peer.py"), str(tables), "OUTPUT", str(parts)]
    return commands


def timed(command: list[str], output: Path) -> tuple[float, int, str]:
    """Runs a command. Returns seconds, KiB of memory, and why it failed."""
    shutil.rmtree(output, ignore_errors=True)
    arguments = [str(output) if word == "OUTPUT" else word for word in command]
    arguments += [f"output={output}"] if "gnnkit" in command else []
    start, log = time.perf_counter(), output.with_suffix(".txt")
    with log.open("w") as out, subprocess.Popen(arguments, stdout=out, stderr=out) as process:
        memory = Memory(process.pid, "RssAnon")
        code = memory.watched(process)
    error = "" if code == 0 else (log.read_text().strip().splitlines() or [f"exit code {code}"])[-1]
    return time.perf_counter() - start, max(memory.peaks.values(), default=0), error


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk with room for 100 bytes an edge")
    parser.add_argument("--edges", type=float, default=1e7)
    parser.add_argument("--degree", type=float, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--dgl", metavar="PYTHON")
    parser.add_argument("--pyg", metavar="PYTHON")
    parser.add_argument("--only", nargs="*", help="beginnings of the names of some ways")
    options = parser.parse_args()
    tables, nodes, edges = options.folder / "tables", int(options.edges / options.degree), int(options.edges)
    size = draw(tables, nodes, edges, options.width)
    memory = max(size // 4, 64 << 20)
    print(f"{nodes:,} nodes, {edges:,} edges, {size / 1e6:,.0f} MB of arrays, {options.parts} parts", flush=True)
    print(f"{'way':<28}{'seconds':>9}{'MiB':>8}{'MB on disk':>12}", flush=True)
    for name, command in ways(tables, options.parts, memory, options.dgl, options.pyg).items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        output = options.folder / "result"
        seconds, peak, error = timed(command, output)
        megabytes = sum(path.stat().st_size for path in output.rglob("*") if path.is_file()) / 1e6
        print(f"{name:<28}{seconds:>9.1f}{peak / 1024:>8,.0f}{megabytes:>12,.0f}  {error}", flush=True)


if __name__ == "__main__":
    main()
