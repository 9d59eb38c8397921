"""The jobs' base classes: `Job`, `Run` with a run folder, and `OnRanks`."""

from __future__ import annotations

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit import plugins
from gnnkit.config import JobFacts
from gnnkit.config.settings import AUTO, launcher_for, with_workers
from gnnkit.errors import UserError
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.notebook import following, shows_bar
from gnnkit.jobs.order import Order
from gnnkit.jobs.pages import write_page
from gnnkit.jobs.upload import copy_to
from gnnkit.launch.allocator import without_garbage_collection
from gnnkit.launch.launcher import RANKS
from gnnkit.launch.phases import phase, say
from gnnkit.launch.processes import inline
from gnnkit.result.result import Result

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.prepare.facts import Needs


class Job(JobFacts, ABC):
    """One job of the command line, under its name in the group `gnnkit.job`.

    Derive from `Run` for a job with a run folder, from `OnRanks` for one that starts
    the workers, and from this class only for a job that writes nothing. Class
    attributes from `JobFacts` declare what the job reads, so that gnnkit checks only
    these keys.
    """

    on_ranks: ClassVar[bool] = False  # False: only the leader's process does the job

    @abstractmethod
    def start(self, order: Order) -> Result:
        """Does the job, and prints the result.

        Args:
            order: The request, with checked settings.

        Returns:
            The result. Its `exit_code` becomes that of the command.
        """

    def check(self, order: Order) -> Order:
        """Raises `UserError` if the job cannot do the order.

        Called before anything is started or written, and again if the leader has
        replaced an `auto`.

        Args:
            order: The request.

        Returns:
            The order, with values that the check has resolved.
        """
        return order

    def preload(self, order: Order) -> None:
        """Imports the job's modules, once before several processes fork.

        Without it, each process would import them again, which takes seconds per
        process.

        Args:
            order: The request.
        """


