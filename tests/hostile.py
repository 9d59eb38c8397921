"""Random cases in a process of little memory, for tests of what users may pass."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

ROOM = 2**32  # bytes of address space, beside what the imported packages have
SECONDS = 60  # of processor time that a case may take
ODD: list[Any] = [-1, 0, 2**33, 2**40, 2**62, 2**63 - 1, 2**63, 2**70, -(2**63), 10**400, 1.5, -0.5, 1e9, 1e300]
ODD += [float("nan"), float("inf"), None, True, "a", "10", b"a", "", [], {}, (1, 2), [None], {"a": 1}, object()]
NUMBERS = [-1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), -5, 10**6]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8]
DTYPES += [torch.int16, torch.int32, torch.int64, torch.complex64]
REFUSED = (ValueError, TypeError)  # `UserError` is the former


def odd_tensor(random: Random, tensor: torch.Tensor) -> Any:
    """Returns a tensor with something that nobody expects."""
    kinds: list[Callable[[], Any]] = [
        lambda: _with_number(random, tensor),
        lambda: _with_number(random, tensor),
        lambda: tensor.to(random.choice(DTYPES)),
        lambda: _with_number(random, tensor.to(random.choice(DTYPES))),
        lambda: tensor[..., : random.randrange(tensor.shape[-1] + 1)],
        lambda: torch.cat([tensor, tensor], -1),
        lambda: tensor[None],
        lambda: tensor.flatten()[:0],
        lambda: tensor.t() if tensor.dim() == 2 else tensor[0],
        lambda: torch.cat([tensor, tensor], -1)[..., ::2],
        tensor.numpy,
        tensor.tolist,
        tensor.to_sparse,
        lambda: tensor.to("meta"),
        lambda: tensor.double().requires_grad_(),
        lambda: np.array(["2020-01-01", "NaT"], "M8[s]"),
    ]
    return random.choice(kinds)() if random.random() < 0.85 else random.choice(ODD)


def _with_number(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    number = random.choice(NUMBERS)
    if tensor.is_floating_point():
        number = random.choice([float("nan"), float("inf"), -1.0, 0.5, 2.0**60])  # type: ignore[assignment]
    elif tensor.dtype != torch.int64:
        number = random.choice([0, 1, 100])
    if tensor.numel():
        tensor.view(-1)[random.randrange(tensor.numel())] = number
    return tensor


def fuzz(run: Callable[[Random], None], first: int, num_cases: int, seconds: float) -> None:
    """Runs cases from `first` on, for some seconds where these are not 0.

    Prints the number of each case, and the outcomes in the end. Ends at the first case
    that is not answered, or refused by a `ValueError` or `TypeError`.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = ROOM + pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    begin, num_refusals = time.monotonic(), 0
    for case in itertools.count(first):
        if time.monotonic() - begin > seconds if seconds else case - first == num_cases:
            break
        print(case, flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
        signal.alarm(10 * SECONDS)  # for one that waits
        try:
            run(Random(case))
        except REFUSED:
            num_refusals += 1
        except NotImplementedError as error:  # as in PyG, "'weight_attr' is unsupported for ..."
            if "is unsupported for" not in str(error):
                raise
    print(
        f"{case - first} cases, {num_refusals} of them refused, {time.monotonic() - begin:.0f} seconds", file=sys.stderr
    )


def check_cases(module: str, few: int) -> None:
    """Runs some cases of a module's `main` in a process of their own."""
    seconds = float(os.environ.get("GNNKIT_FUZZ_SECONDS", "0"))  # 0: the same cases on every machine
    count = int(os.environ.get("GNNKIT_FUZZ_EXAMPLES", few))
    first = int(os.environ.get("GNNKIT_FUZZ_FIRST", "0"))
    command = [sys.executable, "-m", module, str(first), str(count), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + count + 240)
    assert done.returncode == 0, f"case {done.stdout.split()[-1:]} ended with {done.returncode}: {done.stderr[-3000:]}"
    print(done.stderr)
