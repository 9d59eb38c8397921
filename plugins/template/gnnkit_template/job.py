"""A job with keys of its own: `job=hubs hubs.count=3`."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gnnkit.config.settings import Section
from gnnkit.jobs import Order, Result, Run
from gnnkit.utils.ranges import whole


def _count(key: str, value: object) -> int:
    return whole(key, value, low=1, high=1000)


@dataclass(frozen=True)
class HubsSection(Section):
    """The section `hubs`."""

    count: Annotated[int, _count]


@dataclass(frozen=True)
class HubsKeys(Section):
    """The keys of job=hubs."""

    hubs: HubsSection


class Hubs(Run):
    """Lists the nodes with most in-edges in `result.json`."""

    name = "hubs"
    keys = HubsKeys
    reads_strategy = False  # nor are sampler and model checked

    def work(self, order: Order) -> Result:
        degrees = np.diff(order.load_graph().csc.indptr)
        hubs = np.argsort(-degrees, kind="stable")[: order.settings.job_keys.hubs.count]
        return Result(self.name, {"hubs": hubs.tolist(), "in_edges": degrees[hubs].tolist()})
