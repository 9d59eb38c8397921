"""Builds gnnkit with maturin, and reports missing requirements in one line.

Without Rust, maturin itself would download a toolchain, or end with
`No module named 'puccinialin'` where it cannot.
"""

import shutil
from pathlib import Path
from typing import Any

import maturin


def __getattr__(hook: str) -> Any:
    """Returns a hook of maturin's build backend (PEP 517), if nothing is missing."""
    if hook.startswith("__"):
        return getattr(maturin, hook)
    if shutil.which("cargo") is None:
        raise SystemExit(
            "gnnkit: a build from source needs Rust 1.89 or later, and there is no cargo on the PATH: install Rust "
            "from https://rustup.rs, or install a wheel of gnnkit, which needs no Rust"
        )
    if not (Path(__file__).parents[1] / "gnnkit/conf").is_dir():  # Rust would work for minutes first
        raise SystemExit(
            "gnnkit: this copy of the sources lacks the symbolic link gnnkit/conf: make it with ln -s ../conf gnnkit/conf"
        )
    return getattr(maturin, hook)
