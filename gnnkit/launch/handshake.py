"""Comparison of separately started ranks, before the first step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

import torch

from gnnkit.comm import LEADER, Communicator
from gnnkit.errors import UserError

_MISSING = "nothing"
_LONGEST = 200  # maximum characters of a value in a message


def agree(comm: Communicator, identity: Mapping[str, str], remedy: str = "") -> None:
    """Raises `UserError` on all ranks unless they have the same identity. Collective.

    The leader compares. The message names the first key that differs, with the ranks
    and their values.

    Args:
        identity: This rank's values, by configuration key or name.
        remedy: The message's last part: what to do.
    """
    text = json.dumps(dict(identity)).encode()
    parts = comm.gather(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(comm.device), dst=LEADER)
    records = [json.loads(bytes(record.tolist())) if len(record) else None for record in parts]  # empty for a lost rank
    problem = comm.share(difference(records) if records else None, src=LEADER)
    if problem is not None:
        _part(comm)
        raise UserError(problem + remedy)


def difference(identities: Sequence[Mapping[str, str] | None]) -> str | None:
    """Returns a message about the first key that differs, or None.

    Args:
        identities: Each rank's values, by configuration key or name. None for a lost
            rank.
    """
    identity_by_rank = {rank: identity for rank, identity in enumerate(identities) if identity is not None}
    for key in dict.fromkeys(key for identity in identity_by_rank.values() for key in identity):
        ranks: dict[str, list[int]] = {}
        for rank, identity in identity_by_rank.items():
            ranks.setdefault(identity.get(key, _MISSING), []).append(rank)
        if len(ranks) > 1:
            values = ", ".join(f"{_format_ranks(holders)} {key}={_shorten(value)}" for value, holders in ranks.items())
            return f"{key} must be the same on all ranks: {values}"
    return None


def _part(comm: Communicator) -> None:
    """Waits until every rank has the leader's answer, so that none leaves early."""
    with contextlib.suppress(RuntimeError):
        comm.all_reduce(torch.zeros(1, device=comm.device))


def _format_ranks(ranks: Sequence[int]) -> str:
    """Formats ascending ranks, such as `ranks 0-2, 5 have`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs)
    return f"ranks {text} have" if len(ranks) > 1 else f"rank {text} has"


def _shorten(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