class Run(Job):
    """A job with a run folder, which holds the configuration and `result.json`.

    Implement `work`, which does the job and returns its figures. gnnkit creates the
    folder, records the configuration, prints the result, and uploads the folder if
    `upload` is set. Plugins are checked before the folder is created.

    Examples:
        >>> from gnnkit import Result
        >>> from gnnkit.jobs import Run
        >>> class Sizes(Run):
        ...     '''Counts nodes and edges.'''
        ...     name = "sizes"
        ...     reads_strategy = False
        ...     def work(self, order):
        ...         graph = order.load_graph()
        ...         sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        ...         return Result(self.name, sizes)
    """

    def start(self, order: Order) -> Result:
        start_time, url = time.perf_counter(), order.settings.upload
        if url is None or not order.is_leader:
            return self._do(run_folders.resume_order(order), start_time)
        upload = copy_to(url)
        upload.check(order.settings.on_exists)
        if order.settings.on_exists == "resume" and order.settings.job.trains:
            upload.fetch_checkpoint(run_folders.named(order), alone=order.settings.started is None)
        result = self._do(run_folders.resume_order(order), start_time)
        upload.put_folder(result.folder)
        return result

    def _do(self, order: Order, start_time: float) -> Result:
        """Does the job in the run folder.

        Args:
            start_time: Start of the job on the `time.perf_counter` clock.
        """
        if order.is_leader:
            phase(f"job={self.name}: checking the configuration")
        with contextlib.ExitStack() as stack:
            if order.settings.is_inline:
                stack.enter_context(inline())
            with contextlib.nullcontext() if order.settings.started else without_garbage_collection():
                order = self.check(order)
                if (stored_result := self.done(order)) is not None:
                    say(stored_result.table())
                    return stored_result
                if order.is_leader:
                    order = replace(order, folder=stack.enter_context(run_folders.open_folder(order)))
                    if order.settings.notes:
                        say("\n".join(order.settings.notes))
                result = self.work(order)
            if not isinstance(result, Result):
                raise TypeError(f"job={self.name}: work returned {type(result).__name__}, expected a Result")
            if not order.is_leader:
                return result
            result = replace(self.finish(order, result, time.perf_counter() - start_time), run_folder=order.run_folder)
            return _publish(order, result)

    def check(self, order: Order) -> Order:
        """Raises `UserError` for incompatible plugins and invalid arguments.

        Constructs each plugin that the job reads, so that its arguments are checked
        before anything starts. If the strategy samples and no sampler is selected, the
        returned order has the default sampler.
        """
        settings = order.settings
        if order.graph is None:
            settings.dataset.create()
        settings.order.create()
        if settings.partition.nodes.name != AUTO:
            settings.partition.nodes.create()
        if settings.launcher.name != AUTO:
            launcher_for(settings.launcher, RANKS)
        if settings.auto_workers is not None:
            return self._check_workers(order)
        if settings.strategy.name == AUTO and settings.is_open:
            return self._check_open(order)
        order = self.check_parts(order)
        if settings.checkpoint is not None:
            from gnnkit.jobs import weights

            weights.check_present(Path(settings.checkpoint))
        return order

    def check_parts(self, order: Order) -> Order:
        """Checks the plugins that the ranks use, for one strategy.

        A job that reads no strategy has them checked only if `auto` depends on them.
        """
        if not (self.reads_strategy or order.settings.is_open):
            return order
        from gnnkit.jobs import fits
        from gnnkit.prepare.inputs import check_types

        parts = fits.Parts.of(order)
        fits.check(parts)
        parts.check()
        if order.graph is not None:  # before the leader compares layouts
            check_types(_find_untyped_model(order), order.graph.schema)
        return replace(order, settings=parts.settings)

    def _check_workers(self, order: Order) -> Order:
        """Checks each number of workers that `workers=auto` may select.

        Returns the order with the valid ones. If there is none, raises the `UserError`
        of the first.
        """
        auto, fit = order.settings.auto_workers, {}
        assert auto is not None
        errors: list[UserError] = []
        for workers in auto.counts:
            try:
                settings = replace(with_workers(order.settings, workers), auto_workers=None)
                fit[workers] = self.check(replace(order, settings=settings))
            except UserError as error:
                errors.append(error)
        if not fit:
            raise errors[0]
        first = next(iter(fit.values()))
        candidates = replace(auto, counts=tuple(fit))
        return replace(first, settings=replace(first.settings, auto_workers=candidates))

    def _check_open(self, order: Order) -> Order:
        """Checks each strategy that `strategy=auto` may select.

        If only one is valid, the returned order has that strategy. If none is, raises
        the `UserError` of the first.
        """
        fit: list[Order] = []
        errors: list[UserError] = []
        for settings in _planner().possible(order.settings):
            try:
                fit.append(self.check(replace(order, settings=settings)))
            except UserError as error:
                errors.append(error)
        if not fit:
            raise errors[0]
        if not errors:
            return order
        only = fit[0].settings
        note = f"strategy=auto takes {only.strategy.name}, as another is refused: {errors[0]}"
        return replace(order, settings=replace(only, notes=(*only.notes, note)))

    def done(self, order: Order) -> Result | None:
        """Returns the result of the same job in the run folder, or None.

        A result ends the job at once, for jobs that are repeated until they have
        succeeded. Default: None, so the job always runs.
        """
        return None

    @abstractmethod
    def work(self, order: Order) -> Result:
        """Does the job for a checked order.

        Files go into `order.run_folder`, which only the leader's order has
        (`order.is_leader`). The figures of the result are its `result.json`, and its
        `summary` is printed instead of a table of all figures.
        """

    def finish(self, order: Order, result: Result, seconds: float) -> Result:
        """Adds figures on the leader, after the ranks have ended.

        Args:
            order: The request.
            result: The result of `work`.
            seconds: Wall time of the job.
        """
        return result

    def decided(self, order: Order, meanwhile: Callable[[], None] = lambda: None) -> Order:
        """Returns the order with each `auto` replaced by the leader's choice.

        Args:
            order: From `check`, with the run folder.
            meanwhile: Called a few times a second.
        """
        if not order.settings.is_open:
            return order
        phase("choosing the layout")
        return self.check(replace(order, settings=_planner().decide(order, meanwhile)))


