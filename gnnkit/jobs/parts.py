"""The plugins of an order, made once before anything is started."""

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
from gnnkit.ranges import one_of
from gnnkit.sampler import Fanouts, Sampler
from gnnkit.strategy import ExecutionStrategy
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.training.step import LOSS

DEFAULT_SAMPLER = "neighbor"  # of strategies that draw and bring none


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the ranks' work, for one strategy."""

    settings: Settings  # with the default sampler if the strategy draws and none is chosen
    source: ModelSource
    model: object  # made for other widths, or None where the model is not known yet
    strategy: ExecutionStrategy
    sync: GradientSync
    task: Task
    sampler: Sampler | None
    hooks: tuple[Any, ...] = ()  # `LeaderHook`s

    @classmethod
    def of(cls, order: Order) -> Parts:
        """Makes each part, whose constructor checks the arguments."""
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
        """Raises `UserError` where a part itself refuses another one."""
        monitor = self.settings.trainer.monitor
        if monitor is not None:
            looked_at = (each for each in self.task.names if each.startswith("val_"))
            one_of("trainer.monitor", monitor, (LOSS, *looked_at))
        if not self.source.trains:
            return
        self.task.check(self.strategy, self.sampler)
        models.fit(self.settings, self.strategy, self.sampler, self.model)
        self._tell_hops()
        if "embeddings" in self.settings.write and isinstance(self.model, nn.Module):
            check_layers(self.model)
        if isinstance(num_layers := getattr(self.model, "num_layers", None), int):
            self.strategy.check(self.sampler, num_layers)
        if self.settings.trainer.resume is not None:
            from gnnkit.training import resume

            resume.load(self.settings.trainer.resume)  # the ranks read it again

    def _tell_hops(self) -> None:
        """Says where a module of (x, edge_index) gets fewer hops than it reads."""
        if self.sampler is None or not isinstance(self.model, EdgeIndexModel):
            return
        hops, convolutions = self.sampler.num_hops, num_convolutions(self.model)
        if hops < convolutions:
            say(
                f"model={self.source.name} has {convolutions} convolutions, and sampler.fanouts has {hops} hops: in training, "
                "nodes of the last hop have no in-edges. One hop for each convolution gives all layers their edges"
            )


def _num_hops(model: object) -> object:
    """Counts the hops that the layers of a model read. Not a number where unknown."""
    return num_convolutions(model) if isinstance(model, EdgeIndexModel) else getattr(model, "num_layers", None)


def _with_default_sampler(settings: Settings, num_layers: object) -> Settings:
    """Brings the sampler of a strategy that draws.

    Args:
        settings: The configuration.
        num_layers: Layers of the model, each of which gets a fanout. Not a number where
            the layers are not known yet.
    """
    default = settle(config.compose([f"strategy={settings.strategy.name}", f"sampler={DEFAULT_SAMPLER}"])).sampler
    assert default is not None
    if isinstance(num_layers, int):
        fanouts = Fanouts.parse(default.arguments["fanouts"]).resized(num_layers)
        default = replace(default, arguments={**default.arguments, "fanouts": fanouts.as_plain()})
    return with_choice(settings, default)
