"""One run on two hosts, each with a torchrun of its own.

A host is a network namespace where this machine and user can make one, else an agent of
torchrun on loopback.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, run
from gnnkit.jobs import start as start_job
from gnnkit.training import checkpoint
from tests.cases import few
from tests.launch.outside import FOREIGN
from tests.ports import free_port
from tests.waiting import GUARD, NEVER

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RUN = ("dataset=synthetic", "dataset.num_nodes=300", "model.hidden=8", "threads=1", "seed=3")
TRAINED = ("strategy.batch_size=32", "sampler.fanouts=[4,3]", "trainer.max_epochs=3", "comm.timeout=120")


@dataclass(frozen=True)
class Host:
    """A place for one torchrun."""

    address: str
    card: str  # interface with this address
    command: list[str] = field(default_factory=list)  # what stands before a command that runs there


@contextlib.contextmanager
def two_hosts(link: ModuleType) -> Iterator[tuple[Host, Host]]:
    """Two namespaces that a bridge joins, or loopback twice."""
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(link.Network(2, link.Shape(gigabits=10)))
        except link.Unavailable as error:
            print(f"two agents of torchrun on loopback take the place of two hosts: {error}")
            yield Host("127.0.0.1", "lo"), Host("127.0.0.1", "lo")
        else:
            first, second = (Host(network.address(i), link.CARD, network.command(i)) for i in range(2))
            yield first, second


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("link")
    sys.modules.pop("link")


def start(
    hosts: Sequence[Host], number: int, port: int, folder: Path, overrides: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts the torchrun of one host, in a working directory of its own."""
    places = folder / f"host{number}"
    places.mkdir()
    output = (folder / f"out{number}").open("w")
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}"]
    meeting = [f"--master-addr={hosts[0].address}", f"--master-port={port}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return subprocess.Popen(
        [*hosts[number].command, *agent, *meeting, "-m", "gnnkit", *overrides],
        cwd=places,
        env=kept | {"GLOO_SOCKET_IFNAME": hosts[number].card, "OMP_NUM_THREADS": "1"},
        stdout=output,
        stderr=output,
    )


def listening(agent: int) -> set[str]:
    """Returns the addresses at which the ranks of an agent listen, in its network."""
    results: set[str] = set()
    for rank in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if b"torch.distributed.run" in Path(f"/proc/{rank}/cmdline").read_bytes():
            continue  # a fork of the agent, which still has the agent's sockets
        sockets = {os.readlink(each) for each in Path(f"/proc/{rank}/fd").iterdir()}
        for kind in ("tcp", "tcp6"):
            for line in Path(f"/proc/{rank}/net/{kind}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    results.add(address(words[1].split(":")[0]))
    return results


def address(digits: str) -> str:
    """Spells an address of /proc/net: words of 32 bits, last byte first."""
    words = b"".join(bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8))
    read = ip_address(words)
    return str(read if isinstance(read, IPv4Address) else read.ipv4_mapped or read)


def on_two_hosts(hosts: Sequence[Host], folder: Path, overrides: Sequence[str]) -> list[set[str]]:
    """Runs the command. Returns the addresses at which the ranks of a host listened."""
    port = free_port()
    agents = [start(hosts, number, port, folder, overrides) for number in range(2)]
    results: list[set[str]] = [set(), set()]
    try:
        while any(agent.poll() is None for agent in agents):
            for number, agent in enumerate(agents):
                with contextlib.suppress(OSError):  # a process that ends
                    results[number] |= listening(agent.pid)
            time.sleep(0.1)
        assert [agent.returncode for agent in agents] == [0, 0], [
            (folder / f"out{number}").read_text() for number in range(2)
        ]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    return results


def losses(run: Path) -> list[tuple[int, int, float]]:
    states = map(json.loads, (run / "workers.jsonl").read_text().splitlines())
    return sorted((state["rank"], state["step"], state["loss"]) for state in states)