class OnRanks(Run):
    """A run of several ranks, started by the launcher or externally.

    The leader prepares what `needs` lists, starts the ranks, and watches them.
    Implement `rank_work`, which returns the function that each rank calls. When a rank
    fails, the others are ended and its error is raised.
    """

    on_ranks = True

    @abstractmethod
    def rank_work(self, *, trains: bool) -> RankWork:
        """Imports the function that each rank calls, and its dependencies.

        Args:
            trains: False for programs, such as PageRank, which are iterated.
        """

    def preload(self, order: Order) -> None:
        self.rank_work(trains=order.source.trains)

    def needs(self, order: Order) -> Needs:
        """Returns the data that the ranks read.

        Override it to prepare less than training needs, or more. `order` must not
        contain `auto`.

        Args:
            order: The request, after `decided`.
        """
        from gnnkit.jobs.fits import Parts, may_stay
        from gnnkit.jobs.models import reads_sparse
        from gnnkit.model.padding import ordered_layer
        from gnnkit.prepare.facts import Needs
        from gnnkit.strategy import GatheredRows, JoinedLayers

        settings, source, parts = order.settings, order.source, Parts.of(order)
        strategy = settings.create_strategy()
        return Needs(
            trains=source.trains and settings.job.needs_labels,
            graph=strategy.reads.graph and source.trains,
            reference=False,
            features=not strategy.reads.from_owners,
            sparse=reads_sparse(settings, source, strategy),
            shard_edges=strategy.reads.graph
            and not strategy.lacks(JoinedLayers)
            and source.trains
            and source.reads_edge_index,
            owned_edges=strategy.reads.one_column or strategy.reads.from_owners,
            recut=any(hook.keeps_graph(strategy) for hook in parts.hooks),
            inputs=source.trains,
            reads_disk=not strategy.lacks(GatheredRows) and settings.inputs == "features" and source.trains,
            may_stay=may_stay(parts),
            inverse_edges=source.reads_relations
            and source.holds_inverse(parts.model, in_batches=not strategy.reads.all_edges),
            edge_order=getattr(parts.model, "edge_order", parts.model is None),
            ordered_layer=ordered_layer(parts.model),
            untyped_model=_find_untyped_model(order),
            relational=source.reads_relations,
            rows_last=bool(strategy.lacks(GatheredRows)) and settings.inputs == "features" and source.trains,
        )

    def work(self, order: Order) -> Result:
        from gnnkit.jobs.run import join, run_ranks

        find_work = functools.partial(self.rank_work, trains=order.source.trains)
        with following(order) as look:
            if order.settings.started is not None:
                return join(self, find_work(), order)
            order = self.decided(order, look)
            return run_ranks(find_work, self.needs(order), order, look)


def _planner() -> Any:
    """Returns the module that resolves `auto` by `possible` and `decide`."""
    return plugins.load(plugins.PLANNER, "auto")


def _find_untyped_model(order: Order) -> str | None:
    """Returns the model's name if it will train and ignores node and edge types."""
    settings, source = order.settings, order.source
    trains = not (settings.job.reads_checkpoint or settings.job.reads_plan)
    return source.name if trains and settings.types == "read" and not source.reads_relations else None


@without_garbage_collection()
def _publish(order: Order, result: Result) -> Result:
    """Writes and prints the result, and writes a training run's report."""
    result.save(order.run_folder)
    headline = () if order.settings.verbose else order.settings.job.headline
    say(result.line() if shows_bar(order) else result.table(headline))
    if order.settings.draws_report:
        phase("drawing report.html")
        write_page(order.run_folder)
    say(f"written to {order.run_folder}")
    return result
