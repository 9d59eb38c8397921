"""A billion edges: imported, cut, trained and evaluated in little memory.

    uv run python benchmarks/billion.py --folder DISK --edges 1e9 --nodes 25e6 --limit 4

Draws edges by R-MAT into a folder of Parquet parts or into pairs of int64, and rows of
features and labels. Then runs job=import and a run of 20 steps in two
processes, as a user does, each within a control group of `--limit` GiB, which counts
the system's cache of files too (Linux, as root; without that, `ulimit -d` bounds the
memory of each process alone). Prints seconds, those of 100 million edges, and the peak
of anonymous memory of each process, in MiB. "disk s" is the time to read the edges and
write the bytes of the store once, by the disk's own speeds in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from store import Memory

from gnnkit import _core

CHUNK = 20_000_000  # edges that are drawn at once
ROWS = 1 << 20  # of features that are drawn at once
GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # by version
LIMITS = {"memory.limit_in_bytes", "memory.max"}
BATCH, WORKERS, CLASSES = 64, 2, 16
SEEDS = 20 * BATCH * 8  # of 20 steps of 8 parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk with room for 60 bytes an edge")
    parser.add_argument("--edges", type=float, default=1e9)
    parser.add_argument("--nodes", type=float, default=25e6)
    parser.add_argument("--width", type=int, default=48, help="float32 columns")
    parser.add_argument("--limit", type=float, default=4.0, help="GiB of the control group")
    parser.add_argument("--memory", default="2GB", help="memory= of job=import")
    parser.add_argument("--form", choices=["parquet", "npy"], default="parquet")
    options = parser.parse_args()
    folder, limit = options.folder, int(options.limit * 2**30)
    tables, store = folder / "tables", folder / "store"
    start = time.monotonic()
    draw(tables, int(options.nodes), int(options.edges), options.width, options.form)
    print(f"drawn in {time.monotonic() - start:.0f} s: {size(tables) / 1e9:.1f} GB", flush=True)
    reads = ["strategy=individual_sample", f"strategy.batch_size={BATCH}", "parts=8"]
    import_keys = ["job=import", "dataset=edges", f"dataset.root={tables}", f"memory={options.memory}", *reads[:1]]
    shares = [SEEDS / options.nodes, SEEDS / options.nodes / 100, SEEDS / options.nodes / 100]  # train, validate, test
    import_keys.append(f"dataset.split=[{','.join(f'{share:.6f}' for share in shares)}]")
    seconds = timed("import", [*import_keys, "workers=8", f"output={store}"], limit)
    print(
        f"import: {seconds / options.edges * 1e8:.1f} s for 100 M edges; store of {size(store) / 1e9:.1f} GB; "
        f"disk s {disk_seconds(folder, size(tables / 'edges.parquet', tables / 'edges.npy'), size(store)):.0f}",
        flush=True,
    )
    train_keys = [*reads, f"workers={WORKERS}", "dataset=store", f"dataset.root={store}", "features.place=disk"]
    train_keys += ["sampler.fanouts=[10,5]", "trainer.max_epochs=1", "cache=false", "write=[]"]
    train_keys += ["trainer.evaluation_memory=128"]  # of each of 8 parts
    timed("train", [*train_keys, f"output={folder / 'run'}"], limit)
    result = json.loads((folder / "run" / "result.json").read_text())
    print({name: result.get(name) for name in ("train_loss", "val_accuracy", "test_accuracy", "seconds_per_epoch")})


def draw(folder: Path, nodes: int, edges: int, width: int, form: str) -> None:
    """Writes tables of edges, rows, labels and splits, unless they are there."""
    if (folder / "drawn").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "edges.parquet").mkdir(parents=True)
    if form == "npy":
        (folder / "edges.parquet").rmdir()
        pairs = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int64, (edges, 2))
    for number, first in enumerate(range(0, edges, CHUNK)):
        count = min(CHUNK, edges - first)
        indptr, src, _ = _core.generate_rmat(nodes, count, number)
        dst = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(indptr))
        order = np.random.default_rng(number).permutation(count)
        if form == "npy":
            pairs[first : first + count] = np.stack([src[order], dst[order]], 1)
        else:
            part = pa.table({"src": src[order], "dst": dst[order]})
            pq.write_table(part, folder / "edges.parquet" / f"part-{number:05d}.parquet", use_dictionary=False)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, nodes)
    rows = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (nodes, width))
    for first in range(0, nodes, ROWS):
        part = rows[first : first + ROWS]
        part[:] = rng.standard_normal(part.shape, np.float32)
        part[np.arange(len(part)), labels[first : first + ROWS]] += 3
    np.save(folder / "labels.npy", labels)
    (folder / "drawn").touch()


def size(*paths: Path) -> int:
    """Counts the bytes of files, or of folders, that are there."""
    files = (part for path in paths for part in ([path] if path.is_file() else path.rglob("*")))
    return sum({file.stat().st_ino: file.stat().st_size for file in files if file.is_file()}.values())


def disk_seconds(folder: Path, read: int, num_written: int) -> float:
    """Measures the disk by a file of 1 GiB, written and then read past the cache."""
    path, block = folder / "disk", bytes(1 << 20)
    start = time.monotonic()
    with path.open("wb") as file:
        for _ in range(1024):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    writes = 2**30 / (time.monotonic() - start)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.monotonic()
        while file.read(1 << 20):
            pass
    reads = 2**30 / (time.monotonic() - start)
    path.unlink()
    return read / reads + num_written / writes


def timed(name: str, keys: list[str], limit: int) -> float:
    """Runs a command within the limit, and prints its seconds and memory."""
    start = time.monotonic()
    with (
        group(limit) as prefix,
        subprocess.Popen([*prefix, sys.executable, "-m", "gnnkit", *keys, "on_exists=replace"]) as process,
    ):
        memory = Memory(process.pid, "RssAnon")
        code = memory.watched(process)
    seconds = time.monotonic() - start
    peaks = ", ".join(f"{value / 1024:.0f}" for value in sorted(memory.peaks.values(), reverse=True)[:5])
    print(f"{name}: {seconds:.0f} s, exit code {code}, MiB of processes: {peaks}", flush=True)
    if code:
        sys.exit(code)
    return seconds


@contextlib.contextmanager
def group(limit: int) -> Iterator[list[str]]:
    """Yields what comes before a command that is to live within `limit` bytes."""
    cgroup = None
    for root in GROUPS:
        with contextlib.suppress(OSError):
            cgroup = root / "gnnkit-billion"
            cgroup.mkdir(exist_ok=True)
            (name,) = LIMITS & {path.name for path in cgroup.iterdir()}
            (cgroup / name).write_text(str(limit))
            break
    else:
        print("no control group: ulimit -d bounds each process")
        yield ["bash", "-c", f'ulimit -d {limit // 1024}; exec "$@"', "limited"]
        return
    try:
        yield ["bash", "-c", f'echo $$ >{cgroup}/cgroup.procs; exec "$@"', "limited"]
    finally:
        with contextlib.suppress(OSError):
            cgroup.rmdir()


if __name__ == "__main__":
    main()