@few(
    "strategy",
    [
        "strategy=individual_sample strategy.topology=partitioned",
        "strategy=joint_sample",
        "strategy=joint_sample parts=5",
    ],
    default=["strategy=individual_sample strategy.topology=partitioned", "strategy=joint_sample parts=5"],
)
def test_two_hosts_train_as_two_ranks_of_one_host(tmp_path: Path, link: ModuleType, strategy: str) -> None:
    overrides = [*strategy.split(), *RUN, *TRAINED]
    with two_hosts(link) as hosts:
        actual = on_two_hosts(hosts, tmp_path, [*overrides, f"output={tmp_path}/two"])
    for addresses, host in zip(actual, hosts, strict=True):
        assert addresses == {host.address}
    start_job(Order(settle(compose([*overrides, "workers=2", f"output={tmp_path}/one"]))))
    first_run, two = tmp_path / "one", tmp_path / "two"
    assert losses(first_run) == losses(two)
    assert len(losses(two)) > 2
    np.testing.assert_array_equal(np.load(first_run / "predictions.npy"), np.load(two / "predictions.npy"))
    first, second = (json.loads((run / "result.json").read_text()) for run in (first_run, two))
    assert {name: first[name] for name in first if "accuracy" in name and "time" not in name} == {
        name: second[name] for name in second if "accuracy" in name and "time" not in name
    }
    parameters, others = (checkpoint.load(run / "checkpoints/last.json")["state_dict"] for run in (first_run, two))
    assert parameters.keys() == others.keys()
    assert all(torch.equal(parameters[name], others[name]) for name in parameters)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host0", "host1", "one", "out0", "out1", "two"]
    assert not list(tmp_path.glob("host*/*"))  # everything is in the folder that both hosts see
    assert not (two / "prepared").exists()


@few("way", ["", "parts=4", "sync=parameter_server"], default=["", "parts=4"])
def test_a_cut_cable_ends_both_sides_before_the_deadline_and_the_run_goes_on_to_the_bit(
    tmp_path: Path, link: ModuleType, way: str
) -> None:
    """The leader's checkpoint is whole."""
    strategy = "preset_workload" if way == "sync=parameter_server" else "vertex_centric"
    keys = [
        *way.split(),
        *RUN,
        f"strategy={strategy}",
        f"comm.timeout={NEVER}",
        "trainer.checkpoint_every=2",
        "report=false",
    ]
    keys += ["trainer.check_val_every_n_epoch=1"]  # auto depends on the planned number of epochs
    keys += ["trainer.exact_shares=[0,0]"] * (strategy == "preset_workload")  # auto, too
    run = tmp_path / "run"
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(link.Network(2, link.Shape(gigabits=10)))
        except link.Unavailable as error:
            pytest.skip(f"no cable to cut: {error}")
        ranks = [by_itself(network, link, rank, tmp_path, [*keys, f"output={run}"]) for rank in range(2)]
        stack.callback(lambda: [(rank.kill(), rank.wait()) for rank in ranks])
        while not (run / "checkpoints/last-1.json").exists():
            assert all(rank.poll() is None for rank in ranks), (tmp_path / "out0").read_text()
            time.sleep(0.02)
        subprocess.run(["ip", "link", "set", network.host(1), "down"], check=True)
        codes = [rank.wait(GUARD) for rank in ranks]
    assert codes == [1, 1]
    assert re.search(r"rank 0: the host 10\.77\.0\.2 no longer responds", (tmp_path / "out0").read_text())
    _, before, damaged = checkpoint.load_whole(run / "checkpoints/last.json")
    assert before.name == "last.json"
    assert not damaged
    epochs = f"trainer.max_epochs={checkpoint.whole_numbers(before)['epoch'] + 2}"
    overrides = [*keys, epochs, "workers=2", "comm=gloo"] if way != "parts=4" else [*keys, epochs, "workers=2"]
    start_job(Order(settle(compose([*overrides, f"output={run}", "on_exists=resume"]))))
    start_job(Order(settle(compose([*overrides, f"output={tmp_path}/whole"]))))
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def by_itself(
    network: Any, link: ModuleType, rank: int, folder: Path, overrides: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts a rank on a host, as a person would."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    place = {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
             "MASTER_ADDR": network.address(0), "MASTER_PORT": str(link.PORT), "GLOO_SOCKET_IFNAME": link.CARD}  # fmt: skip
    with (folder / f"out{rank}").open("w") as output:
        command = [*network.command(rank), sys.executable, "-m", "gnnkit", "trainer.max_epochs=1000000", *overrides]
        return subprocess.Popen(command, env=kept | place, stdout=output, stderr=output, cwd=folder)


def test_a_host_that_does_not_see_the_run_folder_is_told_so(tmp_path: Path) -> None:
    refused = "^output=.*: host .* finds no data there that the leader prepared, name a folder on a disk that all"
    with pytest.raises(UserError, match=refused):
        run._check_shared(tmp_path)
    (tmp_path / "prepared").mkdir()
    assert run._check_shared(tmp_path) == tmp_path
