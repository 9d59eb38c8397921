"""The plugins of an order, constructed once before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gnnkit import config
from gnnkit.config.settings import Settings, settle, with_choice
from gnnkit.jobs import models
from gnnkit.jobs.models import ModelSource
from gnnkit.jobs.order import Order
from gnnkit.jobs.outputs import check_layers
from gnnkit.launch.phases import say
from gnnkit.model.unchanged import EdgeIndexModel, num_convolutions
from gnnkit.sampler import Fanouts, Sampler
from gnnkit.strategy import ExecutionStrategy
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.training.step import LOSS
from gnnkit.utils.ranges import one_of

DEFAULT_SAMPLER = "neighbor"  # for strategies that sample without a configured sampler


@dataclass(frozen=True, slots=True)
class Parts:
    """The plugins that the ranks use with one strategy."""

    settings: Settings  # with the default sampler if one is needed and none is configured
    source: ModelSource
    model: object  # a trial instance with placeholder widths, or None if it cannot be made yet
    strategy: ExecutionStrategy
    sync: GradientSync
    task: Task
    sampler: Sampler | None
    hooks: tuple[Any, ...] = ()  # each a `LeaderHook`

    @classmethod
    def of(cls, order: Order) -> Parts:
        """Constructs each plugin, which checks its arguments."""
        settings, source = order.settings, order.source
        settings.create_launcher()
        sync, task = settings.sync.create(), settings.task.create()
        strategy = settings.create_strategy()
        model = source.trial()
        if strategy.reads.sampler and settings.sampler is None:
            settings = _with_default_sampler(settings, _num_hops(model))
        sampler = None if settings.sampler is None else settings.sampler.create()
        hooks = tuple(choice.create() for choice in settings.leader.hooks)
        return cls(settings, source, model, strategy, sync, task, sampler, hooks)

    def check(self) -> None:
        """Raises `UserError` if one plugin rejects another."""
        monitor = self.settings.trainer.monitor
        if monitor is not None:
            looked_at = (name for name in self.task.names if name.startswith("val_"))
            one_of("trainer.monitor", monitor, (LOSS, *looked_at))
        if not self.source.trains:
            return
        self.task.check(self.strategy, self.sampler)
        models.fit(self.settings, self.strategy, self.sampler, self.model)
        self._warn_of_hops()
        if "embeddings" in self.settings.write and isinstance(self.model, nn.Module):
            check_layers(self.model)
        if isinstance(num_layers := getattr(self.model, "num_layers", None), int):
            self.strategy.check(self.sampler, num_layers)
        if self.settings.trainer.resume is not None:
            from gnnkit.training import resume

            resume.load(self.settings.trainer.resume)  # checks the file, which the ranks read again

    def _warn_of_hops(self) -> None:
        """Warns if an (x, edge_index) module has more layers than sampled hops."""
        if self.sampler is None or not isinstance(self.model, EdgeIndexModel):
            return
        hops, convolutions = self.sampler.num_hops, num_convolutions(self.model)
        if hops < convolutions:
            say(
                f"model={self.source.name} has {convolutions} convolutions, and sampler.fanouts has {hops} hops: in training, "
                "nodes of the last hop have no in-edges. One hop for each convolution gives all layers their edges"
            )


def _num_hops(model: object) -> object:
    """Returns the number of hops that the model reads, or a non-integer if unknown."""
    return num_convolutions(model) if isinstance(model, EdgeIndexModel) else getattr(model, "num_layers", None)


def _with_default_sampler(settings: Settings, num_layers: object) -> Settings:
    """Adds the default sampler, with a fanout for each layer if the number is known."""
    default = settle(config.compose([f"strategy={settings.strategy.name}", f"sampler={DEFAULT_SAMPLER}"])).sampler
    assert default is not None
    if isinstance(num_layers, int):
        fanouts = Fanouts.parse(default.arguments["fanouts"]).resized(num_layers)
        default = replace(default, arguments={**default.arguments, "fanouts": fanouts.as_plain()})
    return with_choice(settings, default)
