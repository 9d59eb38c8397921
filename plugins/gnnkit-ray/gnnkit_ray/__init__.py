"""Runs gnnkit's ranks and jobs on a Ray cluster.

The launcher places one agent on each node, in a placement group with one bundle per
node. An agent starts its node's ranks as child processes (`agents`). Ray does not
manage the ranks, and the ranks do not use Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.launcher import JOBS, RANKS, Failure, Jobs, Launcher, RankError, Ranks
from gnnkit.launch.signals import check, defer_signals
from gnnkit.utils.ranges import MAX_COUNT, real, whole

# Under `uv run`, Ray would copy the working folder to each node and install its project
# there, although nodes already have gnnkit. Ray reads this variable when it is
# imported.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

POLL = 0.2  # seconds between polls
GRACE = 5.0  # seconds to wait for the report that contains the cause
LOOK = 5.0  # seconds between counts of the nodes, while resources are insufficient
STARTING = 180.0  # seconds for agents to start on nodes that may be busy
ENDING = 8.0  # seconds for agents to save checkpoints and stop their ranks


class Ray(Launcher):
    """Ray selects the nodes. A lost or preempted node ends the run, see `restarts`."""

    starts = (RANKS, JOBS)

    def __init__(
        self,
        address: str = "auto",
        num_nodes: int | None = None,
        cpus: float = 1,
        gpus: int | None = None,
        wait: float = 60,
    ) -> None:
        if num_nodes is not None:
            whole("launcher.num_nodes", num_nodes, 1, MAX_COUNT)
        real("launcher.cpus", cpus, above=0)
        if gpus is not None:
            whole("launcher.gpus", gpus, 0, MAX_COUNT)
        real("launcher.wait", wait, above=0)
        self.address, self.num_nodes, self.cpus, self.gpus, self.wait = address, num_nodes, cpus, gpus, wait

    def check(self, target: str) -> None:
        if target == JOBS and self.num_nodes is not None:
            raise UserError(f"launcher.num_nodes={self.num_nodes} applies to the ranks of one job: remove it with -m")

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        gpus = self.gpus if self.gpus is not None else int(ranks.comm.device_type == "cuda")
        with defer_signals(), self._connect(), self._reserve(ranks.processes, gpus) as nodes:
            return ranks.by_rank(_RayRun(nodes, ranks).results(meanwhile))

    def jobs(self, jobs: Jobs) -> Generator[tuple[int, int]]:
        import ray

        from gnnkit_ray.agents import command

        with self._connect():
            job = ray.remote(command).options(num_cpus=self.cpus, num_gpus=self.gpus or 0, max_retries=0)
            running = {
                job.remote(list(arguments), os.getcwd()): number for number, arguments in enumerate(jobs.commands)
            }
            try:
                while running:
                    check()
                    for done in ray.wait(list(running), timeout=POLL)[0]:
                        number = running.pop(done)
                        yield number, _write_log(jobs, number, done)
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[None]:
        """Connects to the cluster, unless this process is already connected."""
        import ray

        if ray.is_initialized():
            yield
            return
        try:
            ray.init(address=self.address, configure_logging=False, log_to_driver=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"launcher.address={self.address}: no Ray cluster responds: start one with ray start --head ({error})"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    @contextlib.contextmanager
    def _reserve(self, processes: int, gpus: int) -> Iterator[list[_Node]]:
        """Reserves resources on the nodes while the context is active."""
        from ray.util.placement_group import placement_group, remove_placement_group

        deadline = time.monotonic() + self.wait
        while True:
            counts = self._count_processes(processes, gpus)
            bundles = [{"CPU": self.cpus * count, **({"GPU": gpus * count} if gpus else {})} for count in counts]
            group = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK")
            try:
                check()
                if counts and group.wait(min(LOOK, max(deadline - time.monotonic(), 0.1))):
                    yield [
                        _Node(group, place, bundle, count)
                        for place, (bundle, count) in enumerate(zip(bundles, counts, strict=True))
                    ]
                    return
            finally:
                remove_placement_group(group)
            if time.monotonic() > deadline:
                raise UserError(
                    f"launcher.wait={self.wait}: the cluster has no room for {processes} ranks of {self.cpus} cores "
                    f"and {gpus} GPUs each: use fewer workers, or a smaller launcher.cpus"
                )

    def _count_processes(self, processes: int, gpus: int) -> list[int]:
        """Returns the number of processes per node."""
        rooms = []
        for node in _nodes():
            has = node["Resources"] if node["Alive"] else {}
            rooms.append(int(min(has.get("CPU", 0) / self.cpus, has.get("GPU", 0) / gpus if gpus else MAX_COUNT)))
        return spread(processes, rooms, self.num_nodes)


def spread(processes: int, rooms: Sequence[int], nodes: int | None) -> list[int]:
    """Spreads processes over nodes as evenly as their resources allow.

    Raises `UserError` if the resources are insufficient.

    Args:
        processes: Number of processes.
        rooms: Maximum number of processes on each node.
        nodes: Number of nodes to use. If None, as many as possible.

    Returns:
        Processes per node used, in descending order.
    """
    used = sorted((room for room in rooms if room), reverse=True)[: nodes or processes]
    if sum(used) < processes or (nodes or 0) > min(len(used), processes):
        wanted = "" if nodes is None else f" on launcher.num_nodes={nodes}"
        raise UserError(
            f"launcher=ray: {processes} ranks{wanted} do not fit on nodes with room for {[*rooms]}: use fewer "
            "workers, or a smaller launcher.cpus"
        )
    counts = [0] * len(used)
    for _ in range(processes):
        counts[min((place for place in range(len(used)) if counts[place] < used[place]), key=counts.__getitem__)] += 1
    return sorted((count for count in counts if count), reverse=True)


@dataclass(frozen=True, slots=True)
class _Node:
    """Reserved resources for several processes on one node."""

    group: Any  # placement group
    bundle: int  # index in the group
    resources: Mapping[str, float]
    processes: int

    def agent(self) -> Any:
        """Starts the node's agent."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from gnnkit_ray.agents import Agent

        where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundle)
        return (
            ray.remote(Agent)
            .options(
                num_cpus=self.resources["CPU"],
                num_gpus=self.resources.get("GPU", 0),
                scheduling_strategy=where,
                max_restarts=0,
                max_concurrency=2,
            )
            .remote()
        )


