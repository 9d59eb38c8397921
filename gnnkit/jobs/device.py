"""The name of the device that a rank computes on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from gnnkit.ranges import num_cores

_CPUS = Path("/proc/cpuinfo")


def device_name(device: torch.device) -> str:
    """Returns the model of a GPU, or of the processor with the cores at hand."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {num_cores()} cores"


def _processor() -> str:
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "CPU"
