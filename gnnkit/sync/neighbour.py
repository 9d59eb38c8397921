"""Synchronisation among neighbours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.sync.base import GradientSync, gradients, trained
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole

Links = list[list[int]]  # the neighbours of each rank, by rank
_NOT_ONE = (
    "sync=neighbour: workers that are not neighbours keep different parameters; all metrics describe their mean, "
    "which is saved"
)


class Neighbour(GradientSync):
    """Averages among workers with partitions that are connected by an edge.

    A worker waits for its neighbours only. Messages are matched by number, so the
    result does not depend on timing. Choose this sync to avoid communication between
    all pairs of workers.

    With `exchange="gradients"`, a worker steps with the mean gradient of itself and its
    neighbours, weighted by rows. This is exact if all workers are neighbours. With
    `"parameters"`, a worker steps alone and then averages its parameters with
    Metropolis weights, which preserve the mean over all workers (Lian et al., NeurIPS
    2017). To keep workers with different classes from diverging, it steps with an
    estimate of the global gradient: the averaged estimate plus the change of the
    worker's own gradient (gradient tracking; Pu and Nedic, Math. Program. 2021).

    If the workers are not connected, a ring over all workers is added.
    """

    exact = False
    drifts = True
    collective = False
    finishes = True

    def __init__(self, exchange: Literal["gradients", "parameters"] = "gradients", rounds: int = 1) -> None:
        """Checks the options.

        Args:
            exchange: gradients or parameters. Default: gradients.
            rounds: Number of exchanges with the neighbours per step. Default: 1.
        """
        self.exchange = one_of("sync.exchange", exchange, ("gradients", "parameters"))
        self.rounds = whole("sync.options.rounds", rounds, 1, MAX_COUNT)
        self._is_exact = False  # set by `set_exact`

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        super().setup(module, comm)
        self.own_mailbox = comm.mailbox() if mailbox is None else None
        self.mailbox: Mailbox = mailbox or self.own_mailbox  # type: ignore[assignment]
        self.number = 0  # number of the next message to each neighbour
        self.tracked = torch.zeros(0)  # [num_parameters] estimate of the global gradient
        self.latest = torch.zeros(0)  # [num_parameters] this rank's gradient included in `tracked`
        links = connect_links(_links(module, comm), announce=comm.rank == 0)
        if comm.rank == 0 and any(len(peers) < comm.world_size - 1 for peers in links):
            print(_NOT_ONE, file=sys.stderr, flush=True)
        self.neighbours = links[comm.rank]
        self._members = sorted([comm.rank, *self.neighbours])  # fixes the summation order
        self.sums = dict.fromkeys(self._members, 1.0)
        self.metropolis = metropolis(links, comm.rank)

    def costs(self) -> str:
        reason = "a worker steps with the mean gradient of its neighbours"
        if self.exchange == "parameters":
            reason = "workers step alone and average their parameters with those of their neighbours"
        return approximate(f"sync.exchange={self.exchange}", reason)

    def close(self) -> None:
        if self.own_mailbox is not None:
            self.own_mailbox.close()

    def set_exact(self, module: nn.Module, exact: bool) -> None:
        self._is_exact = exact

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        parameters = trained(module)
        grads = gradients(parameters)
        if self._is_exact:
            from_vector(self.comm.all_reduce(to_vector(grads)), grads)
            optimizer.step()
        elif self.exchange == "parameters":
            from_vector(self._track(to_vector(grads)), grads)
            optimizer.step()
            averages = self._mix(torch.cat([to_vector(parameters), self.tracked]), self.rounds)
            new_values, self.tracked = averages.chunk(2)
            from_vector(new_values, parameters)
        elif (mean := self._mean(to_vector(grads), share)) is not None:
            from_vector(mean, grads)
            optimizer.step()

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        if (mean := self._mean(to_vector(tensors) * weight, weight)) is not None:
            from_vector(mean, tensors)

    def average_models(self, module: nn.Module, weight: float) -> None:
        self.average(list(module.parameters()), weight)

    def state_dict(self) -> dict[str, object]:
        return {"tracked": self.tracked, "latest": self.latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracked, self.latest = (state[name].to(self.comm.device) for name in ("tracked", "latest"))

    def _track(self, grads: Tensor) -> Tensor:
        """Returns the estimate of the global gradient, [num_parameters].

        The mean of all workers' estimates equals the sum of their gradients.
        """
        grads = grads * self.comm.world_size
        if len(self.tracked) != len(grads):  # in the first step, and after parameters were frozen
            self.tracked = self.latest = torch.zeros_like(grads)
        self.tracked = self.tracked + (grads - self.latest)
        self.latest = grads
        return self.tracked

    def _mean(self, part: Tensor, weight: float) -> Tensor | None:
        """Returns the weighted mean over this rank and its neighbours.

        Returns None if their weights are all 0. Several rounds first mix contributions
        and weights within the wider neighbourhood.

        Args:
            part: [num_values] this rank's values, multiplied by its weight.
        """
        values = self._mix(torch.cat([part, part.new_tensor([weight])]), self.rounds - 1)
        total = self._exchange(values, self.sums)
        return total[:-1] / total[-1] if total[-1] > 0 else None

    def _mix(self, values: Tensor, rounds: int) -> Tensor:
        """Averages with Metropolis weights, `rounds` times."""
        for _ in range(rounds):
            values = self._exchange(values, self.metropolis)
        return values

    def _exchange(self, values: Tensor, weights: dict[int, float]) -> Tensor:
        """Returns the weighted sum of this rank's and its neighbours' values."""
        tag, self.number = f"neighbour {self.number}", self.number + 1
        for rank in self.neighbours:
            self.mailbox.put(rank, tag, tensors={"values": values})
        total = torch.zeros_like(values)
        for rank in self._members:
            total += weights[rank] * (values if rank == self.comm.rank else self._take(tag, rank).to(values.device))
        return total

    def _take(self, tag: str, rank: int) -> Tensor:
        return self.mailbox.take(tag, src=rank, timeout=self.comm.timeout).tensors["values"]


def metropolis(links: Links, rank: int) -> dict[int, float]:
    """Returns the Metropolis weights of a rank and its neighbours.

    Two neighbours have the weight 1 / (1 + the larger degree of the two), and the rank
    itself has the remainder. The weight matrix is symmetric and its rows add up to 1.
    """
    weights = {peer: 1 / (1 + max(len(links[rank]), len(links[peer]))) for peer in links[rank]}
    return {rank: 1 - sum(weights.values())} | weights


def connect_links(links: Links, *, announce: bool = False) -> Links:
    """Returns the links, with a ring of all ranks added if they are not connected.

    Args:
        links: Each rank's neighbours.
        announce: Whether to print a notice if the ring is added.
    """
    size, component, ahead = len(links), {0}, [0]
    while ahead:
        new = set(links[ahead.pop()]) - component
        component |= new
        ahead += new
    if len(component) == size:
        return links
    if announce:
        apart = next(rank for rank in range(size) if rank not in component)
        text = f"sync=neighbour: workers 0 and {apart} are not connected by edges, so a ring of all workers is added"
        print(text, file=sys.stderr, flush=True)
    ring = [{(rank - 1) % size, (rank + 1) % size} - {rank} for rank in range(size)]
    return [sorted({*peers, *ring_peers}) for peers, ring_peers in zip(links, ring, strict=True)]


def _links(module: nn.Module, comm: Communicator) -> Links:
    """Returns every worker's neighbours. Collective.

    Without a worker, or if a worker's neighbours are unknown, they are all workers.
    """
    peers = getattr(getattr(module, "worker", None), "peers", None)
    has_link = torch.zeros(comm.world_size, comm.world_size, dtype=torch.int64, device=comm.device)
    has_link[comm.rank, list(range(comm.world_size)) if peers is None else list(peers)] = 1
    has_link[comm.rank, comm.rank] = 0
    has_link = comm.all_reduce(has_link)
    return [row.nonzero().flatten().tolist() for row in (has_link + has_link.T).cpu()]
