"""Compares the ranks with plain torch on random cases, until a time limit."""

from __future__ import annotations

import argparse
import time
import traceback
from random import Random

import torch
from gnnkit_witness.check import check_plan

from tests.witness.cases import draw, draw_negatives


def main() -> int:
    """Returns the exit status: 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.witness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit in seconds (default: 60)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case (default: 0)")
    parser.add_argument("--cases", type=int, default=None, help="maximum number of cases (default: unlimited)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end, seed, num_failed = time.monotonic() + options.seconds, options.first, 0
    while time.monotonic() < end and (options.cases is None or seed < options.first + options.cases):
        num_failed += not _agrees(seed)
        seed += 1
    print(f"{seed - options.first} cases from seed {options.first} on, {num_failed} failed")
    return int(num_failed > 0)


def _agrees(seed: int) -> bool:
    words = "no case"
    try:
        case = draw(Random(seed))
        words = case.words
        check_plan(case.plan)
        draw_negatives(Random(seed))()
    except Exception as error:  # a failed case does not end the search
        if not isinstance(error, AssertionError):
            traceback.print_exc(limit=-3)
        print(f"seed {seed}: {error}\n  {words}\n  again: --first {seed} --cases 1", flush=True)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