class _RayRun:
    """A job's ranks on the cluster's nodes."""

    def __init__(self, nodes: Sequence[_Node], ranks: Ranks) -> None:
        self._nodes, self._ranks = nodes, ranks
        self._agents: list[Any] = []
        self._ids: list[str] = []  # node ids, by agent
        self._reports: dict[int, dict[str, Any]] = {}  # by agent

    def results(self, meanwhile: Callable[[], None]) -> dict[int, list[Any]]:
        """Returns the results by process. Stops all ranks on reachable nodes."""
        pending: dict[Any, int] = {}
        try:
            self._agents = [node.agent() for node in self._nodes]
            pending = self._start()
            while pending:
                self._collect_reports(pending)
                check()
                meanwhile()
                if (cause_of_loss := self._describe_lost_node()) or self._failed_reports():
                    at = time.monotonic()
                    if cause_of_loss is None:
                        self._await_other_reports(pending)
                    self._stop(pending)
                    raise self._find_failure(at) if cause_of_loss is None else self._loss_error(cause_of_loss, at)
        finally:
            self._stop(pending)
        node_results = [report["results"] for report in self._reports.values()]
        return {int(process): result for results in node_results for process, result in results.items()}

    def _start(self) -> dict[Any, int]:
        """Starts the ranks. Returns the agent of each pending report."""
        import ray

        try:
            where = ray.get([agent.place.remote() for agent in self._agents], timeout=STARTING)
        except ray.exceptions.RayError as error:
            raise RankError(f"a Ray agent did not start: {error}") from error
        self._ids = [node for node, *_ in where]
        _, address, port = where[0]
        token, places, size = secrets.token_hex(16), list[list[StartedRank]](), self._ranks.processes
        for node in self._nodes:
            first, here = sum(map(len, places)), node.processes
            places.append([StartedRank(first + n, size, n, here, address, port, token=token) for n in range(here)])
        alone = len(self._agents) == 1
        return {
            agent.run.remote(self._ranks, None if alone else places[number], os.getcwd()): number
            for number, agent in enumerate(self._agents)
        }

    def _collect_reports(self, pending: dict[Any, int]) -> None:
        """Waits briefly for reports, and stores them."""
        import ray

        for done in ray.wait(list(pending), timeout=POLL)[0]:
            number = pending.pop(done)
            try:
                report = ray.get(done)
            except ray.exceptions.RayError as error:
                report = {"lost": type(error).__name__}
            if "lost" in report:
                report = {"lost": f"{self._name(number)} is lost: {report['lost']}"}
            self._reports[number] = report

    def _await_other_reports(self, pending: dict[Any, int]) -> None:
        """Waits briefly for other nodes' reports, if none contains the cause yet."""
        deadline = time.monotonic() + GRACE
        while pending and time.monotonic() < deadline and all(map(_may_be_caused_by_peer, self._failed_reports())):
            self._collect_reports(pending)

    def _stop(self, pending: dict[Any, int]) -> None:
        """Stops all ranks and agents, and collects their reports."""
        import ray

        for agent in self._agents:
            agent.stop.remote()
        deadline = time.monotonic() + ENDING
        while pending and time.monotonic() < deadline:
            self._collect_reports(pending)
        for agent in self._agents:
            ray.kill(agent)
        self._agents = []

    def _describe_lost_node(self) -> str | None:
        """Describes a node that is dead or about to be preempted, or returns None."""
        lost_nodes = {node["NodeID"]: "is lost" for node in _nodes() if not node["Alive"]}
        lost_nodes |= dict.fromkeys(_draining(), "is preempted")
        return next(
            (f"{self._name(number)} {lost_nodes[node]}" for number, node in enumerate(self._ids) if node in lost_nodes),
            None,
        )

    def _name(self, number: int) -> str:
        first = sum(node.processes for node in self._nodes[:number])
        names = self._ranks.names[first : first + self._nodes[number].processes]
        return f"Ray's node {self._ids[number][:8]} ({names[0]}{f' to {names[-1]}' if len(names) > 1 else ''})"

    def _failed_reports(self) -> list[dict[str, Any]]:
        return [report for report in self._reports.values() if "results" not in report]

    def _loss_error(self, cause_of_loss: str, at: float) -> RankError:
        """Returns the error for a lost node, with the other ranks' last step."""
        failures = [report.get("failure", {}) for report in self._failed_reports()]
        step, epoch = max(((failure.get("step") or 0, failure.get("epoch")) for failure in failures), default=(0, None))
        return RankError(cause_of_loss, Failure(cause=cause_of_loss, step=step or None, epoch=epoch, at=at))

    def _find_failure(self, at: float) -> Exception:
        """Returns the error of the node that failed independently of the others."""
        failed = self._failed_reports()
        cause = min(failed, key=lambda report: (_may_be_caused_by_peer(report), "lost" not in report))
        if "lost" in cause:
            return self._loss_error(cause["lost"], at)
        if cause["is_user_error"]:
            return UserError(cause["error"])
        others = [report["error"].partition("\n")[0] for report in failed if report is not cause and "error" in report]
        failure = Failure(**{**cause["failure"], "at": at})  # agents measure it with another machine's clock
        return RankError("\n".join([cause["error"], *others]), failure)


def _may_be_caused_by_peer(report: dict[str, Any]) -> bool:
    """Returns whether another node's ranks may have caused the failure."""
    return bool(report.get("failure", {}).get("lost_peer", False))


def _nodes() -> list[dict[str, Any]]:
    import ray

    return list(ray.nodes())  # type: ignore[no-untyped-call]


def _draining() -> list[str]:
    """Lists the nodes that the cluster is about to remove."""
    try:
        from ray._private.state import state

        return list(state.get_draining_nodes())
    except (ImportError, AttributeError):  # other versions of Ray do not announce preemption
        return []


def _write_log(jobs: Jobs, number: int, done: Any) -> int:
    """Writes a job's output to its log. Returns the exit code."""
    import ray

    try:
        code, text = ray.get(done)
    except ray.exceptions.RayError as error:
        code, text = 1, f"gnnkit: error: this job's node was lost: {error}\n"
    jobs.logs[number].parent.mkdir(parents=True, exist_ok=True)
    jobs.logs[number].write_text(text, encoding="utf-8")
    return int(code)
