"""The start of a job, the base classes `Job`, `Run` and `OnRanks`, and a run's page.

Torch is imported only for jobs that need it, and Lightning only for training. Both are
imported once before the ranks fork, and Lightning while the data are prepared.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gnnkit import plugins
from gnnkit.config import EXPERIMENT, JobFacts, key_of, of_option
from gnnkit.config.settings import AUTO, in_notebook, launcher_for, with_workers
from gnnkit.errors import UserError
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.folder import apply_permissions, copy_to
from gnnkit.jobs.order import Order
from gnnkit.launch.environment import count_call
from gnnkit.launch.launcher import RANKS
from gnnkit.launch.lean import without_garbage_collection
from gnnkit.launch.processes import inline
from gnnkit.launch.progress import begin, phase, say
from gnnkit.result.result import Result
from gnnkit.utils.ranges import one_line

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from gnnkit.config.settings import Choice
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.leader.watch import Watch
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

        return fits.check_order(order)

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
        return replace(first, settings=replace(first.settings, auto_workers=replace(auto, counts=tuple(fit))))

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

        Override it to prepare less than training needs, or more. `order` is the request
        after `decided`, without `auto`.
        """
        from gnnkit.jobs import fits

        return fits.needs_of(order)

    def work(self, order: Order) -> Result:
        from gnnkit.jobs.run import join, run_ranks

        find_work = functools.partial(self.rank_work, trains=order.source.trains)
        with following(order) as look:
            if order.settings.started is not None:
                return join(self, find_work(), order)
            order = self.decided(order, look)
            return run_ranks(find_work, self.needs(order), order, look)


def write_page(folder: Path) -> None:
    """Writes the page of a completed run. A failure is printed, and loses no result.

    Args:
        folder: The run folder, with `result.json`.
    """
    with as_a_warning():
        report().write_page([folder], folder)


def displays(watch: Watch) -> list[Callback]:
    """Returns the terminal's display of training, if the package is installed."""
    return [report().display(watch)] if is_installed() else []


def is_installed() -> bool:
    """Returns whether the package is installed, without importing it."""
    return "report" in plugins.names("job")


def report() -> Any:
    """Returns the class of job=report."""
    return plugins.load("job", "report")


@contextlib.contextmanager
def as_a_warning() -> Iterator[None]:
    """Prints any error as one line, and continues."""
    try:
        yield
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"report.html is not written, the results are kept: {reason}", file=sys.stderr, flush=True)


@without_garbage_collection()
def shows_bar(order: Order) -> bool:
    """Returns whether this process shows a bar instead of lines. Imports torch."""
    settings = order.settings
    trains = settings.job.trains and order.source.trains
    return in_notebook() and trains and settings.trainer.progress_bar and is_installed()


@contextlib.contextmanager
def following(order: Order) -> Iterator[Callable[[], None]]:
    """Yields a function to call a few times a second while the ranks work.

    Args:
        order: The request, with the run folder on the leader.
    """
    if not shows_bar(order):
        yield lambda: None
        return
    bar = report().notebook_bar(order.settings, order.run_folder)
    yield bar.look
    bar.show()


def _planner() -> Any:
    """Returns the module that resolves `auto` by `possible` and `decide`."""
    return plugins.load(plugins.PLANNER, "auto")


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


_MODULES = ("numpy.ma", "numpy.random", "torch.utils.tensorboard", "gnnkit.jobs.train")


def start(order: Order) -> Result:
    """Does the job and prints the result. A run's folder holds `result.json`.

    Returns the result on the leader. Other externally started ranks return one without
    figures.
    """
    begin(silent=shows_bar(order))
    if _implies_task(order):
        order = replace(order, settings=replace(order.settings, implies_task=True))
    job, rank = _job(order), order.settings.started
    if rank is not None and rank.rank > 0 and not job.on_ranks:
        say(f"rank {rank.rank}: job={job.name} runs on rank 0 only")
        return Result(job.name, {})
    _check_unread(order)
    if job.on_ranks and rank is not None:
        count_call()
    with apply_permissions(order.settings.permissions):
        return job.start(order)


def _job(order: Order) -> Job:
    return cast("type[Job]", order.settings.job)()


def _implies_task(order: Order) -> bool:
    """Returns whether the user has left the task of a new model at its default."""
    settings, keys = order.settings, {*map(key_of, order.overrides)}
    is_new = not settings.job.reads_checkpoint and settings.trainer.resume is None
    return is_new and bool(keys) and not order.options and keys.isdisjoint(("task", EXPERIMENT))


def check(order: Order) -> Order:
    """Raises `UserError` if the job cannot do the order."""
    _check_unread(order)
    return _job(order).check(order)


def _check_unread(order: Order) -> None:
    """Checks the keys of plugins that the job may not read, such as `model.hidden`.

    A job that trains, or reads a trained run, constructs these plugins itself.
    """
    settings = order.settings
    if settings.job.trains or settings.job.reads_checkpoint:
        return
    if _is_configured(settings.model):
        order.source.trial()
    if settings.strategy.name != AUTO and _is_configured(settings.strategy):
        settings.create_strategy()
    for choice in (settings.task, settings.sync, settings.sampler):
        if choice is not None and _is_configured(choice):
            choice.create()


def _is_configured(choice: Choice) -> bool:
    """Returns whether a key of the plugin differs from its default."""
    defaults = of_option(choice.kind, choice.name)
    return any(key not in defaults or value != defaults[key] for key, value in choice.arguments.items())


def preload(order: Order) -> None:
    """Imports everything that the job's ranks import, before processes fork."""
    _job(order).preload(order)


def import_for_training() -> None:
    """Imports the modules that training ranks need, once for all forked ranks."""
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if (files := sys.modules.get("lightning.fabric.utilities.cloud_io")) is not None:
        # Lightning would import s3fs to learn that a local file is not in S3.
        setattr(files, "module_available", sys.modules.__contains__)  # noqa: B010
