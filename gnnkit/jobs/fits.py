"""The plugins of an order, and the table of unsupported combinations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gnnkit import config
from gnnkit.config import key_of
from gnnkit.config.settings import AUTO, DEFAULT_TASK, USUAL_ORDERS, Settings, settle, with_choice
from gnnkit.errors import UserError
from gnnkit.jobs import models
from gnnkit.jobs.models import ModelSource, dense_readers, reads_sparse
from gnnkit.jobs.order import Order
from gnnkit.jobs.outputs import check_layers
from gnnkit.launch.progress import say
from gnnkit.model.functions import ordered_layer
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.prepare.facts import ModelNeeds, Needs
from gnnkit.prepare.inputs import check_types
from gnnkit.sampler import Fanouts, Sampler
from gnnkit.strategy import (
    ByTime,
    ExecutionStrategy,
    GatheredRows,
    JoinedLayers,
    LastingRows,
    LearnedInputs,
    Relations,
    RowsOnDisk,
)
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.training.step import LOSS
from gnnkit.utils.ranges import one_of, shown

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
        task = settings.task.create()
        strategy, sync = models.create_steps(settings, source)
        model = source.trial()
        if strategy.reads.sampler and "sampler.fanouts" not in map(key_of, order.overrides):
            hops = model.num_convolutions if isinstance(model, EdgeIndexModel) else getattr(model, "num_layers", None)
            settings = _with_default_fanouts(settings, hops)
        sampler = None if settings.sampler is None else settings.sampler.create()
        hooks = tuple(choice.create() for choice in settings.leader.hooks)
        return cls(settings, source, model, strategy, sync, task, sampler, hooks)

    def check(self) -> None:
        """Raises `UserError` if one plugin rejects another."""
        monitor = self.settings.trainer.monitor
        if monitor not in (None, AUTO):
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
        hops, convolutions = self.sampler.num_hops, self.model.num_convolutions
        if hops < convolutions:
            say(
                f"model={self.source.name} has {convolutions} convolutions, and {self.sampler.hops_key} has {hops} hops: in training, "
                "nodes of the last hop have no in-edges. One hop for each convolution gives all layers their edges"
            )


def _with_default_fanouts(settings: Settings, num_layers: object) -> Settings:
    """Adds the default sampler if there is none, and a hop for each layer.

    The default fanouts are truncated to the number of layers, or their last one is
    repeated.
    """
    sampler = settings.sampler
    if sampler is None:
        sampler = settle(config.compose([f"strategy={settings.strategy.name}", f"sampler={DEFAULT_SAMPLER}"])).sampler
        assert sampler is not None
    default = sampler.arguments.get("fanouts")
    if isinstance(num_layers, int) and default is not None:
        fanouts = Fanouts.parse(default).resized(num_layers).as_plain()
        if settings.sampler is not None and fanouts != default:
            say(f"sampler.fanouts={shown(fanouts)}, one hop for each of the model's {num_layers} layers")
        sampler = replace(sampler, arguments={**sampler.arguments, "fanouts": fanouts})
    elif isinstance(num_layers, int) and "num_hops" in inspect.signature(sampler.load()).parameters:
        sampler = replace(sampler, arguments={"num_hops": num_layers, **sampler.arguments})
    return with_choice(settings, sampler)


_Predicate = Callable[[Settings, Parts], object]
_ABILITIES = (ByTime, LastingRows, LearnedInputs, Relations, RowsOnDisk)  # named in messages


@dataclass(frozen=True, slots=True)
class Topic:
    """Unsupported combinations that involve one setting."""

    applies: _Predicate
    conflicts: Mapping[str, _Predicate]  # by message. The first one that holds is raised


def check(parts: Parts) -> None:
    """Raises `UserError` for the first unsupported combination."""
    for topic in TOPICS:
        if topic.applies(parts.settings, parts):
            for message, holds in topic.conflicts.items():
                if holds(parts.settings, parts):
                    raise UserError(_format_message(message, parts))
    for hook in parts.hooks:
        hook.check(parts)


def _format_message(message: str, parts: Parts) -> str:
    """Formats a message.

    `s` are the settings, `p` the parts, `lacks` maps an ability to the reason why the
    strategy does not have it, and `keys` make sync and strategy approximate.
    """
    lacks = {kind.__name__: parts.strategy.lacks(kind) for kind in _ABILITIES}
    facts = {"dense": _dense_readers(parts), "written": list(parts.settings.write), "lacks": lacks}
    keys = [part.costs().partition(":")[0] for part in (parts.sync, parts.strategy)]
    return message.format(s=parts.settings, p=parts, keys=keys, **facts)


def _dense_readers(parts: Parts) -> list[str]:
    return dense_readers(parts.settings, parts.source, parts.strategy)


_PLACE = Topic(
    lambda s, p: s.features.place != "auto" or s.features.cache is not None,
    {
        "features.place={s.features.place}: strategy={s.strategy.name} {lacks[LastingRows]}": lambda s, p: (
            p.strategy.lacks(GatheredRows) and (p.strategy.lacks(LastingRows) or not p.source.trains)
        ),
        "features.place=mapped: strategy={s.strategy.name} reads all of its rows in each epoch: use "
        "features.place=memory or disk": lambda s, p: s.features.place == "mapped" and p.strategy.lacks(GatheredRows),
        "features.place=disk: the first layer of model={p.source.name} reads rows before a product, so a worker keeps "
        "all of its rows in memory: use features.place=memory, or model=gcn, sage, gat, gin, rgat, simple_hgn or hgt": lambda s, p: (
            s.features.place == "disk" and p.strategy.lacks(GatheredRows) and not p.source.reads_sparse
        ),
        "features.place=disk: label_inputs masks columns of rows in memory: use features.place=memory": lambda s, p: (
            s.features.place == "disk" and s.label_inputs is not None
        ),
        "features.place={s.features.place}: job=plan counts the rows of strategy={s.strategy.name} in memory: leave the "
        "section out": lambda s, p: s.job.reads_plan and p.strategy.reads.all_edges,
        "features.place=disk: sampler={s.sampler.name} with these options compares features of all nodes while it "
        "draws: use features.place=mapped": lambda s, p: (
            s.features.place == "disk" and p.sampler is not None and p.sampler.reads_features
        ),
        "features.place=disk: trainer.precision=bf16-mixed rounds all features before the first step: use "
        "features.dtype=bf16, trainer.precision=32 or features.place=mapped": lambda s, p: (
            s.features.place == "disk" and s.trainer.precision == "bf16-mixed" and s.features.dtype != "bf16"
        ),
        "features.place=disk: {lacks[RowsOnDisk]}": lambda s, p: (
            s.features.place == "disk" and not p.strategy.lacks(GatheredRows) and p.strategy.lacks(RowsOnDisk)
        ),
    },
)


def may_stay(parts: Parts) -> bool:
    """Returns whether features may stay on disk during training."""
    settings = replace(parts.settings, features=replace(parts.settings.features, place="disk"))
    return not any(holds(settings, parts) for holds in _PLACE.conflicts.values())


TOPICS = (
    Topic(
        lambda s, p: True,
        {
            "trainer.monitor={s.trainer.monitor} needs workers that step together, unlike sync={s.sync.name}: "
            "choose {p.task.progress}": lambda s, p: s.trainer.monitor == LOSS and not p.sync.lockstep,
            "trainer.checkpoint_every_minutes={s.trainer.checkpoint_every_minutes}: trainer.checkpoint=false saves none: "
            "leave one of them out": lambda s, p: s.trainer.checkpoint_every_minutes and not s.trainer.checkpoint,
            "trainer.checkpoint_every_minutes={s.trainer.checkpoint_every_minutes} needs workers that step together, "
            "unlike sync={s.sync.name}: use trainer.checkpoint_every": lambda s, p: (
                s.trainer.checkpoint_every_minutes and not p.sync.lockstep
            ),
            "trainer.clip_norm={s.trainer.clip_norm}: with sync={s.sync.name} servers step, each with some of the "
            "parameters: use sync=all_reduce, or leave the key out": lambda s, p: (
                s.trainer.clip_norm is not None and not p.sync.steps_here
            ),
        },
    ),
    Topic(
        lambda s, p: not p.source.trains,
        {
            "job={s.job.name}: model={p.source.name} is iterated, and has no trained parameters": lambda s, p: (
                s.job.reads_checkpoint
            ),
            "strategy={s.strategy.name}: model={s.model.name} is a program over all edges, which needs "
            "strategy=vertex_centric, strategy.local_iterations=1 and exchange=exact": lambda s, p: (
                not p.strategy.reads.all_edges or p.strategy.on_one_rank(s.workers, None) is None
            ),
            "task={s.task.name}: model={s.model.name} is a program, which is not trained: remove the task": lambda s, p: (
                s.task.name != DEFAULT_TASK
            ),
            "trainer.resume={s.trainer.resume}: programs have no checkpoints": lambda s, p: s.trainer.resume,
            "sync.servers={s.servers}: programs have no gradients: remove the key": lambda s, p: s.servers,
            "{s.companions[0]}: model={p.source.name} is iterated, not trained: remove it": lambda s, p: s.companions,
            "inputs={s.inputs}: model={p.source.name} is iterated, not trained: remove the key": lambda s, p: (
                s.inputs != "features"
            ),
        },
    ),
    Topic(
        lambda s, p: True,
        {
            "sampler={s.sampler.name}: strategy={s.strategy.name} does not sample: remove the sampler": lambda s, p: (
                s.sampler is not None and not p.strategy.reads.sampler
            ),
            "partition.grid={s.partition.grid}: strategy={s.strategy.name} has no process grid: use 1d": lambda s, p: (
                s.partition.grid != "1d" and p.strategy.reads.along_nodes
            ),
            "order={s.order.name}: strategy={s.strategy.name} keeps no full-graph rows: remove order": lambda s, p: (
                s.order.name not in USUAL_ORDERS and not p.strategy.reads.all_edges
            ),
            "{keys[0]}: {keys[1]} averages models, which needs workers that step together: use "
            "sync.mode=sync": lambda s, p: s.workers > 1 and p.strategy.steps.drift and not p.sync.lockstep,
            "model={p.source.name} distinguishes edge types, and strategy={s.strategy.name} "
            "{lacks[Relations]}": lambda s, p: p.source.reads_relations and p.strategy.lacks(Relations),
            "sampler={s.sampler.name} does not draw by relation, as model={p.source.name} needs: use sampler=neighbor, "
            "weighted, labor, balanced or full": lambda s, p: (
                p.sampler is not None and p.source.reads_relations and not p.sampler.by_relation
            ),
            "sampler.fanouts={p.sampler.fanouts}: model={p.source.name} reads no relations: use one list of fanouts, or a model "
            "such as rgcn": lambda s, p: (
                p.sampler is not None
                and not p.source.reads_relations
                and getattr(p.sampler.fanouts, "by_relation", None)
            ),
        },
    ),
    Topic(
        lambda s, p: s.types == "ignore",
        {
            "types=ignore: model={p.source.name} reads edge types: remove the key": lambda s, p: (
                p.source.reads_relations
            ),
            "types=ignore: job={s.job.name} reads types as in training: remove the key": lambda s, p: (
                s.job.reads_checkpoint
            ),
        },
    ),
    Topic(
        lambda s, p: p.source.trains,
        {
            "job={s.job.name}: task={s.task.name} predicts held-out edges: write=[logits] gives the rows of all "
            "nodes, and job=test scores the edges": lambda s, p: (
                not s.job.needs_labels
                and "predictions" in s.write
                and p.task.hides_edges
                and not getattr(p.task, "list_length", 0)
            ),
            "write={written}: vectors need task=link_prediction with task.decoder=dot, whose score is their dot product: "
            "remove them": lambda s, p: "vectors" in s.write and getattr(p.task, "decoder", None) != "dot",
            "write={written}: task={s.task.name} has no probabilities: remove them": lambda s, p: (
                "probabilities" in s.write and type(p.task).probabilities is Task.probabilities
            ),
        },
    ),
    Topic(
        lambda s, p: s.trainer.accumulate > 1 and p.source.trains,
        {
            "trainer.accumulate={s.trainer.accumulate}: strategy={s.strategy.name} has one batch per epoch: use "
            "trainer.accumulate=1": lambda s, p: p.strategy.reads.all_edges,
            "trainer.accumulate={s.trainer.accumulate}: strategy={s.strategy.name} with these options takes local steps "
            "between batches: use trainer.accumulate=1": lambda s, p: (
                p.strategy.steps.drift or p.strategy.steps.keep_state or not p.strategy.steps.only_synchronise
            ),
            "trainer.accumulate={s.trainer.accumulate}: sync={s.sync.name} with these options has ranks that do not "
            "step together: use trainer.accumulate=1": lambda s, p: not p.sync.lockstep or p.sync.on_lost == "continue",
            "trainer.accumulate={s.trainer.accumulate}: inputs=learned updates the rows of each batch: use "
            "trainer.accumulate=1": lambda s, p: s.embedding is not None,
        },
    ),
    Topic(
        lambda s, p: s.input_rows == "sparse",
        {
            "input_rows=sparse: {dense[0]} reads dense rows: use input_rows=auto": lambda s, p: _dense_readers(p),
        },
    ),
    Topic(
        lambda s, p: s.features.dtype != "as_is",
        {
            "features.dtype={s.features.dtype}: input_rows=sparse keeps sparse rows, and only dense rows are rounded: "
            "leave one of the keys out": lambda s, p: s.input_rows == "sparse",
            "features.dtype={s.features.dtype}: sampler={s.sampler.name} with these options compares features of all nodes "
            "while it draws: leave features.dtype out": lambda s, p: p.sampler is not None and p.sampler.reads_features,
        },
    ),
    _PLACE,
    Topic(
        lambda s, p: s.inputs == "learned",
        {
            "inputs=learned: job=plan counts no gradients of input rows: plan with inputs=features or inputs=degree": lambda s, p: (
                s.job.reads_plan
            ),
            "inputs=learned: strategy={s.strategy.name} {lacks[LearnedInputs]}": lambda s, p: p.strategy.lacks(
                LearnedInputs
            ),
            "inputs=learned: sync={s.sync.name} with these options does not make one step from the exact gradient of "
            "all workers, which learned rows need: use sync=all_reduce or sync=leader": lambda s, p: (
                not (p.sync.exact and p.sync.lockstep and p.sync.collective)
            ),
            "inputs=learned: the rows of a lost worker would be lost too: use sync.on_lost=stop": lambda s, p: (
                p.sync.on_lost == "continue"
            ),
        },
    ),
    Topic(
        lambda s, p: s.label_inputs is not None,
        {
            "label_inputs={s.label_inputs}: model={p.source.name} is iterated, not trained: remove the key": lambda s, p: (
                not p.source.trains
            ),
            "label_inputs={s.label_inputs}: task={s.task.name} has no classes to encode: use "
            "task=node_classification, or remove the key": lambda s, p: (
                not (p.task.labels_nodes and getattr(p.task, "exclusive", False))
            ),
            "label_inputs={s.label_inputs}: strategy={s.strategy.name} {lacks[LearnedInputs]}": lambda s, p: (
                p.strategy.lacks(LearnedInputs)
            ),
            "label_inputs={s.label_inputs}: workers count the predicted nodes of each step together, unlike "
            "sync={s.sync.name} with these options: use sync=all_reduce": lambda s, p: (
                not p.sync.lockstep or p.sync.on_lost == "continue"
            ),
            "label_inputs={s.label_inputs}: trainer.accumulate={s.trainer.accumulate} counts rows before labels are hidden: "
            "use trainer.accumulate=1": lambda s, p: s.trainer.accumulate > 1,
        },
    ),
    Topic(
        lambda s, p: p.sampler is not None and p.sampler.time != "none",
        {
            "sampler.time={p.sampler.time}: strategy={s.strategy.name} {lacks[ByTime]}": lambda s, p: p.strategy.lacks(
                ByTime
            ),
            "sampler.time={p.sampler.time}: write={written} needs outputs of nodes, and task={s.task.name} has those of pairs "
            "at their times: use write=[predictions]": lambda s, p: p.task.timed & set(s.write),
            "sampler.time={p.sampler.time}: inputs={s.inputs} reads rows that later edges change: use inputs=features": (
                lambda s, p: s.inputs != "features"
            ),
            "sampler.time={p.sampler.time}: features.degree=true counts edges of all times: remove the key": lambda s, p: (
                s.features.degree
            ),
            "sampler.time={p.sampler.time}: label_inputs={s.label_inputs} shows labels of later nodes: remove the key": (
                lambda s, p: s.label_inputs is not None
            ),
        },
    ),
    Topic(
        lambda s, p: True,
        {
            "model={p.source.name} reads edge times, and batches are not sampled by time: use sampler.time=strict "
            "and strategy=individual_sample": lambda s, p: (
                getattr(p.model, "reads_edge_age", False) and (p.sampler is None or p.sampler.time == "none")
            ),
            "features.scale=row: model={p.source.name} compares a column between rows, which would be divided by their sums: "
            "remove the key": lambda s, p: s.features.scale == "row" and getattr(p.model, "compares_columns", False),
            "features.degree=true: task={s.task.name} hides edges, which degrees would count: remove the key": lambda s, p: (
                s.features.degree and p.task.hides_edges
            ),
        },
    ),
    Topic(
        lambda s, p: s.job.trains and p.source.trains and p.sync.on_lost == "continue",
        {
            "sync.on_lost=continue: workers fetch rows from each other, so each step needs every worker: use "
            "strategy.topology=shared with strategy.features=shared, or sync.on_lost=stop": lambda s, p: (
                p.strategy.reads.sampler and p.strategy.reads.from_owners
            ),
            "sync.on_lost=continue: strategy={s.strategy.name} exchanges rows between workers, so each step needs "
            "every worker: choose strategy=individual_sample, strategy=preset_workload or sync.on_lost=stop": lambda s, p: (
                not p.strategy.reads.graph or p.strategy.steps.exchange
            ),
            "sync.on_lost=continue: model={p.source.name} reads one edge_index, and is evaluated by all workers together: "
            "use sync.on_lost=stop": lambda s, p: isinstance(p.model, EdgeIndexModel),
            "sync.on_lost=continue: task={s.task.name} measures with rows of all workers, so each evaluation needs "
            "every worker: choose a task about nodes or sync.on_lost=stop": lambda s, p: p.task.pairs,
            "sync.on_lost=continue: with comm={s.comm.name} all workers are one process and end together: choose "
            "comm=gloo": lambda s, p: s.comm.load().in_threads,
            "sync.on_lost=continue: a lost worker could not write its columns: use write_by=rows": lambda s, p: (
                s.write_by == "columns"
            ),
            "sync.on_lost=continue: torchrun ends all workers when one is lost: run `gnnkit` without torchrun": lambda s, p: (
                s.started is not None and s.started.by_torchrun
            ),
        },
    ),
    Topic(
        lambda s, p: s.restarts > 0,
        {
            "restarts={s.restarts}: gnnkit cannot restart ranks that were started externally: remove the "
            "key, and let torchrun restart them with --max-restarts={s.restarts}, output=FOLDER on_exists=resume": lambda s, p: (
                s.started is not None
            ),
            "restarts={s.restarts}: launcher={s.launcher.name} starts no process that could be restarted: remove the key": lambda s, p: (
                s.is_inline
            ),
            "restarts={s.restarts}: sync.on_lost=continue continues without a worker that fails: use sync.on_lost=stop": lambda s, p: (
                p.sync.on_lost == "continue"
            ),
            "restarts={s.restarts}: a restart would discard the trace of profile=true: remove it": lambda s, p: (
                s.profile
            ),
        },
    ),
)


def check_order(order: Order) -> Order:
    """Returns the order with the default sampler, if it needs one.

    Raises `UserError` for incompatible plugins and invalid arguments.
    """
    parts = Parts.of(order)
    check(parts)
    parts.check()
    if order.graph is not None:  # before the leader compares layouts
        check_types(_find_untyped_model(order), order.graph.schema)
    return replace(order, settings=parts.settings)


def needs_of(order: Order) -> Needs:
    """Returns the data that training reads."""
    settings, source, parts = order.settings, order.source, Parts.of(order)
    strategy = settings.create_strategy()
    reads_rows = settings.inputs == "features" and source.trains
    model = ModelNeeds(
        inputs=source.trains,
        sparse=reads_sparse(settings, source, strategy),
        relational=source.reads_relations,
        inverse_edges=source.reads_relations
        and source.holds_inverse(parts.model, in_batches=not strategy.reads.all_edges),
        edge_order=getattr(parts.model, "edge_order", parts.model is None),
        ordered_layer=ordered_layer(parts.model),
        untyped_model=_find_untyped_model(order),
    )
    return Needs(
        trains=source.trains and settings.job.needs_labels,
        graph=strategy.reads.graph and source.trains,
        reference=False,
        features=not strategy.reads.from_owners,
        shard_edges=strategy.reads.graph
        and not strategy.lacks(JoinedLayers)
        and source.trains
        and source.reads_edge_index,
        owned_edges=strategy.reads.one_column or strategy.reads.from_owners,
        recut=any(hook.keeps_graph(strategy) for hook in parts.hooks),
        rows=("fixed" if strategy.lacks(GatheredRows) else "gathered") if reads_rows else None,
        may_stay=may_stay(parts),
        model=model,
    )


def _find_untyped_model(order: Order) -> str | None:
    """Returns the model's name if it will train and ignores node and edge types.

    Raises `UserError` for a class of typed models that two widths do not make.
    """
    settings, source = order.settings, order.source
    trains = not (settings.job.reads_checkpoint or settings.job.reads_plan)
    if not trains or settings.types != "read" or source.reads_relations:
        return None
    forward = getattr(source.python_model, "forward", None)
    if isinstance(source.python_model, type) and forward and "edge_index_dict" in inspect.signature(forward).parameters:
        raise UserError(
            f"model={source.name} is a class, which would be called with (in_features, num_classes), and its forward reads "
            f"types: pass an instance, such as {source.name}(data.metadata(), ...)"
        )
    return source.name
