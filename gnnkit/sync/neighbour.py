"""Synchronisation among neighbours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.approximate import approximate
from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.average import from_vector, to_vector
from gnnkit.ranges import MAX_COUNT, one_of, whole
from gnnkit.sync.base import GradientSync, gradients, trained

Links = list[list[int]]  # the neighbours of each rank, by rank
_NOT_ONE = (
    "sync=neighbour: workers that are no neighbours keep different parameters, all figures are of the one model that "
    "is saved (trainer.final_average)"
)


class Neighbour(GradientSync):
    """Averages with the workers whose nodes share an edge with this worker's nodes.

    A worker waits for its neighbours, and for no other worker. Letters are matched by
    number, so the result does not depend on time. Choose this sync where no worker
    should talk to all others.

    With `exchange="gradients"` a worker steps with the mean gradient of itself and its
    neighbours, weighted with rows, which is exact where all workers are neighbours.
    With `"parameters"` a worker steps alone, and then averages its parameters with
    Metropolis weights, which keep the mean over all workers (Lian et al., NeurIPS
    2017). The step is with an estimate of the gradient of all workers, which is
    averaged too, and to which the change of the worker's own gradient is added
    (gradient tracking; Pu and Nedic, Math. Program. 2021). A step with the own gradient
    alone leads workers whose parts have other classes to other models.

    Without a path between all workers, a ring of all workers is added.
    """

    exact = False
    drifts = True
    collective = False

    def __init__(self, exchange: Literal["gradients", "parameters"] = "gradients", rounds: int = 1) -> None:
        """Keeps the rule.

        Args:
            exchange: gradients or parameters. Default: gradients.
            rounds: Exchanges with the neighbours in each step. Default: 1.
        """
        self.exchange = one_of("sync.exchange", exchange, ("gradients", "parameters"))
        self.rounds = whole("sync.rounds", rounds, 1, MAX_COUNT)

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        super().setup(module, comm)
        self.own_mailbox = comm.mailbox() if mailbox is None else None
        self.mailbox: Mailbox = mailbox or self.own_mailbox  # type: ignore[assignment]
        self.number = 0  # of the next letter to each neighbour
        self.tracked = torch.zeros(0)  # the gradient of all workers as estimated, [num_parameters]
        self.latest = torch.zeros(0)  # own gradient that `tracked` heeds, [num_parameters]
        links = connected(_links(module, comm), told=comm.rank == 0)
        if comm.rank == 0 and any(len(peers) < comm.world_size - 1 for peers in links):
            print(_NOT_ONE, file=sys.stderr, flush=True)
        self.neighbours = links[comm.rank]
        self.sums = dict.fromkeys(self._members, 1.0)
        self.metropolis = metropolis(links, comm.rank)

    def costs(self) -> str:
        why = "a worker steps with the mean gradient of its neighbours"
        if self.exchange == "parameters":
            why = "workers step alone and average their parameters with those of their neighbours"
        return approximate(f"sync.exchange={self.exchange}", why)

    def close(self) -> None:
        if self.own_mailbox is not None:
            self.own_mailbox.close()

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        parameters = trained(module)
        grads = gradients(parameters)
        if self.exchange == "parameters":
            from_vector(self._track(to_vector(grads)), grads)
            optimizer.step()
            mixed = self._mix(torch.cat([to_vector(parameters), self.tracked]), self.rounds)
            stepped, self.tracked = mixed.chunk(2)
            from_vector(stepped, parameters)
        elif (mean := self._mean(to_vector(grads), share)) is not None:
            from_vector(mean, grads)
            optimizer.step()

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        if (mean := self._mean(to_vector(tensors) * weight, weight)) is not None:
            from_vector(mean, tensors)

    def average_models(self, module: nn.Module, weight: float) -> None:
        self.average(list(module.parameters()), weight)

    def state_dict(self) -> dict[str, Any]:
        return {"tracked": self.tracked, "latest": self.latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracked, self.latest = (state[name].to(self.comm.device) for name in ("tracked", "latest"))

    def _track(self, grads: Tensor) -> Tensor:
        """Returns the estimate of the gradient of all workers, [num_parameters].

        The estimates of all workers have their gradient's sum as mean.

        Args:
            own: The gradient of this worker, a part of that sum.
        """
        grads = grads * self.comm.world_size
        if len(self.tracked) != len(grads):  # at first, and where parameters were frozen
            self.tracked = self.latest = torch.zeros_like(grads)
        self.tracked = self.tracked + (grads - self.latest)
        self.latest = grads
        return self.tracked

    @property
    def _members(self) -> list[int]:
        """This rank and its neighbours, ascending, so that sums have one order."""
        return sorted([self.comm.rank, *self.neighbours])

    def _mean(self, part: Tensor, weight: float) -> Tensor | None:
        """Returns the weighted mean over this rank and its neighbours.

        Returns None where these have no weight. Several rounds mix parts and weights of
        the wider neighbourhood first.

        Args:
            part: The weight of this rank times its values, [num_values].
            weight: The weight of this rank.
        """
        mixed = self._mix(torch.cat([part, part.new_tensor([weight])]), self.rounds - 1)
        total = self._exchange(mixed, self.sums)
        return total[:-1] / total[-1] if total[-1] > 0 else None

    def _mix(self, values: Tensor, rounds: int) -> Tensor:
        """Averages with Metropolis weights, so many times."""
        for _ in range(rounds):
            values = self._exchange(values, self.metropolis)
        return values

    def _exchange(self, values: Tensor, weights: dict[int, float]) -> Tensor:
        """Returns the weighted sum of the values of this rank and its neighbours."""
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
    """Returns the weights of a rank and its neighbours.

    The weight of two neighbours is 1 / (1 + the larger number of neighbours), and a
    rank has the rest. So the weights of a rank, and those that a rank is given, add up
    to 1.
    """
    weights = {peer: 1 / (1 + max(len(links[rank]), len(links[peer]))) for peer in links[rank]}
    return {rank: 1 - sum(weights.values())} | weights


def connected(links: Links, *, told: bool = False) -> Links:
    """Returns the links, with a ring of all ranks where a rank cannot reach another.

    Args:
        links: The neighbours of each rank, by rank.
        told: Whether to print that a ring is added. Default: False.
    """
    size, reached, ahead = len(links), {0}, [0]
    while ahead:
        new = set(links[ahead.pop()]) - reached
        reached |= new
        ahead += new
    if len(reached) == size:
        return links
    if told:
        apart = next(rank for rank in range(size) if rank not in reached)
        text = f"sync=neighbour: no path of edges joins workers 0 and {apart}, a ring of all workers is added"
        print(text, file=sys.stderr, flush=True)
    ring = [{(rank - 1) % size, (rank + 1) % size} - {rank} for rank in range(size)]
    return [sorted({*peers, *more}) for peers, more in zip(links, ring, strict=True)]


def _links(module: nn.Module, comm: Communicator) -> Links:
    """Shares the neighbours of every worker. Collective.

    A module without a worker, or a worker that does not know, has all as neighbours.
    """
    peers = getattr(getattr(module, "worker", None), "peers", None)
    linked = torch.zeros(comm.world_size, comm.world_size, dtype=torch.int64, device=comm.device)
    linked[comm.rank, list(range(comm.world_size)) if peers is None else list(peers)] = 1
    linked[comm.rank, comm.rank] = 0
    linked = comm.all_reduce(linked)
    return [row.nonzero().flatten().tolist() for row in (linked + linked.T).cpu()]
