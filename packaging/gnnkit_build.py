"""Builds gnnkit by maturin, and says in one line where Rust is missing.

Without Rust, maturin itself would download a toolchain, or end with
`No module named 'puccinialin'` where it cannot.
"""

import shutil
from typing import Any

import maturin


def __getattr__(hook: str) -> Any:
    """Returns a hook of maturin's build backend (PEP 517), after a look for Rust."""
    if not hook.startswith("__") and shutil.which("cargo") is None:
        raise SystemExit(
            "gnnkit: a build from source needs Rust 1.89 or later, and there is no cargo on the PATH: install Rust "
            "from https://rustup.rs, or install a wheel of gnnkit, which needs no Rust"
        )
    return getattr(maturin, hook)
