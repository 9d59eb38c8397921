"""Processes that run while a test looks, any of which may end meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil


def in_folder(folder: Path) -> list[psutil.Process]:
    """Returns the processes whose working folder is `folder`."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]


def children(parent: int) -> dict[int, list[str]]:
    """Returns the commands of a process' running children, by process id."""
    processes = psutil.process_iter(["ppid", "status", "cmdline"])
    return {
        process.pid: process.info["cmdline"]
        for process in processes
        if process.info["ppid"] == parent and process.info["status"] != psutil.STATUS_ZOMBIE
    }


def listening(pids: Sequence[int]) -> set[str]:
    """Returns the TCP addresses at which processes listen."""
    connections = [connection for pid in pids for connection in psutil.Process(pid).net_connections("tcp")]
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
